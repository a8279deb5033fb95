"""Measure what the shelf lacks on the GPUs of this machine: one process for each GPU.

    python -m benchmarks.shelf OUT --engine sglang==0.5.16 [--limit-s 540] [--device H100]
                               [--database FILE] [--first N] [--only TEXT] [--measure predict]
                               [--list]

The problems are those of benchmarks/shelf_list.py; a problem that the database has is left out, so
a second call goes on where the first one stopped. Other processes compile what the next problems
will try first. After --limit-s seconds nothing more is begun, and what is under way is stopped.

OUT/ENGINE-CARD.jsonl.gz gets one line for each problem as soon as it is measured, in the form of
tuner/store/result_files.py and with the models: of such files benchmarks/shelf_files.py makes the
shelf. OUT/failed-ENGINE-CARD.txt says what failed, and
OUT/ENGINE-CARD.db.gz is the database, with all trials.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing as mp
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.shelf_list import Wanted, wanted_problems
from tuner.devices.here import asked_here, visible_gpus
from tuner.devices.table import Device, find_device
from tuner.engines.engine import find_engine, triton_for
from tuner.errors import MeasurerUnavailable, TunerError
from tuner.measure.workbench import Workbench
from tuner.problems.results import MeasureKind, Status
from tuner.store.exchange import ResultExchange
from tuner.tuning.gains import gains, mean_gain
from tuner.tuning.report import RunReport
from tuner.tuning.request import (
    Effort,
    KnownBefore,
    PreparedRun,
    Request,
    Source,
    prepare,
    triton_version,
)
from tuner.tuning.run import SerialBench, compiler_of, execute, open_source
from tuner.tuning.tune import UNWATCHED, explore

TYPICAL_S = 12.0  # of one problem, until some are done
STOP_S = 20.0  # for the processes to end after the limit
IN_A_ROW = 4  # failed problems after which a GPU's process stops
AHEAD = 2  # processes for each GPU that compile ahead: one searches while the other one compiles
SPARE_CORES = len(os.sched_getaffinity(0)) // 2


@dataclass(frozen=True)
class Work:
    """Hold the values that the processes of a call share."""

    wanted: Sequence[Wanted]
    engine: str
    device: str
    kind: MeasureKind
    database: Path
    out: Path
    stop_at: float  # seconds of time.time()
    begun: Any  # how many problems were taken, in a multiprocessing.Value
    compiled: Any  # how many were taken to compile ahead
    writing: Any  # a multiprocessing.Lock

    def request(self, wanted: Wanted, gpu: str) -> Request:
        return Request(
            problem=wanted.problem,
            device=find_device(self.device),
            engine=find_engine(self.engine),
            source=Source(self.kind, gpu=gpu),
            effort=Effort.QUICK,
            server=wanted.server,
        )

    def take(self) -> Wanted | None:
        """Return the next problem that nobody has begun; None if there is none."""
        with self.begun.get_lock():
            at = self.begun.value
            self.begun.value = min(at + 1, len(self.wanted))
        return self.wanted[at] if at < len(self.wanted) else None

    @property
    def url(self) -> str:
        return f"sqlite:///{self.database}"

    @property
    def name(self) -> str:
        return f"{self.engine.replace('==', '-')}-{find_device(self.device).name}"


def main() -> None:
    args = _arguments()
    gpus = visible_gpus() or [str(at) for at in range(len(asked_here("uuid")))] or ["0"]
    card = find_device(args.device or (asked_here("name") or ["H100"])[0])
    engine = find_engine(args.engine)
    spec = f"{engine.name}=={engine.version}"
    args.out.mkdir(parents=True, exist_ok=True)
    database = args.database or args.out / f"{spec.replace('==', '-')}-{card.name}.db"
    everything = [one for one in wanted_problems(engine, card) if args.only in " ".join(one.models)]
    kind, context = MeasureKind(args.measure), mp.get_context("spawn")
    with ResultExchange.open(f"sqlite:///{database}") as store:
        wanted = _missing(store, everything, card, engine.name, engine.version, kind)
    print(
        f"{spec} on {card.name}: {len(wanted)} of {len(everything)} problems to measure", flush=True
    )
    wanted = wanted[: args.first]
    if args.list:
        for one in wanted:
            print(one.problem.spec(), "; ".join(one.models), sep="\t")
        return
    shared = context.Value("i", 0), context.Value("i", 0), context.Lock()
    stop_at = time.time() + args.limit_s
    work = Work(wanted, spec, card.name, kind, database, args.out, stop_at, *shared)
    measuring = [_started(context, measure, work, gpu) for gpu in gpus]
    ahead = [gpu for gpu in gpus for _ in range(AHEAD) if kind is MeasureKind.GPU]
    compiling = [_started(context, compile_ahead, work, gpu) for gpu in ahead]
    _wait(measuring, compiling, stop_at)
    _keep_database(database, args.out / f"{work.name}.db.gz")
    with ResultExchange.open(work.url) as store:
        left = _missing(store, wanted, card, engine.name, engine.version, kind)
    print(f"{len(wanted) - len(left)} problems measured, {len(left)} left", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--engine", default="sglang")
    parser.add_argument("--device", default="", help="default: the one of this machine")
    parser.add_argument("--limit-s", type=float, default=540.0)
    parser.add_argument("--database", type=Path, help="a SQLite file; default: one in OUT")
    parser.add_argument("--first", type=int, help="measure so many problems at most")
    parser.add_argument("--only", default="", help="text in a model's name")
    parser.add_argument("--measure", choices=("gpu", "predict"), default="gpu")
    parser.add_argument("--list", action="store_true", help="print the problems and end")
    return parser.parse_args()


def _missing(
    store: ResultExchange,
    wanted: Sequence[Wanted],
    card: Device,
    engine: str,
    version: str,
    kind: MeasureKind,
) -> list[Wanted]:
    """Return the problems of which the store has no result with the Triton that is here."""
    status = Status.PREDICTED if kind is MeasureKind.PREDICT else Status.OK
    triton = triton_version(find_engine(f"{engine}=={version}"))
    found = store.winners(device=card.name, engine=engine, engine_version=version, triton=triton)
    there = {winner.problem for winner in found if winner.status is status}
    return [one for one in wanted if one.problem not in there]


def _started(
    context: SpawnContext, what: Callable[[Work, str], None], work: Work, gpu: str
) -> BaseProcess:
    """Start a process that ignores SIGINT until `what` lets it in."""
    process = context.Process(target=what, args=(work, gpu))
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, handler)
    return process


def _wait(measuring: Sequence[BaseProcess], ahead: Sequence[BaseProcess], stop_at: float) -> None:
    """Wait for the end of the processes, and end those that are late, or all after Ctrl-C."""
    try:
        for process in measuring:
            process.join(max(0.0, stop_at - time.time()))
    except KeyboardInterrupt:
        print("stopping", flush=True)
    for process in ahead:
        process.terminate()
    for process in measuring:
        if process.is_alive() and process.pid:
            os.kill(process.pid, signal.SIGINT)  # a stopped run keeps its trials
    for process in measuring:
        process.join(STOP_S)
        process.kill()
        process.join()


# In the process of a GPU


def measure(work: Work, gpu: str) -> None:
    """Measure one problem after the other until the time is over, or until SIGINT."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if time.time() < work.stop_at:
            _measure_all(work, gpu)
    except KeyboardInterrupt:
        print(f"GPU {gpu} stops", flush=True)


