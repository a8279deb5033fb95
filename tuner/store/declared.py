"""Check values that others made against the declared types of dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from tuner.problems.points import Problem

_MOST = 1 << 63  # what databases hold


def check_declared(value: Any, name: str) -> None:  # noqa: ANN401  # any dataclass
    """Raise ValueError, which names the field, if a field of a dataclass or below it has another
    type than it declares, or a number that is negative, not finite or needs more than 64 bits.
    """
    hints = get_type_hints(type(value))
    for one in fields(value):
        declared = hints[one.name]
        if declared is not Problem:  # its text was parsed
            _check(getattr(value, one.name), declared, f"{name}.{one.name}")


def _check(value: Any, declared: Any, name: str) -> None:  # noqa: ANN401
    origin, inner = get_origin(declared), get_args(declared)
    if value is None and type(None) in inner:
        return
    if type(None) in inner:
        _check(value, next(one for one in inner if one is not type(None)), name)
    elif is_dataclass(value) and not isinstance(value, type):
        check_declared(value, name)
    elif origin is tuple and isinstance(value, tuple):
        for one in value:
            _check(one, inner[0], name)
    elif isinstance(value, Mapping):
        for key, one in value.items():
            _check(key, str, name)
            _check(one, inner[1] if inner else int, f"{name}.{key}")
    elif not _is_of(value, origin or declared):
        raise ValueError(f"{name} is {str(value)[:40]!r}")


def _is_of(value: Any, declared: type) -> bool:  # noqa: ANN401
    if declared in (int, float):
        kinds = (int,) if declared is int else (int, float)
        return type(value) in kinds and 0 <= value < _MOST  # neither is true of a NaN
    return isinstance(value, declared)
