"""What a run costs a GPU whose kernels were compiled ahead on another machine.

On any machine with the same wheel of Triton, so with the same Python, without a GPU:
    python benchmarks/h200/compile_ahead.py prepare ARCHIVE.tar --device H100
On the GPU's host:
    python benchmarks/h200/compile_ahead.py measure OUT --archive ARCHIVE.tar --device H100 \
        --runs warm,warm4,cold
Where `prepare` ran, with the store of a run:
    python benchmarks/h200/compile_ahead.py hits OUT/cold.db --archive ARCHIVE.tar --device H100

`prepare` does the R1 job's compile work and packs the shared cache. Each run of `measure` begins
with an empty store and empty caches of its own. `warm` has the shared cache; `warm4` has it, and
four cores; `cold` has none. OUT gets the report and the store of each run, which has every trial.
`runs.json` has wall seconds of the whole command, GPU seconds, idle ones, CPU seconds, kernels
compiled and taken from the cache. A warm run that takes none from the shared cache is an error.
`hits` says how many of the kernels of a run are in the archive.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from tuner.compile.shared import SharedCache
from tuner.compile.shared_results import SharedResults, triton_build
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.families.fused_moe.problem import Gemm
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import MeasureKind
from tuner.tuning.ahead import Ahead
from tuner.tuning.request import Effort, Source
from tuner.tuning.run import open_run
from tuner.tuning.run_request import Request

R1 = "fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128"
KEY = "of-a-benchmark-that-guards-nothing"  # both sides know it
RUNS = ("warm", "warm4", "cold")
FEW_CORES = 4


def main() -> None:
    options = _options()
    {"prepare": _prepare, "measure": _measure, "hits": _hits}[options.step](options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    steps = parser.add_subparsers(dest="step", required=True)
    prepare = steps.add_parser("prepare")
    prepare.add_argument("archive", type=Path)
    measure = steps.add_parser("measure")
    measure.add_argument("out", type=Path)
    measure.add_argument("--archive", type=Path, required=True)
    measure.add_argument("--runs", default=",".join(RUNS))
    measure.add_argument("--gpu", default="0")
    hits = steps.add_parser("hits")
    hits.add_argument("store", type=Path)
    hits.add_argument("--archive", type=Path, required=True)
    for step in (prepare, measure, hits):
        step.add_argument("--device", default="H200")
        step.add_argument("--engine", default="sglang==0.5.16")
        step.add_argument("--problem", default=R1)
        step.add_argument("--effort", default="standard")
    options = parser.parse_args()
    if unknown := set(getattr(options, "runs", "").split(",")) - {*RUNS, ""}:
        parser.error(f"unknown runs {', '.join(sorted(unknown))}: choose of {', '.join(RUNS)}")
    return options


def _request(options: argparse.Namespace) -> Request:
    return Request(
        parse_problem(options.problem),
        find_device(options.device),
        find_engine(options.engine),
        Source(MeasureKind.GPU),
        effort=Effort(options.effort),
    )


def _prepare(options: argparse.Namespace) -> None:
    request = _request(options)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= _environment(Path(folder), Path(folder, "shared"))
        with Workbench(publish=True) as workbench, open_run(request) as run:
            run.share(workbench)
            totals = run.ahead(_show)
        with tarfile.open(options.archive, "w") as archive:
            archive.add(Path(folder, "shared"), "shared")
    print(json.dumps({"compiled": totals.configs_compiled, **totals.extra}))


def _show(ahead: Ahead) -> None:
    print(f"\r{ahead.tried} tried{', enough' if ahead.enough else ''}", end="", file=sys.stderr)


def _measure(options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.runs.split(","):
        with tempfile.TemporaryDirectory() as folder:
            rows.append({"run": name, **_tune(options, name, Path(folder))})
        print(rows[-1], flush=True)
        if rows[-1].get("kernels_shared") == 0:
            sys.exit(f"{options.archive} is of another build of Triton, or for another request")
    (options.out / "runs.json").write_text(json.dumps(rows, indent=1) + "\n")


def _tune(options: argparse.Namespace, name: str, folder: Path) -> dict[str, float]:
    shared = None if name == "cold" else folder / "shared"
    if shared is not None:
        with tarfile.open(options.archive) as archive:
            archive.extractall(folder, filter="data")
    cores = sorted(os.sched_getaffinity(0))[: FEW_CORES if name == "warm4" else None]
    asked = [*("tune", options.problem, "--device", options.device, "--engine", options.engine)]
    asked += ["--measure", "gpu", "--gpus", options.gpu, "--effort", options.effort, "--json"]
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", "from tuner.cli import main; main()", *asked],
        env={**os.environ, **_environment(folder, shared)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    wall_s = time.perf_counter() - started
    (options.out / f"{name}.json").write_text(done.stdout)
    shutil.copy(folder / "store.db", options.out / f"{name}.db")
    totals = json.loads(done.stdout)["totals"]
    return {
        "cores": len(cores),
        "command_s": wall_s,
        **{k: totals[k] for k in ("wall_s", "measure_s", "compile_s", "measurements")},
        "compiled": totals["configs_compiled"],
        **totals["extra"],
    }


def _hits(options: argparse.Namespace) -> None:
    """Count a run's kernels that are in the archive, in the order in which it asked for them."""
    request = _request(options)
    with tarfile.open(options.archive) as archive:
        there = {Path(name).name for name in archive.getnames()}
    with contextlib.closing(sqlite3.connect(options.store)) as store:
        asked_for = "SELECT part, batch_size, config FROM trials ORDER BY id"
        trials = [
            Candidate(Point(size, Gemm(part)), Config(json.loads(config)))
            for part, size, config in store.execute(asked_for)
        ]
    with tempfile.TemporaryDirectory() as folder, open_run(request) as run:
        cache = SharedCache(folder, KEY)
        shared = SharedResults(cache, triton_build(run._release), run._farm.env)
        bind, target = run._binder(), request.device.target
        keys = [shared.key(k, one.variant(), target) for k, one in map(bind, trials)]
    hits = [key in there for key in dict.fromkeys(keys)]
    fifths = [hits[at * len(hits) // 5 : (at + 1) * len(hits) // 5] for at in range(5)]
    by_fifth = [round(sum(part) / len(part), 3) for part in fifths]
    print(json.dumps({"kernels": len(hits), "ahead": sum(hits), "by_fifth": by_fifth}))


def _environment(folder: Path, shared: Path | None) -> dict[str, str]:
    own = {
        "TUNER_CACHE_DIR": str(folder / "cache"),
        "TUNER_DATABASE_URL": f"sqlite:///{folder / 'store.db'}",
    }
    if shared is None:
        return own
    return {**own, "TUNER_SHARED_CACHE": str(shared), "TUNER_SHARED_CACHE_KEY": KEY}


if __name__ == "__main__":
    main()