def _measure_all(work: Work, gpu: str) -> None:
    took: list[float] = []
    failed = 0  # in a row
    sys.setswitchinterval(0.0005)  # the thread that prepares must not hold up the GPU
    with (
        ResultExchange.open(work.url) as store,
        Workbench() as bench,
        ThreadPoolExecutor(1) as thread,
    ):
        following = thread.submit(_next_prepared, work, gpu)
        try:
            while (found := following.result()) is not None:
                following = thread.submit(_next_prepared, work, gpu)
                wanted, prepared = found
                mean_s = sum(took) / len(took) if took else TYPICAL_S
                if time.time() + mean_s > work.stop_at or failed == IN_A_ROW:
                    return
                began = time.monotonic()
                if _measured(work, store, bench, wanted, prepared, gpu):
                    took.append(time.monotonic() - began)
                    failed = 0
                else:
                    failed += 1
        except MeasurerUnavailable as error:
            print(f"GPU {gpu} stops: {error!r}", flush=True)


def _next_prepared(work: Work, gpu: str) -> tuple[Wanted, PreparedRun] | None:
    """Return the next problem that can be prepared, with its run and its first candidates."""
    while (wanted := work.take()) is not None:
        try:
            prepared = prepare(work.request(wanted, gpu))
            prepared.warm_up()
        except TunerError as error:
            _tell_failed(work, wanted, error)
        else:
            return wanted, prepared
    return None


