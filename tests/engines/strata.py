"""Samples in which each kind of case has its part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from itertools import chain, islice, zip_longest
from typing import TypeVar

T = TypeVar("T")


def of_each_kind(cases: Iterable[T], kind: Callable[[T], Hashable], count: int) -> list[T]:
    """Return `count` cases, taken from each kind in turn; of a kind, those that come first."""
    kinds = defaultdict(list)
    for case in cases:
        kinds[kind(case)].append(case)
    rounds = chain.from_iterable(zip_longest(*kinds.values()))
    found = list(islice((case for case in rounds if case is not None), count))
    assert len(found) == count >= len(kinds)
    return found
