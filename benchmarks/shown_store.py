"""Fills an empty store with what was measured: the reports and recordings of benchmarks/results.

Pictures of the pages show it. It also has a running job, one that failed, workers, a night.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pictures import entry_of

from tuner.devices.table import find_device
from tuner.engines.dispatch import what_runs
from tuner.families.fused_moe.recording import Recording, read_recording
from tuner.jobs.job import Job, JobFilter, JobRequest, Priority
from tuner.jobs.workers import WorkerInfo
from tuner.problems.points import Config, Point
from tuner.problems.registry import family_of, parse_problem, read_part
from tuner.problems.results import (
    Compiled,
    Entry,
    Environment,
    Incumbent,
    MeasureKind,
    Outlook,
    RunKey,
    Status,
    Totals,
)
from tuner.store.database import Database
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases
from tuner.store.nights import NightStore
from tuner.store.results import ResultStore
from tuner.store.workers import WorkerStore
from tuner.tuning.gains import with_backends
from workers.nightly import do_round
from workers.settings import Settings
from workers.watches import Watch

RESULTS = Path(__file__).parent / "results"
LAYERS = ("r1", "e128n768bf16", "e128n768fp8", "e256n64int8", "e257n256", "e257n512")
GEMMS = ("deepseek-r1-sglang0.5.16", "qwen3-32b-sglang0.5.16", "deepseek-r1-sglang0.5.23")
TRIED, EACH, PAUSE_S = 1100, 50, 0.3  # trials of the running job, so many at once


def predict(url: str) -> None:
    """Store a prediction for a card that nothing was measured on."""
    tuner = str(Path(sys.executable).with_name("tuner"))
    command = [tuner, "tune", "deepseek-r1", "--tp", "32", "--dtype", "int8_w8a8"]
    command += ["--device", "L40S", "--measure", "predict", "--batch-sizes", "1,64,1024"]
    environ = {**os.environ, "TUNER_DATABASE_URL": url}
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)


def fill(url: str) -> str:
    """Fill a store, and return the id of the running job."""
    with Database.open(url) as store:
        for report in reports():
            publish(store, report)
        for name in GEMMS:
            publish_gemms(store, json.loads((RESULTS / f"h100/tune-{name}.json").read_text()))
        add_workers(WorkerStore(store))
    running = add_jobs(url)
    add_night(url)
    return running


def add_night(url: str) -> None:
    """Watches of what is tuned, stale, missing and impossible, and a night that looked at them."""
    layers = [json.loads((RESULTS / f"h200/{name}.json").read_text()) for name in LAYERS[:2]]
    gemms = json.loads((RESULTS / f"h100/tune-{GEMMS[1]}.json").read_text())["shapes"]
    wanted = (
        Watch(tuple(one["problem"] for one in layers), ("H200",)),
        Watch((gemms[0]["problem"],), ("H100",)),
        Watch(("mixtral-8x7b", "qwen3-235b-a22b"), ("H20", "L40S"), tp=(8,)),
        Watch(("qwen3-32b",), ("H200",)),  # it has no experts
    )
    with Database.open(url) as store:
        nights = NightStore(store)
        for watch in wanted:
            nights.add_watch(watch.as_json(), key=watch.key, client="ci")
        do_round(Settings(url), store, _Nobody())


class _Nobody:
    def announce(self, job: Job) -> None:
        """No worker waits for a message."""


def reports() -> Iterator[dict[str, Any]]:
    """The tuned layers and attention problems of the H200."""
    for name in LAYERS:
        yield json.loads((RESULTS / f"h200/{name}.json").read_text())
    for line in (RESULTS / "h200/attention_reports.jsonl").read_text().splitlines():
        yield json.loads(line)


def publish(store: Database, report: Mapping[str, Any]) -> None:
    """Store the entries of a report, and for one layer its recorded trials."""
    entries = told(report, map(entry_of, report["entries"]))
    run = ResultStore(store).begin_run(key_of(report, [entry.point for entry in entries]))
    if report["problem"] == recorded().problem.spec():
        ResultStore(store).add_trials(run, recorded().trials.values())
    ResultStore(store).finish_run(run, entries, Totals(**report["totals"]))


def publish_gemms(store: Database, report: Mapping[str, Any]) -> None:
    """Store the sizes of a report of dense GEMMs."""
    for shape in report["shapes"]:
        entries = told({**report, **shape}, map(gemm_entry, shape["sizes"]))
        run = ResultStore(store).begin_run(
            key_of({**report, **shape}, [entry.point for entry in entries])
        )
        ResultStore(store).finish_run(run, entries, Totals(**shape["totals"]))


def told(report: Mapping[str, Any], entries: Iterable[Entry]) -> list[Entry]:
    """The entries with what servers run without this program."""
    place, problem = report["environment"], parse_problem(report["problem"])
    device = find_device(place["device"])
    runs = what_runs(place["engine"], place["engine_version"], problem, device)
    return with_backends(entries, [], runs)


def key_of(report: Mapping[str, Any], points: Sequence[Point], seed: int = 0) -> RunKey:
    place = {name: value for name, value in report["environment"].items() if name != "fingerprint"}
    problem, environment = parse_problem(report["problem"]), Environment(**place)
    return RunKey(
        problem, environment, MeasureKind.GPU, "standard", seed, tuple(points), "benchmarks"
    )


def gemm_entry(size: Mapping[str, Any]) -> Entry:
    """A size of a report of dense GEMMs, which does not say what a configuration needs."""
    incumbents = {
        name: Incumbent(Config(size["configs"][name]), Status.OK, time)
        for name, time in size["us"].items()
        if name != "tuned"
    }
    point, config = Point(size["M"], read_part("dense")), Config(size["configs"]["tuned"])
    compiled, time = Compiled(Status.OK), size["us"]["tuned"]
    return Entry(point, config, Status.OK, time, compiled, incumbents, size["reason"])


def recorded() -> Recording:
    """The recorded trials of DeepSeek-R1's layer on the H200."""
    return read_recording(RESULTS / "h200/r1.csv.gz")


