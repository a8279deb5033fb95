"""Search on a recording: ours, plain TPE and random search at one budget, and ablations.

Run from the repository's root:
    .venv/bin/python benchmarks/search_on_recording.py [RECORDING] [--runs 20]
Prints the tables of docs/benchmarks.md and writes every run to benchmarks/results/.
Files for the recording's own key and its twins (E or E + 1, same N) are left out of the seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import optuna

from tuner.devices.table import Device, find_device
from tuner.devices.target import Target
from tuner.engines.engine import Engine, find_engine
from tuner.errors import UnknownDevice
from tuner.families.fused_moe.engine import ShippedFile, moe_engine
from tuner.families.fused_moe.predict.predictor import Predictor
from tuner.families.fused_moe.problem import Gemm
from tuner.families.fused_moe.recording import Recording, read_recording
from tuner.families.fused_moe.seeds import seeds_for
from tuner.families.fused_moe.space import space_for, spaces_at
from tuner.families.fused_moe.tuning import FORESEEN
from tuner.problems.points import Candidate, Config, Point
from tuner.tuning.budget import Budget, budget_for
from tuner.tuning.request import Effort
from tuner.tuning.search import Search
from tuner.tuning.space import Space

RECORDING = Path("tests/data/recordings/h200_E256_N256_K7168_top8_fp8w8a8_b128.csv.gz")
RESULTS = Path("benchmarks/results")


@dataclass(frozen=True)
class Setting:
    """What every contender is given."""

    recording: Recording
    device: Device
    engine: Engine
    spaces: dict[Gemm, Space]
    budget: Budget

    @property
    def points(self) -> list[Point]:
        return self.recording.points

    @cached_property
    def at(self) -> dict[Point, Space]:
        """The space of each point."""
        return spaces_at(self.points, self.recording.problem, self.spaces)


@dataclass(frozen=True)
class Run:
    """One contender, one seed."""

    contender: str
    seed: int
    regrets: dict[str, float]  # chosen time / best time in the recording - 1, by point
    most_measurements: int  # at a point
    configs: int  # distinct ones in all
    kernels: int  # the same, up and down counted apart, as they compile apart
    wall_s: float


class Meter:
    """The recording behind a counter: keeps what each point was tried with."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.tried: dict[Point, dict[Config, float]] = {p: {} for p in recording.points}

    @property
    def kernels(self) -> set[tuple[Gemm, Config]]:
        return {(p.part, config) for p, tried in self.tried.items() for config in tried}

    def time_us(self, candidate: Candidate) -> float:
        """Infinite where the configuration does not fit."""
        time_us = self.recording.trials[candidate].measurement.median_us or math.inf
        return self.tried[candidate.point].setdefault(candidate.config, time_us)


Contender = Callable[[Setting, Meter, int], None]
Seeds = Mapping[Point, Sequence[Config]]


def ours(seeds: Seeds) -> Contender:
    """This project's search, as `tuner tune` runs it."""

    def contend(setting: Setting, meter: Meter, seed: int) -> None:
        model = Predictor(setting.device, setting.recording.problem).estimate_all
        at, points = setting.at, setting.points
        search = Search(setting.spaces, points, seeds, setting.budget, seed, at, model)
        while asked := search.ask():
            for candidate in asked:
                meter.time_us(candidate)
                search.tell(candidate, setting.recording.trials[candidate].measurement)

    return contend


def seeds_from(
    setting: Setting, files: list[ShippedFile], *, heuristic: bool = True, model: bool = True
) -> Seeds:
    """The engine's own choice for each point, the winners in `files`, the device model's firsts."""
    problem, device, engine = setting.recording.problem, setting.device, setting.engine
    known = {
        point: [moe_engine(engine).default_config(problem, device, point.batch_size)]
        for point in setting.points
        if heuristic
    }
    predictor = Predictor(device, problem, files)
    foreseen = {
        point: predictor.shortlist(point, setting.at[point].configs(), FORESEEN)
        for point in setting.points
        if model
    }
    return seeds_for(
        setting.at, problem, device, setting.spaces, files, known=known, foreseen=foreseen
    )


