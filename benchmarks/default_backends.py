"""What an engine runs by default on one GPU, beside its other backends and tuned Triton.

    python benchmarks/default_backends.py OUT [--cases deepseek-r1-rank,qwen3-30b-a3b,qwen3-32b-fp8]
                                          [--families block_gemm,extend_attention,..]
                                          [--engine sglang==0.5.16] [--device H100] [--effort quick]
                                          [--limit-s 480] [--problem-s 75]
    python benchmarks/default_backends.py --compile deep_gemm|flashinfer [--cases ..] [--part 0/4]

Each problem of a model is tuned as `tuner tune` does, with the backends that this environment has.
OUT/default_backends.json has the microseconds of everything at each point, and why a backend has
none; OUT/default_backends.md is the same as tables, with what an engine's user should do. Both are
written anew after each problem. A problem that takes longer than `--problem-s` is told as far as it
came, and after `--limit-s` no other one begins.

Libraries that compile their kernels at the first call do so in processes of their own at first, all
cores at once: `--compile` is such a process.

The cases are the models of benchmarks/served_models: what one rank computes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_runs import Text, this_device

from tuner.backends.registry import BACKENDS, backends_of, find_backend
from tuner.devices.table import Device, find_device
from tuner.engines.dispatch import Kernel, what_runs
from tuner.engines.engine import Engine, find_engine
from tuner.errors import BadInput
from tuner.export.advice import advise
from tuner.families.attention.problem import Attention, Phase
from tuner.families.attention.selection import AttentionSelection
from tuner.families.attention.workloads import WorkPoint
from tuner.families.dense_gemm.family import GemmSelection
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.families.fused_moe.selection import MoeSelection
from tuner.jobs.targets import resolve_all
from tuner.measure.workbench import Workbench
from tuner.models.serving import Serving
from tuner.problems.backends import title_of
from tuner.problems.points import TRITON, Problem
from tuner.problems.registry import Selection
from tuner.problems.results import Entry, Trial
from tuner.store import Store
from tuner.tuning.request import parse_effort, parse_source
from tuner.tuning.run import open_run
from tuner.tuning.run_request import Request

MODELS = Path(__file__).parent / "served_models"
CASES = ("deepseek-r1-rank", "qwen3-30b-a3b", "qwen3-32b-fp8")
TOKENS = (1, 8, 64, 256, 1024, 4096, 8192)  # rows of A, and tokens of a fused-MoE layer
BETWEEN = (2, 4, 16, 24, 32, 48, 128, 512, 2048)  # rows for which DeepGEMM may take other kernels
EXTEND = ((1, 1024, 0), (1, 8192, 0), (4, 2048, 0), (1, 8192, 24576))
DECODE = tuple((n, 1, cached) for cached in (1024, 8192, 32768) for n in (1, 16, 64))
Row = dict[str, Any]


class OutOfTime(Exception):
    """A problem has taken as long as it may."""


def main() -> None:
    args = _parsed()
    if args.compile:
        {"deep_gemm": compile_deep_gemm, "flashinfer": compile_flashinfer}[args.compile](args)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    device, engine = (
        find_device(args.device) if args.device else this_device(),
        find_engine(args.engine),
    )
    found: Row = {
        "device": device.name,
        "engine": f"{engine.name}=={engine.version}",
        "backends": {b.name: b.version or b.missing for b in BACKENDS},
        "effort": args.effort,
        "problems": [],
    }
    compiling = Compiling(args)
    with Workbench() as workbench, Store.open(f"sqlite:///{args.out.resolve()}/tuner.db") as store:
        for case, problem in problems_of(args, device):
            if time.monotonic() - began > args.limit_s:
                print(f"no time for {problem.spec()}", flush=True)
                continue
            compiling.wait_for(problem)
            asked = Asked(problem, device, engine, args)
            row = {"case": case, **measured(asked, workbench, store)}
            found["problems"].append(row)
            found["seconds"] = time.monotonic() - began
            (args.out / "default_backends.json").write_text(json.dumps(found, indent=1) + "\n")
            (args.out / "default_backends.md").write_text(markdown(found))
            print(table(row), flush=True)
    compiling.end()


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Text)
    parser.add_argument("out", type=Path, nargs="?", default=Path("default_backends"))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--families", help="default: all that the models have")
    parser.add_argument("--engine", default="sglang==0.5.16")
    parser.add_argument("--device", help="default: this GPU")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--limit-s", type=float, default=480.0)
    parser.add_argument("--problem-s", type=float, default=75.0)
    parser.add_argument("--compile", choices=["deep_gemm", "flashinfer"])
    parser.add_argument("--part", default="0/1", help="which of how many, of --compile")
    return parser.parse_args()


# What is measured


@dataclass
class Asked:
    """A problem, and what the engine runs for it without this tuner."""

    problem: Problem
    device: Device
    engine: Engine
    args: argparse.Namespace
    trials: dict[tuple[str, str], list[Trial]] = field(default_factory=lambda: defaultdict(list))

    @property
    def request(self) -> Request:
        return Request(
            problem=self.problem,
            device=self.device,
            engine=self.engine,
            source=parse_source("gpu"),
            selection=selection_of(self.problem),
            effort=parse_effort(self.args.effort),
        )

    @property
    def runs(self) -> Kernel | None:
        """What runs in the engine's own image, which has each backend that it may run."""
        runs = what_runs(self.engine.name, self.engine.version, self.problem, self.device)
        return runs.without_us({b.name for b in BACKENDS}) if runs else None


