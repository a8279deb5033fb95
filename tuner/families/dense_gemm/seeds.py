"""The configurations known before a run: what the engine runs, and winners of other GEMMs.

`tuner.tuning.seeds` elects seeds from the winners; this module says how far a file's GEMM is from a
problem.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, partial

from tuner.devices.table import Device
from tuner.engines.config_files import launch_config
from tuner.families.dense_gemm.engine import GemmEngine, GemmFileKey, ShippedFile
from tuner.families.dense_gemm.problem import BATCH_SIZES, DenseGemm, DensePart
from tuner.problems.points import Config, Point, Problem
from tuner.tuning.pointwise import Baselines
from tuner.tuning.seeds import ballots_of, device_distance, elect, in_turn, octaves
from tuner.tuning.space import Space


def seeds_for(
    at: Mapping[Point, Space],
    problem: DenseGemm,
    device: Device,
    space: Space,
    shipped: Iterable[ShippedFile],
    *,
    known: Mapping[Point, Sequence[Config]],
    foreseen: Mapping[Point, Sequence[Config]],
    without: Collection[tuple[int, int]] = (),
) -> dict[Point, list[Config]]:
    """Distinct legal configurations for each point: `known` ones first, then elected ones.

    `at` has the space of each point, and `space` is the problem's. `known`: configurations that are
    surely worth a trial, such as the engine's. `foreseen`: the device model's best, which alternate
    with the elected ones. `without`: (N, K) of files to ignore, for a fair evaluation of a search.
    """
    away = cache(partial(device_distance, device=device))
    files = (
        (_problem_distance(file.key, problem) + away(file.key.device), _not_null(file.entries))
        for file in shipped
        if (file.key.N, file.key.K) not in without and _alike(file.key, problem)
    )
    ballots = ballots_of(files, space)
    seeds = {}
    for point, here in at.items():
        voted = elect(ballots, point.batch_size, space, here)
        first = [here.nearest(config) for config in known.get(point, ())]
        modelled = [here.nearest(config) for config in foreseen.get(point, ())]
        seeds[point] = in_turn(first, modelled, voted)
    return seeds


def relatives(
    problem: DenseGemm, chosen: Iterable[tuple[Problem, Mapping[Point, Config]]]
) -> dict[int, list[Config]]:
    """By batch size, what was chosen for other GEMMs of the model; the nearest GEMM is first."""
    found: list[tuple[float, int, Config]] = []
    for other, configs in chosen:
        same = isinstance(other, DenseGemm) and (other.dtype, other.block) == (
            problem.dtype,
            problem.block,
        )
        if isinstance(other, DenseGemm) and same:
            away = octaves(other.N, problem.N) + octaves(other.K, problem.K)
            found += [(away, point.batch_size, config) for point, config in configs.items()]
    by_size: dict[int, list[Config]] = {}
    for _, size, config in sorted(found):
        by_size.setdefault(size, []).append(config)
    return {size: list(dict.fromkeys(configs)) for size, configs in by_size.items()}


def _not_null(entries: Mapping[int, Config]) -> dict[int, Config]:
    return {size: config for size, config in entries.items() if config}


def _alike(key: GemmFileKey, problem: DenseGemm) -> bool:
    """Whether the file's kernel has the problem's parameters."""
    return (key.block is None) == (problem.block is None)


def _problem_distance(key: GemmFileKey, problem: DenseGemm) -> float:
    """An octave of N or of K is half a unit each, another type or block is one."""
    return (
        octaves(key.N, problem.N) / 2
        + octaves(key.K, problem.K) / 2
        + (key.dtype != problem.dtype.value)
        + (key.block != problem.block)
    )


# A file's entry is taken to be tuned for batch sizes up to this many times its key, and down to
# this part of it. Some shipped files begin at 2,048: their first entry serves all smaller sizes.
NEAR = 2


def find_baselines(
    engine: GemmEngine,
    problem: DenseGemm,
    device: Device,
    corpus: Iterable[ShippedFile],
    batch_sizes: Iterable[int],
) -> Baselines:
    """The baselines at the engine's own batch sizes, `batch_sizes`, and the shipped file's."""
    path = engine.find_file(engine.package_root, problem, device)
    keys = [key for file in corpus if file.path == path for key in file.entries]
    found: dict[Point, dict[str, Config]] = {}
    near, backend = set(), device.target.backend
    for size in sorted({*BATCH_SIZES, *batch_sizes, *keys}):
        point = Point(size, DensePart.DENSE)
        by_name = engine.incumbents(problem, device, size)
        found[point] = {name: launch_config(config, backend) for name, config in by_name.items()}
        if any(size <= NEAR * key and key <= NEAR * size for key in keys):
            near.add(point)
    return Baselines(found, frozenset(near))