def random_search(setting: Setting, meter: Meter, seed: int) -> None:
    """Half of the kernels for each gemm, drawn at random; each point tries its own draw of them."""
    rng = random.Random(seed)  # noqa: S311
    pools = {
        gemm: rng.sample(space.configs(), setting.budget.kernels // len(setting.spaces))
        for gemm, space in setting.spaces.items()
    }
    for point in setting.points:
        for config in rng.sample(pools[point.part], setting.budget.per_point):
            meter.time_us(Candidate(point, config))


def plain_tpe(*, limit_kernels: bool) -> Contender:
    """Optuna's TPE as it comes, a study a point, all points in turn.

    A repeat costs nothing. Without `limit_kernels` it may compile as many as it likes;
    with it, once the kernels are spent, what it asks for is replaced by the nearest compiled one.
    """

    def contend(setting: Setting, meter: Meter, seed: int) -> None:
        studies = {
            point: optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed * 1000 + i))
            for i, point in enumerate(setting.points)
        }
        kernels: dict[Gemm, dict[Config, None]] = {gemm: {} for gemm in setting.spaces}
        for _ in range(4 * setting.budget.per_point):  # repeats: so often at most
            for point, study in studies.items():
                if len(meter.tried[point]) < setting.budget.per_point:
                    spent = sum(map(len, kernels.values())) >= setting.budget.kernels
                    pool = kernels[point.part] if limit_kernels and spent else None
                    _tpe_step(setting, meter, point, study, pool)
                    kernels[point.part].update(dict.fromkeys(meter.tried[point]))

    return contend


def _tpe_step(
    setting: Setting,
    meter: Meter,
    point: Point,
    study: optuna.Study,
    pool: dict[Config, None] | None,
) -> None:
    space = setting.spaces[point.part]
    trial = study.ask()
    config = space.at(
        {name: trial.suggest_int(name, 0, len(v) - 1) for name, v in space.axes.items()}
    )
    if pool is not None and config not in pool:
        rest = [near for near in pool if near not in meter.tried[point]]
        if not rest:
            return
        config = min(rest, key=lambda near: _steps(space, near, config))
    if not space.legal(config):
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return
    time_us = meter.time_us(Candidate(point, config))
    if math.isinf(time_us):
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    else:
        study.tell(trial, time_us)


def _steps(space: Space, a: Config, b: Config) -> int:
    here, there = space.indices(a), space.indices(b)
    return sum(abs(here[name] - there[name]) for name in here)