def problems_of(args: argparse.Namespace, device: Device) -> Iterator[tuple[str, Problem]]:
    """The problems of the cases. Attention comes last, because FlashInfer compiles longest."""
    engine = find_engine(args.engine)
    serving = Serving(engine=engine.name, engine_version=engine.version, device=device)
    wanted = args.families.split(",") if args.families else None
    pairs = [
        (case, problem)
        for case in args.cases.split(",")
        for target in resolve_all(str(MODELS / f"{case}.json"), serving)
        for problem in target.problems
        if wanted is None or problem.family in wanted
    ]
    order = ["block_gemm", "channel_gemm", "fused_moe", "extend_attention", "decode_attention"]
    rank = {name: at for at, name in enumerate(order)}
    yield from sorted(pairs, key=lambda pair: rank.get(pair[1].family, len(order)))


def selection_of(problem: Problem) -> Selection:
    if isinstance(problem, Attention):
        sizes = DECODE if problem.phase is Phase.DECODE else EXTEND
        return AttentionSelection(tuple(WorkPoint(*size) for size in sizes))
    if isinstance(problem, DenseGemm):
        return GemmSelection(TOKENS)
    return MoeSelection(tuple(sorted({*TOKENS, 16})))  # served batches are of 1, 16 and 64


def measured(asked: Asked, workbench: Workbench, store: Store) -> Row:
    """Tune a problem. If it takes too long, what was tried counts."""
    began = time.monotonic()

    def progress(trial: Trial) -> None:
        asked.trials[trial.candidate.point.size, trial.candidate.backend].append(trial)
        if time.monotonic() - began > asked.args.problem_s:
            raise OutOfTime

    row: Row = {"problem": asked.problem.spec(), "family": asked.problem.family}
    kernel = asked.runs
    row["runs"] = kernel and {"backend": kernel.backend, "kernel": kernel.name}
    entries: Sequence[Entry] = ()
    try:
        with open_run(asked.request, workbench) as run:
            report = run.run(store, progress)
        entries = report.entries
        row["totals"] = report.as_json()["totals"]
        winners = store.winners_in(asked.problem, run.environment)
        told = advise(
            asked.problem, winners, asked.device, (asked.engine.name, asked.engine.version)
        )
        row["advice"] = told.as_json()
    except OutOfTime:
        row["stopped"] = "out of time: not raced"
    except BadInput as error:
        row["stopped"] = str(error)
    row["seconds"] = time.monotonic() - began
    row["points"] = points_of(asked, entries)
    return row


def points_of(asked: Asked, entries: Sequence[Entry]) -> list[Row]:
    """A row for each size, with the times of all parts together."""
    sizes = dict.fromkeys(size for size, _ in asked.trials)
    return [_point(asked, size, [e for e in entries if e.point.size == size]) for size in sizes]


