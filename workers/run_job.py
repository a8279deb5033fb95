"""Run the process that tunes: `python -m workers.run_job`.

It reads a lease a line from stdin, does its job, and answers with a line on stdout. It writes to
the store under the lease. Its parent claims jobs, sends heartbeats and sees cancels. The process
ends, with all processes that it has started, when its stdin ends. It ignores SIGTERM, which systemd
sends to all processes of a worker: its parent ends it, and gives the job back.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.childprocess import ParentPipes, run_as_child
from tuner.errors import (
    BadInput,
    CompilerUnavailable,
    GpuInUse,
    MeasurerUnavailable,
    NothingFits,
    RunAlreadyActive,
    StaleLease,
    StoreFull,
    StoreUnreachable,
    TunerError,
    UnknownEngine,
    UnusableStore,
)
from tuner.jobs.attempts import AttemptOutcome, AttemptResult
from tuner.jobs.job import JobRequest, Lease, read_request
from tuner.measure.workbench import Workbench
from tuner.problems.results import MeasureKind
from tuner.store.connect import place_of
from tuner.store.database import Database
from tuner.store.leases import Leases
from tuner.tuning.request import Request, Source, prepare
from tuner.tuning.run import execute, open_source
from tuner.tuning.tune import Watcher
from workers.machine import GPU_VARIABLE
from workers.settings import STORE_LIMITS, Settings, read_settings

# These errors are about the request, and would be the same on every attempt. `do_job` handles two
# kinds of BadInput before: another worker may have the engine, and the store may come back.
_FINAL = (BadInput, NothingFits)
# This worker lacks the engine, Triton, torch or GPU that the job needs.
_NOT_HERE = (UnknownEngine, CompilerUnavailable, MeasurerUnavailable)
STORE_AGAIN_S = 1.0


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent = ParentPipes()
    settings = read_settings()
    with open_database(settings.database_url) as database:
        leases = Leases(database)
        parent.send({"ready": True})
        while True:
            lease = read_lease(parent.receive())
            result = do_job(lease, leases, settings)
            reason = _without_places(result.reason, lease.request, settings)
            parent.send(replace(result, reason=reason).as_json())


def open_database(url: str) -> Database:
    """Open the store, as soon as it answers. The parent's limit ends a wait that is too long."""
    while True:
        try:
            return Database.open(url, STORE_LIMITS)
        except (StoreUnreachable, StoreFull):
            time.sleep(STORE_AGAIN_S)


def read_lease(values: Mapping[str, Any]) -> Lease:
    """Read the lease in a message from the parent."""
    return Lease(**{**values, "request": read_request(values["request"])})


def do_job(lease: Lease, leases: Leases, settings: Settings) -> AttemptResult:
    """Tune the problem of the lease's job, and publish the winners."""
    try:
        with Workbench() as workbench:
            request = _resolved(lease.request, settings)
            prepared, source = prepare(request), open_source(request, workbench)
            execute(prepared, source, leases.store(lease), Watcher())
    except StaleLease:
        return AttemptResult(AttemptOutcome.STALE)
    except RunAlreadyActive as error:
        return AttemptResult(AttemptOutcome.WAIT, str(error))
    except GpuInUse as error:
        return AttemptResult(AttemptOutcome.BUSY, error.in_api_words())
    except _NOT_HERE as error:
        return AttemptResult(AttemptOutcome.REFUSED, str(error))
    except (StoreUnreachable, StoreFull) as error:
        return AttemptResult(AttemptOutcome.STORE_FAILED, str(error))
    except UnusableStore as error:
        return AttemptResult(AttemptOutcome.RETRY, str(error))
    except _FINAL as error:
        return AttemptResult(AttemptOutcome.FAILED, str(error))
    except Exception as error:  # the next attempt, perhaps elsewhere, decides
        said = str(error) if isinstance(error, TunerError) else f"{type(error).__name__}: {error}"
        return AttemptResult(AttemptOutcome.RETRY, said)
    return AttemptResult(AttemptOutcome.DONE)


def _without_places(text: str, request: JobRequest, settings: Settings) -> str:
    """Leave the store's place and the recording's path out of a text: clients will read it."""
    text = text.replace(f" {place_of(settings.database_url)}", "")
    recording = request.source.recording
    if recording is None or settings.recordings is None:
        return text
    path = (settings.recordings / recording).resolve()
    return text.replace(str(path), str(recording))


def _resolved(request: JobRequest, settings: Settings) -> Request:
    source = request.source
    if source.recording is not None:
        source = Source(MeasureKind.REPLAY, settings.recording(str(source.recording)))
    elif gpu := os.environ.get(GPU_VARIABLE):
        source = Source(source.kind, gpu=gpu)
    return request.to_run(source, carry_over=settings.carry_over)


if __name__ == "__main__":
    run_as_child(main)
