"""The process that tunes: `python -m workers.run_job`.

Reads one lease a line on stdin, does its job, and answers one line on stdout. What it stores,
it stores under the lease; claims, heartbeats and cancels are its parent's. It ends, with all
that it has started, when its stdin does.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from typing import Any

from tuner.childprocess import ParentPipes
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.errors import (
    BadInput,
    NothingFits,
    RunAlreadyActive,
    StaleLease,
    TunerError,
    UnknownEngine,
    UnusableStore,
)
from tuner.jobs.job import JobRequest, Lease, read_request
from tuner.problems.results import MeasureKind
from tuner.store import Leases
from tuner.tuning.request import Source, parse_source
from tuner.tuning.run import Request, open_run
from workers.child import GPU_VARIABLE, AttemptOutcome, AttemptResult
from workers.settings import Settings, read_settings

# Answers about the request itself, the same on every attempt, but for those that are bad input as
# well: an engine that is not here may be on another worker, a store that fails will be back.
_FINAL = (BadInput, NothingFits)


def main() -> None:
    parent = ParentPipes()
    settings = read_settings()
    with Leases.open(settings.database_url) as leases:
        parent.send({"ready": True})
        while True:
            result = do_job(read_lease(parent.receive()), leases, settings)
            parent.send(result.as_json())


def read_lease(values: Mapping[str, Any]) -> Lease:
    """A lease as its parent wrote it."""
    return Lease(**{**values, "request": read_request(values["request"])})


def do_job(lease: Lease, leases: Leases, settings: Settings) -> AttemptResult:
    """Tune what the lease's job asks for, and publish."""
    try:
        with open_run(_session_request(lease.request, settings)) as session:
            session.run(leases.store(lease), progress=lambda trial: None)
    except StaleLease:
        return AttemptResult(AttemptOutcome.STALE)
    except RunAlreadyActive as error:
        return AttemptResult(AttemptOutcome.WAIT, str(error))
    except UnknownEngine as error:
        return AttemptResult(AttemptOutcome.ELSEWHERE, str(error))
    except UnusableStore as error:
        return AttemptResult(AttemptOutcome.RETRY, str(error))
    except _FINAL as error:
        return AttemptResult(AttemptOutcome.FAILED, str(error))
    except Exception as error:  # the next attempt, perhaps elsewhere, decides
        said = str(error) if isinstance(error, TunerError) else f"{type(error).__name__}: {error}"
        return AttemptResult(AttemptOutcome.RETRY, said)
    return AttemptResult(AttemptOutcome.DONE)


def _session_request(request: JobRequest, settings: Settings) -> Request:
    source = parse_source(request.measure)
    if source.recording is not None:
        source = Source(MeasureKind.REPLAY, settings.recording(str(source.recording)))
    elif gpu := os.environ.get(GPU_VARIABLE):
        source = Source(source.kind, gpus=(gpu,))
    return Request(
        problem=request.problem,
        device=find_device(request.device),
        engine=find_engine(request.engine),
        source=source,
        selection=request.selection,
        effort=request.effort,
        wide=request.wide,
        seed=request.seed,
    )


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        # Its last line is the parent's reason. The interpreter's own end would add to it: it aborts
        # where a thread still reads stdin.
        traceback.print_exc()
        os._exit(1)
