"""What differs between the machine code that two releases of Triton make of the same kernels.

    python benchmarks/triton_versions.py > benchmarks/results/triton_versions.json

For each architecture it draws configurations at random from the spaces that `tuner tune` searches,
the same number for each kernel, and compiles them with both releases. No GPU is needed. A table
goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from tuner.compile import CompileJob, Farm
from tuner.compile.environment import TritonRelease, installed_triton
from tuner.devices.table import Device, find_device
from tuner.engines.engine import find_engine
from tuner.engines.triton_release import find_triton
from tuner.problems.points import Candidate, Config
from tuner.problems.registry import parse_problem
from tuner.problems.results import Compiled, MeasureKind
from tuner.render import table
from tuner.tuning.request import Source
from tuner.tuning.run import open_run
from tuner.tuning.run_request import Request

CARDS = ("L40S", "H200", "B200", "RTX_PRO_6000_Blackwell_Server_Edition")  # sm_89, 90, 100, 120
PROBLEMS = (
    "fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128",
    "fused_moe:E=128,N=768,K=2048,top_k=8,dtype=bfloat16",
    "fused_moe:E=256,N=64,K=7168,top_k=8,dtype=int8_w8a8,per_channel_quant",
    "block_gemm:N=7168,K=2048,dtype=fp8_w8a8,block=128x128",
    "extend_attention:q_heads=32,kv_heads=8,Lq=128,Lv=128,dtype=bfloat16",
    "decode_attention:q_heads=32,kv_heads=8,Lq=128,Lv=128,dtype=bfloat16,kv_splits=8",
)
SEED = 20261122


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", default=installed_triton())
    parser.add_argument("--new", default="3.8.0")
    parser.add_argument("--engine", default="sglang==0.5.16")
    parser.add_argument("--devices", default=",".join(CARDS))
    parser.add_argument("--each", type=int, default=10, help="configurations of a kernel")
    args = parser.parse_args()
    rows = [row for card in args.devices.split(",") for row in compare(find_device(card), args)]
    versions = {"old": args.old, "new": args.new}
    print(json.dumps({**versions, "engine": args.engine, "seed": SEED, "rows": rows}, indent=1))
    print(table(HEADERS, list(summary(rows))), file=sys.stderr)


def compare(device: Device, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each kernel that is drawn, with both releases' figures."""
    drawn = [one for spec in PROBLEMS for one in draw(spec, device, args)]
    jobs = [job for _, _, job in drawn]
    old, new = (compile_all(jobs, version) for version in (args.old, args.new))
    for (problem, config, _), before, after in zip(drawn, old, new, strict=True):
        yield {
            "target": device.target.name,
            "problem": problem,
            "config": dict(config),
            "old": figures(before),
            "new": figures(after),
        }


def draw(
    spec: str, device: Device, args: argparse.Namespace
) -> Iterator[tuple[str, Config, CompileJob]]:
    """Configurations of the first kernel of a problem."""
    request = Request(
        parse_problem(spec), device, find_engine(args.engine), Source(MeasureKind.PREDICT)
    )
    with open_run(request) as run:
        bind = run._binder()
        point = run.points[len(run.points) // 2]
        configs = run._spaces[point.part].configs()
    drawn = random.Random(f"{SEED} {spec} {device.target.name}").sample(
        configs, min(args.each, len(configs))
    )
    for config in drawn:
        lifted, bound = bind(Candidate(point, config))
        yield spec, config, CompileJob(lifted, bound.variant(), device.target)


def compile_all(jobs: Sequence[CompileJob], version: str) -> list[Compiled]:
    folder = None if version == installed_triton() else find_triton(version)
    with Farm(timeout_s=600, triton=TritonRelease(version, folder)) as farm:
        farm.submit(jobs)
        found = dict(farm.completed())
    return [found[job] for job in jobs]


def figures(compiled: Compiled) -> dict[str, Any]:
    return {
        "status": compiled.status.value,
        "shared_bytes": compiled.shared_bytes,
        "n_regs": compiled.n_regs,
        "n_spills": compiled.n_spills,
    }


HEADERS = (
    *("target", "kernels", "other shared", "fewer regs", "more regs"),
    *("spill", "spill less", "spill more", "spilled bytes"),
)


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    """For each target: kernels that both releases compile, and in how many each figure differs."""
    for target in dict.fromkeys(row["target"] for row in rows):
        here = [row for row in rows if row["target"] == target]
        both = [r for r in here if r["old"]["status"] == r["new"]["status"] == "ok"]

        shared, regs, spills = (
            [row["new"][name] - row["old"][name] for row in both]
            for name in ("shared_bytes", "n_regs", "n_spills")
        )
        yield (
            target,
            f"{len(both)} of {len(here)}",
            sum(change != 0 for change in shared),
            sum(change < 0 for change in regs),
            sum(change > 0 for change in regs),
            sum(row["old"]["n_spills"] > 0 or row["new"]["n_spills"] > 0 for row in both),
            sum(change < 0 for change in spills),
            sum(change > 0 for change in spills),
            " to ".join(str(sum(row[of]["n_spills"] for row in both)) for of in ("old", "new")),
        )


if __name__ == "__main__":
    main()