def _measured(
    work: Work,
    store: ResultExchange,
    bench: Workbench,
    wanted: Wanted,
    prepared: PreparedRun,
    gpu: str,
) -> bool:
    """Measure a problem and write its line. Raises MeasurerUnavailable, which ends everything."""
    began = time.monotonic()
    try:
        report = execute(prepared, open_source(prepared.request, bench), store)
    except MeasurerUnavailable:
        raise
    except Exception as error:  # whatever it was, the next problem may do better
        _tell_failed(work, wanted, error)
        return False
    environment = report.environment
    mine = store.winners_in(wanted.problem, environment)
    for result in store.results(mine):
        line = json.dumps(replace(result, models=wanted.models).as_json()) + "\n"
        with work.writing, (work.out / f"{work.name}.jsonl.gz").open("ab") as file:
            file.write(gzip.compress(line.encode()))
    _tell(work, wanted, report, gpu, time.monotonic() - began)
    return True


def _tell(work: Work, wanted: Wanted, report: RunReport, gpu: str, seconds: float) -> None:
    mean = mean_gain(one.ratio for one in gains(report.entries))
    gain = f"{mean:.3f}x" if mean else "no gain known"
    cached, idle = (report.totals.extra.get(name, 0) for name in ("kernels_cached", "gpu_idle_s"))
    print(
        f"{work.begun.value}/{len(work.wanted)} gpu {gpu} {seconds:5.1f} s (idle {idle:.1f} s, "
        f"{report.totals.configs_compiled} kernels, {cached:.0f} cached) {gain} "
        f"{wanted.problem.spec()} {wanted.models[0]}",
        *report.mishaps,
        flush=True,
    )


def _tell_failed(work: Work, wanted: Wanted, error: Exception) -> None:
    line = f"{wanted.problem.spec()}: {type(error).__name__}: {error}"
    print("failed:", line, flush=True)
    with work.writing, (work.out / f"failed-{work.name}.txt").open("a") as file:
        file.write(line + "\n")


# In the process that compiles ahead


def compile_ahead(work: Work, gpu: str) -> None:
    """Compile what the searches of problems that nobody has begun will ask for, as far as the
    device model foresees their times. Results are found by content, in the cache that all share.
    """
    os.nice(10)
    with Workbench() as bench:
        farm = bench.farm(SPARE_CORES, triton_for(find_engine(work.engine)))
        while (at := _next_to_compile(work)) < len(work.wanted):
            try:
                prepared = prepare(work.request(work.wanted[at], gpu))
            except TunerError:
                continue  # the process that measures tells of it
            assert prepared.predictor is not None
            known = KnownBefore()
            serial = SerialBench(compiler_of(prepared, farm), prepared.predictor, prepared.points)
            strategy = prepared.strategy(known)
            explore(prepared.goal(known), strategy, serial, lambda _: None, {}, UNWATCHED)


def _next_to_compile(work: Work) -> int:
    with work.compiled.get_lock():
        at: int = max(work.compiled.value, work.begun.value)
        work.compiled.value = at + 1
    return at


def _keep_database(database: Path, kept: Path) -> None:
    """Write a compressed copy of a database, with what only its write-ahead log has so far."""
    copy = database.with_suffix(".copy")
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    kept.write_bytes(gzip.compress(copy.read_bytes()))
    copy.unlink()


if __name__ == "__main__":
    main()
