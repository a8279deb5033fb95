"""The process that tunes: `python -m workers.run_job`.

It reads one lease a line from stdin, does its job, and answers with one line on stdout. It writes
to the store under the lease. Its parent claims jobs, sends heartbeats and sees cancels. The process
ends, with all that it has started, when its stdin ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from time import time_ns
from typing import Any

from tuner.childprocess import ParentPipes, run_as_child
from tuner.errors import (
    BadInput,
    CompilerUnavailable,
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
from tuner.problems.points import Candidate
from tuner.problems.results import MeasureKind, Trial
from tuner.store.database import Database
from tuner.store.leases import Leases
from tuner.tuning.request import Request, Source, prepare
from tuner.tuning.run import execute, open_source
from tuner.tuning.tune import Watcher
from workers.machine import GPU_VARIABLE
from workers.settings import Settings, read_settings
from workers.telemetry import add_span, continued, flush_spans, span, start_tracing


class TrialSpans(Watcher):
    """Makes a span of each batch of trials, from the batch before to its end.

    It hears of each trial once that is stored, and of the next question after each batch.
    """

    def __init__(self) -> None:
        self._since_ns, self._count = time_ns(), 0

    def tried(self, trial: Trial) -> None:
        self._count += 1

    def step(self, text: str) -> None:
        """Begin the first batch once the run has begun, and the others after a step."""
        self._since_ns = time_ns()

    def asked(self, fresh: Collection[Candidate], stored: Collection[Trial]) -> None:
        """End a batch."""
        now = time_ns()
        if self._count:
            add_span("trials", self._since_ns, now, {"tuner.trials": self._count})
        self._since_ns, self._count = now, 0


# These errors are about the request, and would be the same on every attempt. `do_job` handles two
# kinds of BadInput before: another worker may have the engine, and the store may come back.
_FINAL = (BadInput, NothingFits)
# This worker lacks what the job needs: the engine, Triton, torch or a GPU that works.
_NOT_HERE = (UnknownEngine, CompilerUnavailable, MeasurerUnavailable)
STORE_AGAIN_S = 1.0


def main() -> None:
    parent = ParentPipes()
    settings = read_settings()
    start_tracing("tuner-worker")
    with open_database(settings.database_url) as database:
        leases = Leases(database)
        parent.send({"ready": True})
        while True:
            lease = read_lease(parent.receive())
            with continued(lease.trace):
                result = do_job(lease, leases, settings)
            flush_spans()  # the parent may kill this process when it has the answer
            reason = _without_path(result.reason, lease.request, settings)
            parent.send(replace(result, reason=reason).as_json())


def open_database(url: str) -> Database:
    """The store, as soon as it answers. The parent's limit ends a wait that is too long."""
    while True:
        try:
            return Database.open(url)
        except (StoreUnreachable, StoreFull):
            time.sleep(STORE_AGAIN_S)


def read_lease(values: Mapping[str, Any]) -> Lease:
    """The lease in a message from the parent."""
    return Lease(**{**values, "request": read_request(values["request"])})


def do_job(lease: Lease, leases: Leases, settings: Settings) -> AttemptResult:
    """Tune what the lease's job asks for, and publish the winners."""
    try:
        with (
            span("run", _about(lease.request)),
            Workbench() as workbench,
        ):
            request = _resolved(lease.request, settings)
            prepared, source = prepare(request), open_source(request, workbench)
            execute(prepared, source, leases.store(lease), TrialSpans())
    except StaleLease:
        return AttemptResult(AttemptOutcome.STALE)
    except RunAlreadyActive as error:
        return AttemptResult(AttemptOutcome.WAIT, str(error))
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


def _about(request: JobRequest) -> dict[str, str]:
    return {
        "tuner.problem": request.problem.spec(),
        "tuner.engine": request.engine,
        "tuner.measure": request.measure,
        "tuner.model": request.model,
    }


def _without_path(text: str, request: JobRequest, settings: Settings) -> str:
    """The text with the recording's name in place of its path: clients will read it."""
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
