"""Find the models of the table that have a problem, in the usual ways of serving them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tuner.errors import BadInput
from tuner.models.model import Model
from tuner.models.serving import Resolved, Serving
from tuner.models.table import presets
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Problem
from tuner.problems.registry import Family, families, family_of

_TP = (1, 2, 4, 8, 16, 32)
_DTYPES = (None, Dtype.INT8_W8A8)  # the model's own dtype, and the dtype of fleets of older cards


@dataclass(frozen=True)
class Served:
    """A model of the table, and the tensor-parallel sizes at which it has a problem."""

    model: str
    dtype: Dtype | None  # None: the model's own
    tp: tuple[int, ...]


def models_of(problem: Problem) -> Sequence[str]:
    """Return the models with this problem and their tensor-parallel sizes: `deepseek-r1 TP 8, 16`.

    The list is empty if no model of the table has the problem in a usual way of serving. The first
    call for a family takes up to a second.
    """
    return tuple(sorted(_words(one) for one in served_as(problem)))


def with_sizes(model: str, problem: Problem) -> str:
    """Add the tensor-parallel sizes at which a model has a problem: `deepseek-r1 TP 8`."""
    name = next((one.name for one in presets() if model in (one.name, *one.aliases)), "")
    sizes = sorted({tp for one in served_as(problem) if one.model == name for tp in one.tp})
    return f"{model} TP {', '.join(map(str, sizes))}" if sizes else model


def served_as(problem: Problem) -> Sequence[Served]:
    """Return the usual ways of serving a model of the table that have this problem."""
    return _models(family_of(problem).name).get(problem, ())


@cache
def _models(family: str) -> Mapping[Problem, Sequence[Served]]:
    chosen = next(one for one in families() if one.name == family)
    sizes: dict[Problem, dict[tuple[str, Dtype | None], list[int]]] = defaultdict(dict)
    for model, tp, dtype, options in itertools.product(presets(), _TP, _DTYPES, _choices(chosen)):
        for problem in _problems(chosen, model, Serving(tp=tp, dtype=dtype, options=options)):
            # A dtype of quantised weights changes nothing for attention.
            known = dtype if dtype and (model.name, None) not in sizes[problem] else None
            found = sizes[problem].setdefault((model.name, known), [])
            if tp not in found:
                found.append(tp)
    return {
        problem: [Served(*who, tuple(some)) for who, some in of.items()]
        for problem, of in sizes.items()
    }


def _choices(family: Family) -> Sequence[Mapping[str, Any]]:
    """Return the ways of serving that a server's flags decide."""
    flags = [option.name for option in family.shaping if option.kind is bool]
    every = itertools.product((True, False), repeat=len(flags))
    return [dict(zip(flags, values, strict=True)) for values in every]


def _problems(family: Family, model: Model, serving: Serving) -> Sequence[Problem]:
    try:
        resolved: Resolved = family.module("models").problems(model, serving)
    except BadInput:
        return ()
    return resolved.problems


def _words(served: Served) -> str:
    name = f"{served.model} {served.dtype.value}" if served.dtype else served.model
    return f"{name} TP {', '.join(map(str, served.tp))}"