def ablations(setting: Setting) -> Iterator[tuple[str, Contender]]:
    """The search with less or other knowledge than it has in the field."""
    files = without_twins(setting)
    E, target = setting.recording.problem.E, setting.device.target
    rng = random.Random(0)  # noqa: S311
    subsets = {
        "all other files": files,
        f"no file with E within 1 of {E}": [f for f in files if abs(f.key.E - E) > 1],
        "no file of this architecture": [f for f in files if _target(f.key.device) != target],
        "fp8_w8a8 without blocks only": [
            f for f in files if f.key.dtype == "fp8_w8a8" and not f.key.block_shape
        ],
        "int8_w8a8 only": [f for f in files if f.key.dtype == "int8_w8a8"],
        "16-bit only": [f for f in files if f.key.dtype is None],
        "half of the files, drawn at random": rng.sample(files, len(files) // 2),
        "a dozen files, drawn at random": rng.sample(files, 12),
        "no file: the device model and the heuristic": [],
    }
    for name, subset in subsets.items():
        yield f"{name} ({len(subset)})", ours(seeds_from(setting, subset))
    yield "all other files, no heuristic", ours(seeds_from(setting, files, heuristic=False))
    yield "all other files, no device model", ours(seeds_from(setting, files, model=False))
    yield "the device model alone", ours(seeds_from(setting, [], heuristic=False))
    yield "nothing known", ours({})


def _target(name: str) -> Target | None:
    try:
        return find_device(name).target
    except UnknownDevice:
        return None


def without_twins(setting: Setting) -> list[ShippedFile]:
    problem = setting.recording.problem
    twins = {(E, problem.N) for E in (problem.E - 1, problem.E, problem.E + 1)}
    return [
        f
        for f in moe_engine(setting.engine).shipped()
        if (f.key.E, f.key.intermediate_size) not in twins
    ]


def measure(setting: Setting, name: str, contender: Contender, seed: int) -> Run:
    meter = Meter(setting.recording)
    started = time.perf_counter()
    contender(setting, meter, seed)
    best = dict.fromkeys(setting.points, math.inf)
    for candidate, trial in setting.recording.trials.items():
        time_us = trial.measurement.median_us or math.inf
        best[candidate.point] = min(best[candidate.point], time_us)
    return Run(
        name,
        seed,
        {str(p): min(tried.values()) / best[p] - 1 for p, tried in meter.tried.items()},
        max(map(len, meter.tried.values())),
        len({config for _, config in meter.kernels}),
        len(meter.kernels),
        time.perf_counter() - started,
    )


def row(runs: list[Run]) -> str:
    regrets = [regret for run in runs for regret in run.regrets.values()]
    geomean = math.exp(statistics.fmean(map(math.log1p, regrets))) - 1
    worst_run = max(
        math.exp(statistics.fmean(map(math.log1p, run.regrets.values()))) - 1 for run in runs
    )
    cells = (
        runs[0].contender,
        f"{geomean:.3%}",
        f"{worst_run:.3%}",
        f"{max(regrets):.2%}",
        max(run.most_measurements for run in runs),
        max(run.configs for run in runs),
        max(run.kernels for run in runs),
        f"{statistics.fmean(run.wall_s for run in runs):.1f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


TITLES = (
    "search",
    "geomean regret",
    "worst seed's geomean",
    "worst point",
    "measurements a point",
    "configs",
    "kernels",
    "wall s",
)
HEADER = f"| {' | '.join(TITLES)} |\n{'|---' * len(TITLES)}|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recording", type=Path, nargs="?", default=RECORDING)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--engine", default="sglang==0.5.16")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore")

    recording = read_recording(options.recording)
    device = recording.device
    if device is None:
        parser.error("name the recording after its GPU: h200_...")
    spaces = {gemm: space_for(recording.problem, device, gemm) for gemm in Gemm}
    size = max(map(len, spaces.values()))
    budget = budget_for(Effort.STANDARD, len(recording.points), size)
    setting = Setting(recording, device, find_engine(options.engine), spaces, budget)

    tables = {
        "contenders": [
            ("this project's search", ours(seeds_from(setting, without_twins(setting)))),
            ("plain TPE", plain_tpe(limit_kernels=True)),
            ("plain TPE, kernels unlimited", plain_tpe(limit_kernels=False)),
            ("random search", random_search),
        ],
        "ablations": list(ablations(setting)),
    }
    runs = []
    for contenders in tables.values():
        print(HEADER)
        for name, contender in contenders:
            of_this = [measure(setting, name, contender, seed) for seed in range(options.runs)]
            print(row(of_this), flush=True)
            runs += of_this
        print()
    RESULTS.mkdir(parents=True, exist_ok=True)
    stem = options.recording.name.partition(".")[0]
    document = {"recording_sha256": recording.sha256, "budget": asdict(budget)}
    out = RESULTS / f"search_{stem}.json"
    rows = ",\n".join(json.dumps(asdict(run)) for run in runs)
    out.write_text(f'{{"about": {json.dumps(document)},\n"runs": [\n{rows}\n]}}\n')
    print(f"Every run: {out}")


if __name__ == "__main__":
    main()
