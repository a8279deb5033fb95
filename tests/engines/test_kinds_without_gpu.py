"""Each type and quantisation of each family and engine is measured on the CPU, up to its launch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import gcd
from pathlib import Path

import pytest
from gpu_stand_ins import in_place_of
from kind_rows import CASES, GQA, MOE, SSD, few_points
from tiers import only

from tuner.compile import Farm, KernelCompiler
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.measure.gpu import INPUT_SEED
from tuner.measure.messages import point_fields
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.registry import family_of, parse_problem
from tuner.problems.results import Status
from tuner.tuning.request import Effort, KnownBefore, PreparedRun, Request, parse_source, prepare
from tuner.tuning.space import Space

H100 = find_device("H100")
FEW = 3  # configurations at a point that is not its kernel's largest
COMPILED = [
    (f"{MOE},dtype=fp8_w8a8", "sglang==0.5.23"),
    (f"decode_attention:{GQA}", "sglang==0.5.16"),
]


# What says nothing of a release is measured with one release on each commit.
FURTHER = {
    (f"{MOE},dtype=float16", "sglang==0.5.16"),
    (f"{MOE},dtype=float16", "vllm==0.33.0"),
    (f"{MOE},dtype=int8_w8a16,block_shape=0x128", "sglang==0.5.16"),
    (f"{MOE},dtype=fp8_w8a8,block_shape=128x128,ep=4", "sglang==0.5.16"),
    (f"{MOE},dtype=bfloat16,shared_experts=1", "sglang==0.5.16"),
    (f"{SSD},dtype=float16,state_dtype=float16", "vllm==0.33.0"),
}
EACH_COMMIT = [case for case in CASES if case not in FURTHER]


def prepared_for(text: str, engine: str) -> PreparedRun:
    problem = parse_problem(text)
    request = Request(
        problem=problem,
        device=H100,
        engine=find_engine(engine),
        source=parse_source("gpu"),
        selection=few_points(problem),
        effort=Effort.QUICK,
    )
    return prepare(request)


def covering(space: Space) -> Iterator[Config]:
    """Configurations that have each value of each axis, as far as one is legal."""
    left = {(axis, i) for axis, values in space.axes.items() for i in range(len(values))}
    configs = space.configs()
    step = next(n for n in itertools.count(len(configs) * 5 // 8) if gcd(n, len(configs)) == 1)
    for at in range(len(configs)):
        config = configs[at * step % len(configs)]  # far from the one before
        if not left:
            return
        values = set(space.indices(config).items())
        if values & left:
            yield config
        left -= values


def configs_at(prepared: PreparedRun, point: Point) -> list[Config]:
    """What the engine would run at a point, and others: at the largest point of a kernel, each
    value of each axis.
    """
    own = prepared.goal(KnownBefore()).incumbents.get(point, {})
    largest = max(one for one in prepared.points if one.part is point.part)
    most = None if point == largest else FEW
    others = itertools.islice(covering(prepared.spaces[point.part]), most)
    return list(dict.fromkeys([*own.values(), *others]))


def compiled(prepared: PreparedRun, candidate: Candidate) -> set[object]:
    """The variants that compile processes make for a candidate."""
    about = prepared.request.problem, H100.target
    further = prepared.companions(candidate) if prepared.companions else ()
    bound = [prepared.kernels.binder(*about)(candidate), *further]
    return {binding.variant() for _, binding in bound}


@pytest.mark.parametrize(("text", "engine"), only(EACH_COMMIT, CASES))
def test_every_kind_is_measured_up_to_its_launch(text: str, engine: str, tmp_path: Path) -> None:
    prepared = prepared_for(text, engine)
    problem = prepared.request.problem
    setup = {
        "engine": engine,
        "lifted_dir": str(tmp_path),
        "problem": problem.spec(),
        "routing": None,
        "seed": INPUT_SEED,
        "thorough": True,
        "points": [point_fields(point) for point in prepared.points],
    }
    with in_place_of(H100) as seen:
        session = family_of(problem).module("gpu").open_session(problem, setup)
        for point in prepared.points:
            configs = configs_at(prepared, point)
            for config in configs:
                request = {**point_fields(point), "config": dict(config), "best_us": None}
                answer = session.measure(request)
                assert answer["status"] == Status.OK.value, (point, config, answer)
                # A measuring process loads what compile processes have made.
                assert compiled(prepared, Candidate(point, config)) <= seen.kernels
            raced = [dict(config) for config in configs[:2]]
            found = session.race({**point_fields(point), "configs": raced, "rounds": 3})
            assert len(found["measurements"]) == len(raced)
    assert seen.launches


@pytest.mark.parametrize(("text", "engine"), only(COMPILED, CASES))
def test_one_candidate_of_each_kernel_of_every_kind_compiles(
    text: str, engine: str, farm: Farm
) -> None:
    prepared = prepared_for(text, engine)
    problem = prepared.request.problem
    firsts = {point.part: point for point in reversed(prepared.points)}.values()
    candidates = [Candidate(point, configs_at(prepared, point)[0]) for point in firsts]
    bind = prepared.kernels.binder(problem, H100.target)
    compiler = KernelCompiler(farm, bind, H100, prepared.companions)
    compiler.submit(candidates)
    found = {}
    while len(found) < len(candidates):
        found.update(compiler.poll(wait=True))
    assert {part.value for part in problem.parts} == {one.point.part.value for one in found}
    assert not [(one, result) for one, result in found.items() if not result.ok]
