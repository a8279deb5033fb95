"""Many keys' compile work through the queue, while the shared cache and its writers are attacked.

    python benchmarks/chaos_cache.py [OUT.json] --keys 1000 --minutes 10 --workers 2

A key is an object of the cache: one kernel of a fused-MoE layer for an H200, really compiled. A
job compiles about 110 of them, through the workers' own code. No two jobs share a kernel, because
their layers differ in `top_k`, which is a constant of the kernel. The run ends when all jobs have
ended, or when the time is over.

Meanwhile workers are killed with all their processes, and bits of objects are flipped, objects cut
off, exchanged and deleted. A reader asks the cache for all of its objects, again and again. An
object that is served is wrong if its machine code is another one than its result says. At the end
no job may be lost: each is done, or waits for a worker. Prints the figures, writes them into
OUT.json, and exits with 1 where a job is lost, or where a wrong object was served.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from tuner.compile.machine_code import machine_code_hash

from tuner.compile.shared import SharedCache
from tuner.compile.shared_results import unpack
from tuner.jobs.ahead import compile_request
from tuner.jobs.job import JobRequest
from tuner.problems.registry import family_of, parse_problem
from tuner.store import JobStore
from tuner.store.submissions import Submission
from tuner.tuning.request import Effort
from workers.embedded import EmbeddedWorker
from workers.settings import read_settings

ENGINE = "sglang==0.5.16"
KILL_EVERY_S = 60.0
HARM_EVERY_S = 1.0
KEYS_A_JOB = 100  # 109 and 110 were counted
MOST_KEYS = 60 * KEYS_A_JOB  # a layer of 64 experts has no more values of top_k
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    options = _options()
    if options.work:
        _work()
    # The reader is told of each refused object again and again; `refused` is their number.
    logging.getLogger("tuner.compile").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        result = _run(options, Path(folder))
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    sys.exit(0 if result["wrong"] == 0 and result["lost"] == 0 else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, nargs="?", default=RESULTS / "chaos_cache.json")
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not 0 < options.keys <= MOST_KEYS:
        parser.error(f"--keys is 1 to {MOST_KEYS}")
    return options


def _work() -> None:
    """Be one worker, until killed."""
    worker = EmbeddedWorker(read_settings(), gpus=())
    worker.start()
    signal.pause()


def _run(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    environ = {
        "TUNER_DATABASE_URL": f"sqlite:///{folder / 'tuner.db'}",
        "TUNER_SHARED_CACHE": str(folder / "shared"),
        "TUNER_SHARED_CACHE_KEY": secrets.token_hex(32),
        "TUNER_SHARED_CACHE_GB": "1",
    }
    jobs = JobStore.open(environ["TUNER_DATABASE_URL"])
    posted = jobs.submit_all([Submission(compile_request(one)) for one in _requests(options.keys)])
    cache = SharedCache(environ["TUNER_SHARED_CACHE"], environ["TUNER_SHARED_CACHE_KEY"])
    counts: Counter[str] = Counter()
    keys: set[str] = set()
    stopping = threading.Event()
    reader = threading.Thread(
        target=_read, args=(cache, folder / "shared", counts, keys, stopping), daemon=True
    )
    reader.start()
    began = time.monotonic()
    until = began + 60 * options.minutes
    crew = [_start(environ, folder / f"host-{n}") for n in range(options.workers)]
    rng = random.Random(options.seed)
    kill_at = time.monotonic() + KILL_EVERY_S
    while time.monotonic() < until and any(not state.finished for state in jobs.counts()):
        _harm(rng, folder / "shared", counts)
        if time.monotonic() >= kill_at:
            victim = rng.randrange(len(crew))
            _kill(crew[victim])
            counts["workers killed"] += 1
            crew[victim] = _start(environ, folder / f"host-{victim}")
            kill_at = time.monotonic() + KILL_EVERY_S
        time.sleep(HARM_EVERY_S)
    seconds = time.monotonic() - began
    for one in crew:
        _kill(one)
    stopping.set()
    reader.join()
    states = {state.value: count for state, count in jobs.counts().items()}
    bad = sum(states.get(name, 0) for name in ("failed", "dead", "cancelled"))
    return {
        "keys wanted": options.keys,
        "keys compiled": len(keys),
        "seconds": round(seconds),
        "workers": options.workers,
        "cores": len(os.sched_getaffinity(0)),
        "jobs": states,
        "lost": len(posted) - sum(states.values()) + bad,
        "wrong": counts.pop("wrong", 0),
        **dict(sorted(counts.items())),
    }


def _requests(count: int) -> list[JobRequest]:
    """Jobs with at least so many keys together, none of which two of them share."""
    found = []
    for number in range(math.ceil(count / KEYS_A_JOB)):
        problem = parse_problem(f"fused_moe:E=64,N=256,K=1024,top_k={2 + number},dtype=bf16")
        selection = family_of(problem).read_selection(problem, {"batch_sizes": [64]})
        found.append(JobRequest(problem, "H200", ENGINE, "gpu", selection, Effort.QUICK))
    return found


def _start(environ: dict[str, str], home: Path) -> subprocess.Popen[bytes]:
    home.mkdir(exist_ok=True)
    with (home / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, __file__, "--work"],
            env={**os.environ, **environ, "TUNER_CACHE_DIR": str(home / "cache")},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _kill(worker: subprocess.Popen[bytes]) -> None:
    """Kill a worker and all that it started: a child of it ends when its pipe does."""
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def _harm(rng: random.Random, folder: Path, counts: Counter[str]) -> None:
    found = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".tmp"]
    if len(found) < 2:
        return
    path, other = rng.sample(found, 2)
    how = rng.choice(("flipped", "cut off", "exchanged", "deleted"))
    try:
        data = bytearray(path.read_bytes())
        if how == "flipped":
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        elif how == "cut off":
            path.write_bytes(data[: rng.randrange(len(data))])
        elif how == "exchanged":
            path.write_bytes(other.read_bytes())
        else:
            path.unlink()
    except (OSError, ValueError):
        return  # a writer has just replaced it
    counts[how] += 1


def _read(
    cache: SharedCache,
    folder: Path,
    counts: Counter[str],
    keys: set[str],
    stopping: threading.Event,
) -> None:
    while not stopping.is_set():
        names = [
            path.name for path in folder.rglob("*") if path.suffix != ".tmp" and path.is_file()
        ]
        keys.update(names)
        for name in names:
            data = cache.get(name)
            counts["refused" if data is None else "served"] += 1
            if data is not None and not _right(data):
                counts["wrong"] += 1
        stopping.wait(0.5)


def _right(data: bytes) -> bool:
    """Whether the machine code is the one that the result says."""
    found = unpack(data)
    if not found.compiled.ok:
        return True
    files = found.files or {}
    binary = next(content for name, content in files.items() if name.endswith(".cubin"))
    metadata = next(content for name, content in files.items() if name.endswith(".json"))
    launch = SimpleNamespace(**json.loads(metadata))
    return machine_code_hash(binary, launch) == found.compiled.code


if __name__ == "__main__":
    main()
