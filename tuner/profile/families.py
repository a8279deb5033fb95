"""Which family a kernel's name belongs to, by the table `families.toml` beside this module."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from tuner.files import shipped_toml
from tuner.profile.profile import Phase

# Families of attention kernels. Engines launch them in every layer of every step.
ATTENTION = (
    *("attention_extend", "attention_decode", "attention_triton"),
    *("flash_attention", "flashinfer"),
)


@dataclass(frozen=True)
class KernelFamily:
    """Kernels that do one job, from one maker."""

    name: str
    title: str
    tuned_as: tuple[str, ...]  # the kinds of problems under which the tuner tunes it; may be empty
    gained_elsewhere: float  # how many times as fast tuning made other problems; 1 where not tuned


@dataclass(frozen=True)
class _Row:
    family: str
    pattern: re.Pattern[str]
    phase: Phase | None  # which phase a kernel of this name tells


@cache
def kernel_families() -> Mapping[str, KernelFamily]:
    """All families, by name, in the order of the table."""
    return {
        row["name"]: KernelFamily(
            row["name"],
            row["title"],
            tuple(row.get("tuned_as", ())),
            row.get("gained_elsewhere", 1.0),
        )
        for row in _table()["family"]
    }


@lru_cache(maxsize=1 << 16)  # a trace has millions of kernels, and some hundred names
def family_of(name: str) -> str:
    """The family of a kernel's name; "" where no row knows it."""
    row = _row(name)
    return row.family if row else ""


@lru_cache(maxsize=1 << 16)
def phase_told_by(name: str) -> Phase | None:
    """The phase in which alone engines launch a kernel of this name; None where it may be any."""
    row = _row(name)
    return row.phase if row else None


def _row(name: str) -> _Row | None:
    return next((row for row in _rows() if row.pattern.search(name)), None)


@cache
def _rows() -> Sequence[_Row]:
    return tuple(
        _Row(
            row["family"],
            re.compile(row["kernel"]),
            Phase(row["phase"]) if "phase" in row else None,
        )
        for row in _table()["row"]
    )


@cache
def _table() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    return shipped_toml("tuner.profile", "families.toml")
