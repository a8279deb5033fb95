"""Dense GEMMs on a GPU: kernels are right, and one command's shapes share processes and kernels."""

from __future__ import annotations

import random

import pytest
import torch
from cases import tuned
from gpu_benches import open_bench, this_device, trials_of

from tuner.backends.registry import BACKENDS
from tuner.engines.engine import find_engine
from tuner.families.dense_gemm.engine import GemmEngine, gemm_engine
from tuner.families.dense_gemm.family import GemmSelection
from tuner.families.dense_gemm.gpu import PLACES, GemmBatches
from tuner.families.dense_gemm.problem import DenseGemm, DensePart, parse_dense_gemm
from tuner.families.dense_gemm.space import gemm_space, space_at
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Status
from tuner.store.results import ResultStore
from tuner.tuning.request import Effort, Request, parse_source

pytestmark = pytest.mark.gpu

NEWEST = "sglang==0.5.23"  # the first with files per channel, SWAP_AB and SPLIT_K
FP8 = "block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128"
PROBLEMS = [
    (FP8, "sglang==0.5.16"),
    ("block_gemm:N=640,K=512,dtype=fp8_w8a8,block=128x128,out=float16", "sglang==0.5.16"),
    ("block_gemm:N=576,K=1536,dtype=int8_w8a8,block=128x128", "sglang==0.5.16"),
    ("block_gemm:N=1152,K=1024,dtype=fp8_w8a8,block=32x32", NEWEST),
    ("channel_gemm:N=768,K=1000,dtype=fp8_w8a8", NEWEST),
]
SIZES = (1, 3, 24, 64, 200, 1024, 4096)
SAMPLED = 4  # configurations of each size, beside the engine's own


def point(M: int) -> Point:
    return Point(M, DensePart.DENSE)


def sampled(problem: DenseGemm, engine: GemmEngine, M: int) -> list[Config]:
    device = this_device()
    choices = engine.lift().choices(problem, device.target)
    space = gemm_space(
        problem, device, choices, lambda c: engine.effective(problem, c, device.target)
    )
    configs = space_at(space, problem, device, M).configs()
    some = random.Random(problem.spec()).sample(configs, min(SAMPLED, len(configs)))  # noqa: S311
    return list(dict.fromkeys([*engine.incumbents(problem, device, M).values(), *some]))


@pytest.mark.parametrize(("text", "release"), PROBLEMS)
def test_configurations_are_right_and_have_times(text, release, tmp_path):
    problem, engine = parse_dense_gemm(text), find_engine(release)
    candidates = [
        Candidate(point(M), config)
        for M in SIZES
        for config in sampled(problem, gemm_engine(engine), M)
    ]
    points = [point(M) for M in SIZES]
    with open_bench(problem, tmp_path, engine=engine, points=points) as bench:
        trials = trials_of(bench, candidates)
    assert len(trials) == len(candidates)
    assert any(trial.measurement.timed for trial in trials.values())
    for candidate, trial in trials.items():
        fits = trial.compiled.ok
        assert fits or trial.compiled.status is Status.OUT_OF_RESOURCES, trial
        if fits:
            assert trial.measurement.status is Status.OK, (candidate, trial.measurement)


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="sglang splits K and swaps operands on sm_90 alone",
)
def test_split_and_swapped_kernels_are_right_and_timed_with_their_reduction(tmp_path):
    problem, engine = parse_dense_gemm(FP8), find_engine(NEWEST)
    plain = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1}
    plain |= {"num_warps": 4, "num_stages": 4}
    extras = [{}, {"SWAP_AB": 1}, {"SPLIT_K": 4}, {"SWAP_AB": 1, "SPLIT_K": 8}]
    candidates = [Candidate(point(M), Config({**plain, **e})) for M in (1, 24, 64) for e in extras]
    points = [point(M) for M in (1, 24, 64)]
    with open_bench(problem, tmp_path, engine=engine, points=points) as bench:
        trials = trials_of(bench, candidates)
        raced = bench.race([Candidate(point(24), c.config) for c in candidates[4:8]], rounds=3)
    assert len(trials) == len(candidates)
    assert {trial.measurement.status for trial in trials.values()} == {Status.OK}
    assert len(raced) == len(extras)


def test_launches_read_cold_weights():
    small, large = (
        GemmBatches(DenseGemm(N, 7168, parse_dense_gemm(FP8).dtype, (128, 128)), 1, 50 << 20)
        for N in (512, 36864)
    )
    assert len(small.at(1).weights) == len(small.at(1).activations)
    assert len(large.at(1).weights) == 1
    small.push_out()  # the copies of the small one stay in L2 together
    assert small._cold.stays_warm
    assert not large._cold.stays_warm


def test_a_race_has_the_same_tensors_at_several_places():
    batches = GemmBatches(parse_dense_gemm(FP8), seed=1, l2_bytes=50 << 20)
    places = batches.places(16)
    assert len(places) == PLACES
    assert len({batch.weights[0].values.data_ptr() for batch in places}) == PLACES
    assert len({batch.activations[0].values.data_ptr() for batch in places}) == PLACES
    assert len({batch.output.data_ptr() for batch in places}) == PLACES
    first = places[0]
    for batch in places[1:]:
        for one, other in zip(batch.weights, first.weights, strict=True):
            assert torch.equal(one.dense(), other.dense())
        for one, other in zip(batch.activations, first.activations, strict=True):
            assert torch.equal(one.dense(), other.dense())


def test_shapes_of_one_command_share_the_child_and_the_kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    texts = [FP8, FP8.replace("N=2112", "N=4608")]
    reports, children = [], []
    with Workbench() as workbench, ResultStore.open(f"sqlite:///{tmp_path}/tuner.db") as store:
        for text in texts:
            request = Request(
                problem=parse_dense_gemm(text),
                device=this_device(),
                engine=find_engine("sglang==0.5.16"),
                source=parse_source("gpu"),
                selection=GemmSelection((1, 64, 1024)),
                effort=Effort.QUICK,
            )
            reports.append(tuned(request, store, workbench))
            children.append(workbench._workers["0"]._child)
    assert children[0] is children[1]
    first, second = (report.totals for report in reports)
    assert second.configs_compiled < first.configs_compiled
    assert second.extra["kernels_cached"] > 0
    libraries = {backend.name for backend in BACKENDS}
    for report in reports:
        assert [entry.point.batch_size for entry in report.entries] == [1, 64, 1024]
        for entry in report.entries:
            assert entry.status is Status.OK
            # The same kernel's other configurations; another library may be faster.
            own = [one for name, one in entry.incumbents.items() if name not in libraries]
            assert own
            assert all(entry.median_us <= 1.005 * one.median_us for one in own)
