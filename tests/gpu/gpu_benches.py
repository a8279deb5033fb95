"""A bench on the first GPU of this machine, with the kernels of an engine that is on its disk."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import cases

from tuner.bindings.sglang.attention.binding import lift_attention
from tuner.bindings.sglang.fused_moe.binding import lift_fused_moe
from tuner.compile import Farm, KernelCompiler
from tuner.devices.table import Device, find_device
from tuner.engines.engine import Engine, find_engine
from tuner.families.attention.problem import Attention
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.families.fused_moe.problem import Gemm
from tuner.measure.gpu import GpuBench, open_gpu_bench
from tuner.measure.gpu_worker import ChildLimits
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate, Config, Point, Problem
from tuner.problems.results import Trial

POINTS = tuple(Point(size, gemm) for size in (3, 8, 256) for gemm in Gemm)


def this_device() -> Device:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return find_device(names.splitlines()[0].strip().replace(" ", "_"))


@contextlib.contextmanager
def open_bench(
    problem: Problem,
    cache: Path,
    *,
    device: Device | None = None,
    engine: Engine | None = None,
    points: Sequence[Point] = POINTS,
    limits: ChildLimits = ChildLimits(),
    workbench: Workbench | None = None,
    thorough: bool = False,
) -> Iterator[GpuBench]:
    device, engine = device or this_device(), engine or find_engine("sglang")
    if isinstance(problem, Attention):
        bind = lift_attention(engine).binder(problem, device.target)
    elif isinstance(problem, DenseGemm):
        bind = gemm_engine(engine).lift().binder(problem, device.target)
    else:
        bind = lift_fused_moe(engine).binder(problem, device.target)
    with Farm(cache_dir=cache) as farm, contextlib.ExitStack() as opened:
        yield open_gpu_bench(
            KernelCompiler(farm, bind, device),
            farm,
            engine=f"{engine.name}=={engine.version}",
            problem=problem,
            device=device,
            gpu="0",
            routing=None,
            points=points,
            workbench=workbench or opened.enter_context(Workbench(limits=limits)),
            thorough=thorough,
        )


def trials_of(bench: GpuBench, candidates: Sequence[Candidate]) -> dict[Candidate, Trial]:
    bench.submit(candidates)
    found: dict[Candidate, Trial] = {}
    while some := bench.poll(wait=True):
        found.update((trial.candidate, trial) for trial in some)
    return found


def config(block_m: int, *, group: int = 1, block_n: int = 64, stages: int = 3) -> Config:
    return cases.config(block_m, block_n, 64, stages=stages, group=group)
