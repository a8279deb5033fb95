"""From files to a `Profile`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tuner.errors import MalformedTrace
from tuner.profile.attribute import TraceTotals, attribute
from tuner.profile.profile import KernelTime, Phase, Profile
from tuner.profile.timeline import read_timeline

# Ranks do the same work, so one of them tells enough. How engines name their files:
# sglang 0.5.16 utils/profile_utils.py "-TP-0", vllm 0.33.0 profiler/wrapper.py "rank0", "_rank_0".
_RANK = re.compile(r"(?:-TP-|rank[-_]?)(\d+)", re.IGNORECASE)
_SUFFIXES = (".json", ".json.gz")


def read(paths: Sequence[Path]) -> Profile:
    """The profile of traces together: of ranks, of stages, or of one after another.

    A folder stands for the traces of its lowest rank. Memory stays at some dozens of bytes for
    each kernel. Raises MalformedTrace for a file that is no trace, and where no kernel ran.
    """
    totals, device = TraceTotals(), ""
    files = [file for path in paths for file in trace_files(path)]
    for file in files:
        timeline = read_timeline(file)
        if timeline.starts or len(files) == 1:
            attribute(timeline, totals)
        device = device or timeline.device
    if not totals.kernels:
        raise MalformedTrace(
            f"{files[0]} holds no kernel: profile with the activities CPU and GPU, and send "
            "requests while the profiler runs"
        )
    return Profile(
        _kernels(totals),
        totals.gap_us,
        totals.merged_steps(),
        device,
        totals.told_by(),
        totals.engine,
        totals.idle_us,
    )


def trace_files(path: Path) -> list[Path]:
    """The files to read for a path: itself, or the traces of the lowest rank in a folder.

    Raises MalformedTrace for a folder without traces.
    """
    if not path.is_dir():
        return [path]
    try:
        files = sorted(p for p in path.iterdir() if p.name.endswith(_SUFFIXES) and _is_trace(p))
    except OSError as error:
        raise MalformedTrace(f"{path} cannot be read: {error.strerror}") from None
    if not files:
        raise MalformedTrace(
            f"{path} has no trace: a trace's name ends in .trace.json.gz or .trace.json"
        )
    ranks = [int(found.group(1)) for file in files if (found := _RANK.search(file.name))]
    if not ranks:
        return files
    return [file for file in files if (_rank(file) or 0) == min(ranks)]


def _is_trace(path: Path) -> bool:
    """Whether a file's name is a trace's. sglang puts server_args.json beside its traces."""
    return path.is_file() and "trace" in path.name


def _rank(path: Path) -> int | None:
    found = _RANK.search(path.name)
    return int(found.group(1)) if found else None


def _kernels(totals: TraceTotals) -> tuple[KernelTime, ...]:
    kernels: Iterable[KernelTime] = (
        KernelTime(name, family, phase, calls, us)
        for (name, family, phase), (calls, us) in totals.kernels.items()
    )
    return tuple(sorted(kernels, key=lambda k: (-k.time_us, k.name, _ORDER.index(k.phase))))


_ORDER = list(Phase)
