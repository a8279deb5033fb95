"""Count the ranks of a cluster that loaded a tuned file, as far as a log shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from tuner.deploy.load_proof.deployed import Deployed

_TP, _PP, _DP = (re.compile(rf"{one}(\d{{1,5}})") for one in ("TP", "PP", "DP"))


def numbers_of(names: Iterable[str], deployed: Deployed) -> set[int]:
    """Return the numbers of ranks that lines name as TP8, DP1 TP8, PP1 TP8 or Worker_TP8."""
    found = set()
    for name in names:
        if tp := _TP.search(name):
            stage, dp = _PP.search(name), _DP.search(name) if deployed.replicated else None
            before = int(stage[1]) if stage else 0
            before += int(dp[1]) * deployed.pp if dp else 0
            found.add(int(tp[1]) + before * deployed.tp)
    return found


def unseen(seen: Mapping[str, set[int]], deployed: Deployed) -> Iterator[str]:
    """Yield a line for each file that only some of the ranks were seen to load.

    vLLM's first rank on each node writes the line for the whole node; in sglang each rank does.
    """
    size = deployed.ranks // max(1, deployed.nodes) if deployed.engine == "vllm" else 1
    for name, ranks in seen.items():
        missing = [
            rank
            for rank in range(0, deployed.ranks, size)
            if ranks.isdisjoint(range(rank, rank + size))
        ]
        if missing and ranks:
            found = deployed.ranks - size * len(missing)
            without = sorted(rank + i for rank in missing for i in range(size))
            yield (
                f"{name}: loaded by {found} of {deployed.ranks} ranks, and no line is of "
                f"{ranges(without, deployed)}: give the logs of all nodes"
            )


def unnamed(seen: Mapping[str, set[int]], deployed: Deployed) -> Iterator[str]:
    """Yield a line for each file whose lines name no rank."""
    for name, ranks in seen.items():
        if deployed.ranks > 1 and not ranks:
            yield (
                f"{name}: its lines name no rank, so whether all {deployed.ranks} loaded it is open"
            )


def ranges(numbers: Iterable[int], deployed: Deployed) -> str:
    """Return `TP1 to TP7, TP9`; with several stages or replicas `PP1 TP0 to PP1 TP7`."""
    parts: list[tuple[int, int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    named = [(_name(a, deployed), _name(b, deployed)) for a, b in parts]
    return ", ".join(a if a == b else f"{a} to {b}" for a, b in named)


def _name(number: int, deployed: Deployed) -> str:
    before, tp = divmod(number, deployed.tp)
    dp, stage = divmod(before, deployed.pp)
    names = (f"DP{dp}" * deployed.replicated, f"PP{stage}" * (deployed.pp > 1), f"TP{tp}")
    return " ".join(filter(None, names))
