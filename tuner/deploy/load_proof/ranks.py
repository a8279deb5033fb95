"""Of how many of a cluster's ranks a log shows that they loaded a tuned file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from tuner.deploy.load_proof.deployed import Deployed

_TP, _DP = re.compile(r"TP(\d{1,5})"), re.compile(r"DP(\d{1,5})")


def numbers_of(names: Iterable[str], deployed: Deployed) -> set[int]:
    """The numbers of ranks that lines name as TP8, DP1 TP8 or Worker_TP8."""
    found = set()
    for name in names:
        if tp := _TP.search(name):
            dp = _DP.search(name) if deployed.replicated else None
            found.add(int(tp[1]) + (int(dp[1]) * deployed.tp if dp else 0))
    return found


def unseen(seen: Mapping[str, set[int]], deployed: Deployed) -> Iterator[str]:
    """A line for each key that only some of the ranks were seen to load.

    vLLM's first rank on each node writes the line for all of the node; of sglang each rank does.
    """
    size = deployed.ranks // max(1, deployed.nodes) if deployed.engine == "vllm" else 1
    for key, ranks in seen.items():
        missing = [
            rank
            for rank in range(0, deployed.ranks, size)
            if ranks.isdisjoint(range(rank, rank + size))
        ]
        if missing and ranks:
            found = deployed.ranks - size * len(missing)
            without = sorted(rank + i for rank in missing for i in range(size))
            yield (
                f"{key}: loaded by {found} of {deployed.ranks} ranks, and no line is of "
                f"{ranges(without)}: give the logs of all nodes"
            )


def unnamed(seen: Mapping[str, set[int]], deployed: Deployed) -> Iterator[str]:
    """A line for each key whose lines name no rank."""
    for key, ranks in seen.items():
        if deployed.ranks > 1 and not ranks:
            yield (
                f"{key}: its lines name no rank, so whether all {deployed.ranks} loaded it is open"
            )


def ranges(numbers: Iterable[int]) -> str:
    """Return `TP1 to TP7, TP9`."""
    parts: list[tuple[int, int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return ", ".join(f"TP{a}" if a == b else f"TP{a} to TP{b}" for a, b in parts)