def _point(asked: Asked, size: str, entries: Sequence[Entry]) -> Row:
    others = {name: trials[0] for (at, name), trials in asked.trials.items() if at == size}
    others.pop(TRITON, None)
    row: Row = {
        "size": size,
        "us": _triton_us(entries) if entries else _best_us(asked, asked.trials[size, TRITON]),
        "why": {},
        "details": {name: trial.measurement.detail for name, trial in others.items()},
        "configs": {e.point.part.value: dict(e.config) for e in entries},
        "reasons": {e.point.part.value: e.reason for e in entries},
    }
    raced: dict[str, float] = defaultdict(float)  # the first part has the time of all
    for name, one in ((n, one) for e in entries for n, one in e.incumbents.items()):
        raced[name] += one.median_us or 0.0
    for backend in backends_of(asked.problem.family):
        name, tried = backend.name, others.get(backend.name)
        us = raced.get(name) or (tried.measurement.median_us if tried else None)
        if us:
            row["us"][name] = us
        elif tried:
            row["why"][name] = f"{tried.measurement.status.value}: {tried.measurement.detail}"
        else:
            row["why"][name] = backend.missing or "not tried"
    return row


def _triton_us(entries: Sequence[Entry]) -> dict[str, float]:
    """What Triton takes for all parts with each of its choices."""
    parts = []
    for entry in entries:
        own = {n: one.median_us for n, one in entry.incumbents.items() if one.backend == TRITON}
        parts.append({"tuned": entry.median_us, **own})
    found = {}
    for name in {name for part in parts for name in part}:
        times = [part.get(name, part.get("default")) for part in parts]
        if all(times):
            found[name] = sum(time_ for time_ in times if time_)
    return found


def _best_us(asked: Asked, trials: Sequence[Trial]) -> dict[str, float]:
    """The best that was tried, of a problem that was stopped."""
    best: dict[Any, float] = {}
    for trial in trials:
        part, us = trial.candidate.point.part, trial.measurement.median_us
        if us:
            best[part] = min(best.get(part, us), us)
    return {"tuned": sum(best.values())} if len(best) == len(asked.problem.parts) else {}


# Tables


def without_us(row: Row, point: Row) -> float | None:
    """The microseconds of what runs by default at a point."""
    runs = row["runs"]
    if runs is None:
        return None
    us: Mapping[str, float] = point["us"]
    if runs["backend"] != TRITON:
        return us.get(runs["backend"])
    return us.get("shipped", us.get("default"))


def columns(row: Row) -> list[str]:
    names = ["default", "shipped", "tuned", *(b.name for b in backends_of(row["family"]))]
    return [name for name in names if any(name in point["us"] for point in row["points"])]


def table(row: Row) -> str:
    """One problem as a table of Markdown."""
    names = columns(row)
    titles = {"default": "Triton default", "shipped": "Triton shipped", "tuned": "Triton tuned"}
    heads = ["size", *(titles.get(name, title_of(name)) for name in names), "gain over default"]
    runs = row["runs"]["kernel"] if row["runs"] else "not known"
    told = row.get("advice")
    advice = (
        f"Advice: {told['advice']}: {told['reason']}" if told else f"No advice: {row['stopped']}"
    )
    lines = [
        f"### {row['case']}: `{row['problem']}`",
        "",
        f"Runs by default: {runs}. {advice}.",
        "",
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
    ]
    for point in row["points"]:
        own, tuned = without_us(row, point), point["us"].get("tuned")
        cells = [f"{point['us'][name]:.1f}" if name in point["us"] else "-" for name in names]
        gain = f"{own / tuned:.2f}x" if own and tuned else "not measured"
        lines.append(f"| {point['size']} | {' | '.join(cells)} | {gain} |")
    why = {f"{title_of(n)}: {text}" for point in row["points"] for n, text in point["why"].items()}
    return "\n".join([*lines, "", *(f"- {text}" for text in sorted(why)), ""])


def markdown(found: Row) -> str:
    have = ", ".join(f"{title_of(n)} ({text})" for n, text in found["backends"].items())
    card = f"{found['device']}, {found['engine']}, effort {found['effort']}; microseconds."
    head = f"{card}\n\n{have}.\n"
    return "\n".join([head, *map(table, found["problems"])])


# Libraries that compile at the first call


