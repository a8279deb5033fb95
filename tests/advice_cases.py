"""Winners as advice is given on them: Triton's times beside those of other backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone

from tuner.devices.table import find_device
from tuner.families.attention.problem import parse_attention
from tuner.families.dense_gemm.problem import parse_dense_gemm
from tuner.problems.points import Config, Part, Point, Problem
from tuner.problems.registry import parse_problem
from tuner.problems.results import Compiled, Entry, Environment, Incumbent, Status, Winner

SERVED = ("sglang", "0.5.16")
MOE = parse_problem("fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128")
GEMM = parse_dense_gemm("block_gemm:N=7168,K=2048,dtype=fp8_w8a8,block=128x128")
OTHER_GEMM = parse_dense_gemm("block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128")
CHANNEL = parse_dense_gemm("channel_gemm:N=7168,K=2048,dtype=fp8_w8a8")
_SHAPE = "q_heads=32,kv_heads=4,Lq=128,Lv=128,dtype=bfloat16"
EXTEND = parse_attention(f"extend_attention:{_SHAPE}")
DECODE = parse_attention(f"decode_attention:{_SHAPE}")
OWN, TUNED, NONE = Config({"X": 1}), Config({"X": 2}), Config({})


def entries(
    problem: Problem,
    tuned: float = 10.0,
    own: float | None = 20.0,
    others: Mapping[str, float] | None = None,
    *,
    sizes: tuple[int, ...] = (1, 8),
    without_us: str = "",
    status: Status = Status.OK,
    config: Config = TUNED,
) -> list[Entry]:
    """An entry for each part and size. A backend of `others` runs all parts as one kernel."""
    found = []
    for size in sizes:
        for at, part in enumerate(problem.parts):
            there = {
                name: Incumbent(NONE, Status.OK, 0.0 if at else us, backend=name)
                for name, us in (others or {}).items()
            }
            ran = Status.OUT_OF_RESOURCES if own is None else status
            mine = {"default": Incumbent(OWN, ran, own), **there}
            place = _point(part, size)
            compiled = Compiled(Status.OK)
            found.append(
                Entry(place, config, status, tuned, compiled, mine, "why", without_us=without_us)
            )
    return found


def _point(part: Part, size: int) -> Point:
    tokens = (1, 1024) if part.value in ("decode", "reduce", "extend") else (0, 0)
    return Point(size, part, *tokens)


def winners(
    problem: Problem, some: list[Entry], device: str = "H200", **place: str
) -> list[Winner]:
    engine, version = SERVED
    here = Environment(find_device(device).name, engine, version, "3.6.0", "kernels")
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return [Winner(problem, replace(here, **place), entry, 1, at) for entry in some]


class Served:
    """An engine as far as advice asks."""

    name, version = SERVED
