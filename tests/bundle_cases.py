"""Bundles of the example clusters, filled with winners that a store gave back."""

from __future__ import annotations

import io
import shlex
import subprocess
import tarfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import cases

from tuner.deploy.bundle.archive import BundleFile
from tuner.deploy.bundle.build import Bundle, build_bundle
from tuner.deploy.cluster import Cluster, read_cluster
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.families.fused_moe.problem import BATCH_SIZES, Gemm
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import (
    Compiled,
    Entry,
    Environment,
    Incumbent,
    MeasureKind,
    RunKey,
    Status,
    Totals,
    Winner,
)
from tuner.store.results import ResultStore

EXAMPLES = Path(__file__).parents[1] / "examples"
CAPTURES = Path(__file__).parent / "data" / "cluster"
# example -> (device, the problem that its ranks run)
CASES = {
    "cluster-l40s-4x8": (
        "L40S",
        "fused_moe:E=256,N=64,K=7168,top_k=8,dtype=int8_w8a8,per_channel_quant",
    ),
    "cluster-h20-2x8-sglang": (
        "H20",
        "fused_moe:E=257,N=128,K=7168,top_k=9,dtype=fp8_w8a8,block_shape=128x128,shared_experts=1",
    ),
    "cluster-h20-2x8-vllm": (
        "H20",
        "fused_moe:E=256,N=128,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128",
    ),
}


# The engine and the Triton that a case's winners are from.
ENGINES = dict.fromkeys(CASES, ("sglang==0.5.16", "3.6.0")) | {
    "cluster-h20-2x8-vllm": ("vllm==0.33.0", "3.8.0")
}


def example(case: str) -> Cluster:
    return read_cluster(EXAMPLES / f"{case}.toml")


def config(point: Point) -> Config:
    n = 64 if point.part is Gemm.UP else 128
    return cases.config(16, n, 128, group=1 + point.batch_size % 7)


def entry(point: Point, chosen: Config, status: Status) -> Entry:
    return Entry(
        point,
        chosen,
        status,
        None if status is Status.INCUMBENT else 12.5,
        Compiled(Status.OK, shared_bytes=20480, n_regs=80, n_spills=0),
        {"default": Incumbent(chosen.replace(num_stages=7), Status.OK, 15.0)},
        "1.200x as fast as the default configuration",
    )


def fill(store: ResultStore, case: str, statuses: dict[int, Status] | None = None) -> list[Winner]:
    """Publish a winner for every batch size, predicted unless told otherwise."""
    device, spec = CASES[case]
    points = tuple(Point(size, gemm) for size in BATCH_SIZES for gemm in Gemm)
    spec_of_engine, triton = ENGINES[case]
    name, _, version = spec_of_engine.partition("==")
    environment = Environment(find_device(device).name, name, version, triton, "abc")
    kind = MeasureKind.PREDICT
    run = store.begin_run(RunKey(parse_problem(spec), environment, kind, "quick", 0, points, "s"))
    known = statuses or {}
    chosen = [
        # vLLM runs both gemms with one configuration.
        entry(
            point,
            config(Point(point.batch_size, Gemm.UP) if name == "vllm" else point),
            known.get(point.batch_size, Status.PREDICTED),
        )
        for point in points
    ]
    store.finish_run(run, chosen, Totals())
    return store.winners(device=environment.device, engine=name, engine_version=version)


@cache
def winners(case: str) -> list[Winner]:
    with ResultStore.open("sqlite://") as store:
        return fill(store, case)


@cache
def built(case: str) -> Bundle:
    return build(case)


def build(
    case: str,
    cluster: Cluster | None = None,
    of: Sequence[Winner] | None = None,
    engine: str = "",
    **options: Any,  # of build_bundle
) -> Bundle:
    """A case's bundle, or one of another cluster, winners or engine."""
    return build_bundle(
        winners(case) if of is None else of,
        cluster or example(case),
        find_engine(engine or ENGINES[case][0]),
        find_device(CASES[case][0]),
        **{"allow_predicted": True, **options},
    )


def files_of(bundle: Bundle) -> dict[str, BundleFile]:
    return unpacked(bundle.archive)


def unpacked(data: bytes) -> dict[str, BundleFile]:
    """The files of an archive, by their paths below its folder."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        found = [(one, archive.extractfile(one)) for one in archive]
        return {
            one.name.partition("/")[2]: BundleFile(file.read(), one.mode)
            for one, file in found
            if file
        }


def place(bundle: Bundle, folder: Path) -> Path:
    """Lay a bundle's files below `folder`, as `tar xf` would."""
    for path, file in files_of(bundle).items():
        target = folder / bundle.name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
        target.chmod(file.mode)
    return folder / bundle.name


def printed(script: Path, *arguments: str) -> list[list[str]]:
    """The words of each command that a script would run."""
    command = ["bash", script, "--print", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines()]