class Compiling:
    """The processes that compile libraries' kernels, and what has to wait for them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._processes: dict[str, list[subprocess.Popen[bytes]]] = {}
        parts = max(2, min(6, (os.cpu_count() or 2) // 2))
        for name, count in (("deep_gemm", parts), ("flashinfer", len(FLASHINFER))):
            backend = find_backend(name)
            if backend is None or backend.missing:
                continue
            words = [sys.executable, __file__, "--compile", name, "--cases", args.cases]
            words += ["--engine", args.engine]
            if args.families:
                words += ["--families", args.families]
            self._processes[name] = [
                subprocess.Popen([*words, "--part", f"{at}/{count}"]) for at in range(count)
            ]

    def wait_for(self, problem: Problem) -> None:
        """Wait for what compiles kernels of the problem's family."""
        for name, processes in self._processes.items():
            backend = find_backend(name)
            if backend is not None and problem.family in backend.families:
                for process in processes:
                    process.wait()

    def end(self) -> None:
        for process in (one for some in self._processes.values() for one in some):
            process.terminate()
            process.wait()


def _part_of(items: Sequence[Any], part: str) -> list[Any]:
    at, count = (int(number) for number in part.split("/"))
    return list(items[at::count])


def compile_deep_gemm(args: argparse.Namespace) -> None:
    """Run each GEMM of the cases once: DeepGEMM keeps the kernels on disk."""
    import torch  # noqa: PLC0415 (the process that measures is another one)

    from tuner.backends import deep_gemm  # noqa: PLC0415
    from tuner.backends.operands import Gemm  # noqa: PLC0415

    device = find_device(args.device) if args.device else this_device()
    sizes = [
        (problem, m)
        for _, problem in problems_of(args, device)
        if isinstance(problem, DenseGemm) and problem.block == deep_gemm.BLOCK
        for m in (*TOKENS, *BETWEEN)
    ]
    began = time.monotonic()
    for problem, m in _part_of(sizes, args.part):
        n, k = problem.N, problem.K

        def some(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.ones((rows, columns), device="cuda").to(dtype)

        operands = Gemm(
            a=some(m, k, torch.float8_e4m3fn),
            b=some(n, k, torch.float8_e4m3fn),
            a_scale=some(m, k // 128, torch.float32),
            b_scale=some(-(-n // 128), k // 128, torch.float32),
            out=some(m, n, torch.bfloat16),
            block=deep_gemm.BLOCK,
        )
        (call,) = deep_gemm.gemm([operands])
        call()
    torch.cuda.synchronize()
    print(f"DeepGEMM {args.part}: {time.monotonic() - began:.0f} s", flush=True)


# Heads that need other kernels of FlashInfer: phase, query heads, key heads, Lq, Lv.
FLASHINFER = (
    ("extend", 32, 4, 128, 128),
    ("decode", 32, 4, 128, 128),
    ("decode", 16, 1, 576, 512),
    ("extend", 16, 16, 192, 128),
)


def compile_flashinfer(args: argparse.Namespace) -> None:
    """Run attention of each kind once: FlashInfer keeps the kernels on disk."""
    import torch  # noqa: PLC0415

    from tuner.backends import flashinfer  # noqa: PLC0415
    from tuner.backends.operands import Attention as Operands  # noqa: PLC0415

    began = time.monotonic()
    for phase, q_heads, kv_heads, keys, values in _part_of(FLASHINFER, args.part):
        new, total = (1, 256) if phase == "decode" else (256, 256)

        def some(*shape: int) -> torch.Tensor:
            return torch.ones(shape, device="cuda", dtype=torch.bfloat16)

        cache = some(total, kv_heads, keys)
        operands = Operands(
            q=some(new, q_heads, keys),
            k_cache=cache,
            v_cache=cache[..., :values] if keys == 576 else some(total, kv_heads, values),
            out=some(new, q_heads, values),
            slots=torch.arange(total, device="cuda", dtype=torch.int32),
            new=(new,),
            total=(total,),
            scale=keys**-0.5,
            window=0,
            sinks=None,
            logit_cap=0.0,
            latent=keys == 576,
        )
        try:
            (call,) = flashinfer.attention([operands])
            call()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001  # the table says more
            text = " ".join(str(error).split())[-1500:]
            print(f"FlashInfer {phase} {keys}: {type(error).__name__}: {text}", flush=True)
        print(f"FlashInfer {phase} {keys}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