def add_workers(workers: WorkerStore) -> None:
    """Two workers, one of them set aside."""
    packages = {"triton": "3.6.0", "torch": "2.11.0", "engine-tuner": "1"}
    engines = ("sglang==0.5.16", "vllm==0.33.0")
    for number, host in enumerate(("gpu-1", "gpu-2"), start=1):
        card = f"GPU-{number:08d}"
        about = (f"w-{number}", f"gpu0@{host}", host, card, "NVIDIA_H200", None, engines, packages)
        workers.beat(WorkerInfo(*about))
    workers.set_aside("w-2", "CUDA error: the driver does not answer; see `nvidia-smi`")


def add_jobs(url: str) -> str:
    """A job that failed, one that runs and one that waits. Returns the id of the second one."""
    trials = list(recorded().trials.values())
    report = json.loads((RESULTS / "h200/r1.json").read_text())
    entries = [entry_of(one) for one in report["entries"]]
    key = key_of(report, [entry.point for entry in entries], seed=1)
    incumbents = {
        entry.point: {name: one.config for name, one in entry.incumbents.items()}
        for entry in entries
    }
    everything = family_of(key.problem).read_selection(key.problem, {})
    engine = "sglang==0.5.16"
    wanted = JobRequest(key.problem, "NVIDIA_H200", everything, engine, seed=1, model="deepseek-r1")
    with JobStore.open(url) as jobs, Leases.open(url) as leases:
        jobs.submit_all([(replace(wanted, seed=2), Priority.NORMAL)], client="ci")
        failed = leases.claim([JobFilter(needs_gpu=True)], "w-1")
        assert failed is not None
        leases.fail(failed, "sglang 0.5.16: the kernels could not be lifted")
        running = jobs.submit_all([(wanted, Priority.NORMAL)], client="ci")[0].job
        lease = leases.claim([JobFilter(needs_gpu=True)], "w-1")
        assert lease is not None and lease.job_id == running.id
        store = leases.store(lease)
        run = store.begin_run(key)
        store.expect(run, Outlook(len(trials), incumbents))
        for first in range(0, TRIED, EACH):
            store.add_trials(run, trials[first : first + EACH])
            time.sleep(PAUSE_S)
        jobs.submit_all(
            [(replace(wanted, device="NVIDIA_L40S"), Priority.NORMAL)], client="nightly"
        )
    return running.id
