"""`--workload FROM`: tune for the batches that a log, a profile or a benchmark shows."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors import BadInput, MalformedBenchmark, MalformedWorkload, UnreadableLog

if TYPE_CHECKING:
    from tuner.problems.points import Problem
    from tuner.problems.registry import Family
    from tuner.profile.workload import WeightedBatch

FIELD = "workload"  # of requests for attention


def is_observed(text: object) -> bool:
    """Whether the value of --workload names what a server did, and not a use or a TOML file.

    The name of a use has neither dot nor slash, so a folder of that name is not taken for it.
    """
    if not isinstance(text, str) or text.endswith(".toml") or not {".", "/"} & set(text):
        return False
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def observed_fields(path: Path, family: Family, problem: Problem) -> dict[str, Any]:
    """The fields of a request of a family that select the batches.

    Raises MalformedWorkload where the source says too little.
    """
    from tuner.profile.workload import points, sizes

    batches = _batches(path)
    names = {option.name for option in family.selecting}
    if FIELD not in names:
        usual = family.read_selection(problem, {}).points(problem)
        found = sizes(batches, sorted({point.batch_size for point in usual}))
        return {"batch_sizes": found}
    chosen = points(batches)
    if not chosen:
        raise MalformedWorkload(
            f"{path} does not say how many tokens are cached: give the server's log, or a benchmark"
        )
    return {
        FIELD: [
            {
                "batch_size": batch.sequences,
                "new_tokens": batch.new_tokens,
                "cached_tokens": batch.cached_tokens,
                "weight": batch.weight,
            }
            for batch in chosen
        ]
    }


@cache
def _batches(path: Path) -> tuple[WeightedBatch, ...]:
    """The batches of a trace, a server's log, or results of a benchmark."""
    from tuner.profile import read
    from tuner.profile.workload import batches_of_profile

    if path.is_dir() or path.name.endswith((".trace.json", ".trace.json.gz")):
        found = batches_of_profile(read([path]))
        if not found:
            raise MalformedWorkload(f"{path} has no marks of steps: give the server's log")
        return tuple(found)
    return tuple(_of_log(path) or _of_benchmark(path))


def _of_log(path: Path) -> list[WeightedBatch]:
    from tuner.profile.workload import batches_of_log

    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return batches_of_log(lines)
    except OSError as error:
        raise UnreadableLog(f"{path} cannot be read: {error.strerror}") from None


def _of_benchmark(path: Path) -> list[WeightedBatch]:
    from tuner.deploy.bench_report import read_samples
    from tuner.profile.workload import batches_of_load, merged

    try:
        keys = {sample.key: None for sample in read_samples(path)}
    except MalformedBenchmark:
        raise BadInput(
            f"{path} names no batch: give a server's log with `Decode batch` lines, results of a "
            "benchmark, or a trace"
        ) from None
    loads = [batches_of_load(k.concurrency, k.input_len, k.output_len) for k in keys]
    return merged(batch for load in loads for batch in load if batch.sequences)
