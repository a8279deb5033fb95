"""What is chosen for a rank of expert parallelism, at the load that the rank has.

No recording was made of a rank among several, so others stand in. A layer with all its experts on
one GPU has M x top_k slots for M tokens. A rank with as many experts, which is one of ep, has on
average as many slots for M x ep tokens. So the times that were recorded for M tokens are taken as
the rank's for M x ep, and a run of the rank's problem is replayed. Which recorded size answers is
read from the routing that the tuner itself draws for the rank: if it drew another load, the run
would see other times.

This shows that the load is the right one, and that incumbents, seeds, the device model and the
search choose well at it. It does not show what the slots of other ranks cost (sglang's blocks of
-1, larger grids, more rows of A), a load that varies from step to step, or sizes without a
recording.
"""

import math
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from tiers import only

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.families.fused_moe.inputs import local_slots, random_routing
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.families.fused_moe.recording import Recording, read_recording, write_recording
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import MeasureKind
from tuner.store.results import ResultStore
from tuner.tuning.request import Request, Source, prepare
from tuner.tuning.run import execute, open_source

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
LARGEST = 4096  # the largest key of the engine's files
DRAWN = 1024  # tokens, at least: of few, a rank may have no slot
EVERY = sorted(path.name for path in RECORDINGS.glob("h?00_E*"))
R1 = "h200_E256_N256_K7168_top8_fp8w8a8_b128.csv.gz"


def drawn_tokens(rank: FusedMoe, batch_size: int) -> float:
    """The tokens that would give a layer with all its experts here the slots that are drawn."""
    seeds = range(max(1, DRAWN // batch_size))
    drawn = (random_routing(rank, batch_size, device="cpu", seed=seed) for seed in seeds)
    return mean(len(local_slots(routing)) for routing in drawn) / rank.top_k


def of_rank(recording: Recording, rank: FusedMoe, path: Path) -> list[int]:
    """Write the recording of a rank of `rank.ep`; return the recorded sizes that it is made of."""
    sizes = sorted({point.batch_size for point in recording.points})
    here = [size for size in sizes if size * rank.ep <= LARGEST]
    trials = []
    for size in here:
        tokens = drawn_tokens(rank, size * rank.ep)
        answering = min(sizes, key=lambda one: abs(math.log(one / tokens)))
        trials += [
            replace(t, candidate=Candidate(Point(size * rank.ep, c.point.part), c.config))
            for c, t in recording.trials.items()
            if c.point.batch_size == answering
        ]
    write_recording(path, rank, trials)
    return here


def both_us(recording: Recording, size: int, pair: dict[Gemm, Config]) -> float:
    """The recorded time of both gemms."""
    found = [recording.trials[Candidate(Point(size, gemm), pair[gemm])] for gemm in Gemm]
    return sum(trial.measurement.median_us for trial in found)


def best_us(recording: Recording, size: int) -> float:
    """The recorded time of the fastest pair, which has one BLOCK_SIZE_M."""
    fastest: dict[tuple[int, Gemm], float] = {}
    for candidate, trial in recording.trials.items():
        if candidate.point.batch_size == size and trial.measurement.timed:
            key = candidate.config["BLOCK_SIZE_M"], candidate.point.part
            fastest[key] = min(fastest.get(key, math.inf), trial.measurement.median_us)
    blocks = {block for block, _ in fastest}
    return min(sum(fastest.get((block, gemm), math.inf) for gemm in Gemm) for block in blocks)


def regrets_of(name: str, ep: int, folder: Path) -> list[float]:
    """How much slower what is chosen is than the best, by size, at the load that the rank has."""
    recording = read_recording(RECORDINGS / name)
    rank = replace(recording.problem, ep=ep)
    sizes = of_rank(recording, rank, folder / name)
    source = Source(MeasureKind.REPLAY, folder / name)
    card, engine = find_device(name.partition("_")[0]), find_engine("sglang==0.5.16")
    request = Request(rank, card, engine, source)
    with Workbench() as workbench, ResultStore.open("sqlite://") as store:
        report = execute(prepare(request), open_source(request, workbench), store)
    chosen = {entry.point: entry.config for entry in report.entries}
    pairs = {size: {gemm: chosen[Point(size * ep, gemm)] for gemm in Gemm} for size in sizes}
    return [both_us(recording, m, pairs[m]) / best_us(recording, m) - 1 for m in sizes]


@pytest.mark.parametrize("ep", only([8], [1, 8, 32]))
@pytest.mark.parametrize(
    "names", [pytest.param([R1], id="R1"), pytest.param(EVERY, id="all", marks=pytest.mark.slow)]
)
def test_what_a_rank_s_file_holds_is_best_at_the_rank_s_load(names, ep, tmp_path):
    regrets = [regret for name in names for regret in regrets_of(name, ep, tmp_path)]
    assert len(regrets) > 2 * len(names)
    assert mean(regrets) <= 0.01
