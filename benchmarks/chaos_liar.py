"""A worker that lies: it claims jobs and renews their leases, and does nothing else.

    python chaos_liar.py DATABASE_URL FILE

Every second time it also begins the job's run. Once a job was taken from it, it tries every write
that a worker has, with the fencing number that it had: all of them must be refused. Then it comes
back under another name. It appends a line of JSON to FILE for each job.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "service")]

from store_writer import KEY, batch  # noqa: E402

from tuner.errors import RunAlreadyActive, StaleLease, UnusableStore  # noqa: E402
from tuner.jobs.job import Lease  # noqa: E402
from tuner.jobs.workers import WorkerInfo, WorkerState  # noqa: E402
from tuner.problems.results import Run, RunState, Totals  # noqa: E402
from tuner.store.leases import Leases  # noqa: E402
from tuner.store.results import ResultStore  # noqa: E402
from tuner.store.workers import WorkerStore  # noqa: E402
from workers.machine import engines_here  # noqa: E402

NAME = "liar"
DEVICE = "NVIDIA_H200"
LOOK_S = 1.0
REST_S = 10.0  # between two lies

T = TypeVar("T")


def main(url: str, path: Path) -> None:
    with insist(lambda: Leases.open(url)) as leases, path.open("a") as said:
        run = insist(lambda: ResultStore(leases.database).begin_run(KEY))
        for number in itertools.count():
            line = json.dumps(lie(leases, run, begins=bool(number % 2)))
            said.write(line + "\n")
            said.flush()
            time.sleep(REST_S)


def lie(leases: Leases, run: Run, *, begins: bool) -> dict[str, Any]:
    """Hold one job until it is taken back, and try to write once it is."""
    me = make_info()
    workers = WorkerStore(leases.database)
    lease = wait_for_job(leases, workers, me)
    if begins:
        begin(leases, lease)
    while insist(lambda: renews(leases, workers, lease, me)):
        time.sleep(LOOK_S)
    refused: list[str] = []
    accepted: list[str] = []
    for name, write in late_writes(leases, lease, run):
        (refused if insist(partial(is_refused, write)) else accepted).append(name)
    set_aside = insist(lambda: workers.beat(me)) is WorkerState.SET_ASIDE
    if set_aside and insist(lambda: leases.claim(me.filters(), me.id)):
        accepted.append("a claim of a worker that is set aside")
    insist(lambda: workers.stopped(me.id))
    return {
        "owner": me.id,
        "job": lease.job_id,
        "begins": begins,
        "set_aside": set_aside,
        "refused": refused,
        "accepted": accepted,
    }


def make_info() -> WorkerInfo:
    host, token = socket.gethostname(), secrets.token_hex(3)
    name = f"{NAME}-{token}@{host}"
    full = f"{name}:{os.getpid()}:{token}"
    return WorkerInfo(full, name, host, "", "", (DEVICE,), engines_here(), {})


def wait_for_job(leases: Leases, workers: WorkerStore, me: WorkerInfo) -> Lease:
    while True:
        insist(lambda: workers.beat(me))
        if lease := insist(lambda: leases.claim(me.filters(), me.id, me.preferred())):
            return lease
        time.sleep(LOOK_S)


def begin(leases: Leases, lease: Lease) -> None:
    """Begin a run under the lease, which the job then seems to have."""
    with contextlib.suppress(StaleLease, RunAlreadyActive):
        insist(lambda: leases.store(lease).begin_run(KEY))


def renews(leases: Leases, workers: WorkerStore, lease: Lease, me: WorkerInfo) -> bool:
    workers.beat(me)
    return not is_refused(lambda: leases.heartbeat(lease))


def late_writes(
    leases: Leases, lease: Lease, run: Run
) -> Iterator[tuple[str, Callable[[], object]]]:
    store = leases.store(lease)
    yield "heartbeat", lambda: leases.heartbeat(lease)
    yield "begin_run", lambda: store.begin_run(KEY)
    yield "add_trials", lambda: store.add_trials(run, batch(0))
    yield "finish_run", lambda: store.finish_run(run, [], Totals())
    yield "stop_run", lambda: store.stop_run(run, RunState.FAILED, "a late write")
    yield "fail", lambda: leases.fail(lease, "a late write")
    yield "retry", lambda: leases.retry(lease, "a late write")
    yield "release", lambda: leases.release(lease, "a late write")
    yield "refuse", lambda: leases.refuse(lease, "a late write")
    yield "cancelled", lambda: leases.cancelled(lease)


def is_refused(write: Callable[[], object]) -> bool:
    """Whether a write needs a lease that is lost. Raises UnusableStore."""
    try:
        write()
    except StaleLease:
        return True
    return False


def insist(what: Callable[[], T]) -> T:
    """What it returns, as soon as the store answers."""
    while True:
        try:
            return what()
        except UnusableStore:
            time.sleep(LOOK_S)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
