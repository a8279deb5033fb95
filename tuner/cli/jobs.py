"""Post jobs to the local store or a server, and look after them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.app import command, print_json, say
from tuner.cli.options import (
    Attention,
    BatchSizes,
    BlockShape,
    DeviceName,
    DtypeName,
    EffortName,
    EngineSpec,
    Ep,
    FuseShared,
    Gemms,
    HiddenSize,
    Json,
    KvSplits,
    Measure,
    PageSize,
    Seed,
    Server,
    Target,
    TopK,
    Tp,
    Wide,
    WorkloadName,
)
from tuner.cli.targets import (
    BOTH_GEMMS,
    Given,
    attention_work,
    moe_work,
    refuse_attention_options,
    refuse_layer_options,
)

if TYPE_CHECKING:  # `tuner --help` must not pay for SQLAlchemy
    from tuner.errors import TunerError
    from tuner.families.attention.workloads import Workload, WorkPoint
    from tuner.jobs.client import Queue
    from tuner.jobs.job import Job, JobEvent, JobRequest, Priority

FOLLOW_S = 0.5
LOST_S = 300.0  # a server, or database, that does not answer for so long is not waited for
PAUSE_S = 10.0  # between two tries, at the most

JobId = Annotated[str, typer.Argument(metavar="ID", help="As `submit` printed it.")]


@contextlib.contextmanager
def open_jobs(server: str | None) -> Iterator[Queue]:
    """The queue: of the local store, or behind a server's API."""
    if server is not None:
        from tuner.jobs.client import RemoteQueue, api_key

        yield RemoteQueue(server, api_key(os.environ))
        return
    from tuner.store import JobStore, database_url

    with JobStore.open(database_url(os.environ)) as jobs:
        yield jobs


@command
def submit(
    target: Target,
    device: DeviceName,
    tp: Tp = 1,
    ep: Ep = 1,
    dtype: DtypeName = None,
    block_shape: BlockShape = None,
    fuse_shared: FuseShared = None,
    hidden_size: HiddenSize = None,
    top_k: TopK = None,
    batch_sizes: BatchSizes = None,
    gemm: Gemms = BOTH_GEMMS,
    measure: Measure = "gpu",
    effort: EffortName = "standard",
    wide: Wide = None,
    engine: EngineSpec = "sglang",
    attention: Attention = False,
    workload: WorkloadName = None,
    page_size: PageSize = 1,
    kv_splits: KvSplits = None,
    seed: Seed = 0,
    urgent: Annotated[bool, typer.Option("--urgent", help="Before the jobs that wait.")] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Queue a tuning job for a worker, and print its id; of attention, a job for each problem."""
    from tuner.devices.table import find_device
    from tuner.families.fused_moe.problem import parse_dtype
    from tuner.jobs.job import JobRequest, Priority
    from tuner.problems.text import names_attention, parse_block_shape
    from tuner.tuning.request import parse_batch_sizes, parse_effort, parse_gemms

    kind = parse_dtype(dtype) if dtype else None
    given = Given(target, find_device(device), _engine_version(engine), tp, kind)
    if attention or names_attention(target):
        refuse_layer_options(
            ep, block_shape, fuse_shared, hidden_size, top_k, batch_sizes, gemm, wide
        )
        found = attention_work(given, workload, page_size, kv_splits)
    else:
        refuse_attention_options(workload, page_size, kv_splits)
        block = parse_block_shape(block_shape) if block_shape else None
        found = moe_work(given, ep, block, hidden_size, top_k, fuse_shared)
    requests = [
        JobRequest(
            problem=problem,
            device=device,
            engine=engine,
            measure=measure if server else _absolute(measure),
            batch_sizes=parse_batch_sizes(batch_sizes) if batch_sizes else None,
            gemms=parse_gemms(gemm),
            workload=_workload(workload, points),
            effort=parse_effort(effort),
            wide=wide,
            seed=seed,
            model="" if ":" in target else target,
        )
        for problem, points in found.work
    ]
    for note in found.notes:
        say(note)
    priority = Priority.URGENT if urgent else Priority.NORMAL
    with open_jobs(server) as jobs:
        posted = [_post(jobs, request, priority, as_json) for request in requests]
    if as_json:
        print_json(posted[0] if len(posted) == 1 else {"jobs": posted})


@command
def jobs(
    device: Annotated[str | None, typer.Option(help="Only this GPU's.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model's.")] = None,
    state: Annotated[str | None, typer.Option(help="Only queued, running, done, ...")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The newest so many.")] = 50,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """List jobs, the newest first."""
    from tuner.devices.table import find_device
    from tuner.jobs.job import parse_state

    with open_jobs(server) as queue:
        found = queue.list(
            device=find_device(device).name if device else None,
            model=model,
            state=parse_state(state) if state else None,
            limit=limit,
        )
    if as_json:
        print_json([job.as_json() for job in found])
    else:
        typer.echo(_job_table(found))


@command
def job(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", help="Show its steps to its end.")] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Show a job; with --follow, exit 1 unless it is done in the end."""
    from tuner.jobs.job import JobState

    with open_jobs(server) as queue:
        found = queue.get(job_id)
        if follow:
            found = _follow(queue, found)
    if as_json:
        print_json(found.as_json())
    else:
        typer.echo(_job_table([found]))
        if found.error:
            typer.echo(f"\n{found.error}")
    if follow and found.state is not JobState.DONE:
        raise typer.Exit(1)


@command
def cancel(job_id: JobId, server: Server = None, as_json: Json = False) -> None:
    """End a job; its trials stay in the store."""
    with open_jobs(server) as queue:
        found = queue.cancel(job_id)
    if as_json:
        print_json(found.as_json())
    elif found.state.finished:
        typer.echo(f"{found.id} is {found.state.value}")
    else:
        typer.echo(f"{found.id} is {found.state.value}: its worker was asked to stop")


def _follow(queue: Queue, found: Job) -> Job:
    """Tell the job's steps to its end, each once, whatever is restarted meanwhile."""
    from tuner.errors import ServerUnavailable, UnusableStore

    seen, patience = 0, _Patience()
    while True:
        try:
            found = queue.get(found.id)  # before its events, so that none of them is missed
            for event in queue.events(found.id, after=seen):
                seen = event.seq
                say(_event_line(event))
        except (ServerUnavailable, UnusableStore) as error:
            patience.wait(error)
            continue
        patience = _Patience()
        if found.state.finished:
            return found
        time.sleep(FOLLOW_S)


class _Patience:
    """With one outage: ever longer pauses, and an end."""

    def __init__(self) -> None:
        self._pause_s, self._gives_up_at = FOLLOW_S, 0.0

    def wait(self, error: TunerError) -> None:
        """Before another try. Raises the error when it has lasted for too long."""
        if not self._gives_up_at:
            self._gives_up_at = time.monotonic() + LOST_S
            say(f"{error}; trying again for {LOST_S:g} s")
        if time.monotonic() + self._pause_s > self._gives_up_at:
            raise error
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_S)


def _event_line(event: JobEvent) -> str:
    data: dict[str, Any] = dict(event.data)
    if event.kind == "trials":
        best = ", ".join(f"{at} {time_us:.1f} us" for at, time_us in data["best_us"].items())
        text = f"{data['tried']} tried" + (f"; best {best}" if best else "")
    else:
        shown = ("reason", "owner", "run_id")
        text = ", ".join(f"{name} {data[name]}" for name in shown if name in data)
    return f"{event.at:%H:%M:%S} {event.kind}" + (f": {text}" if text else "")


def _job_table(found: Sequence[Job]) -> str:
    from tuner.render import table

    headers = ("job", "state", "device", "model or problem", "measure", "attempts", "created")
    rows = [
        (
            job.id,
            job.state.value,
            job.request.device,
            job.request.model or job.request.problem.spec(),
            job.request.measure.partition(":")[0],
            job.attempts,
            f"{job.created_at:%Y-%m-%d %H:%M:%S}",
        )
        for job in found
    ]
    return table(headers, rows)


def _post(queue: Queue, request: JobRequest, priority: Priority, as_json: bool) -> dict[str, Any]:
    """The answer as JSON; else its id is printed at once, should a later job be refused."""
    answer = queue.submit(request, priority=priority)
    if not answer.created:
        say(f"the same was asked for before: it is {answer.job.state.value}")
    if not as_json:
        typer.echo(answer.job.id)
    return {**answer.job.as_json(), "created": answer.created}


def _workload(text: str | None, points: Workload | None) -> str | tuple[WorkPoint, ...]:
    """A use by its name; the points of a file, which a worker does not have."""
    from tuner.families.attention.workloads import USES

    if points is None or text is None:
        return ""
    return text if text in USES else points.points


def _engine_version(spec: str) -> str | None:
    """The version here, or the one that is named: the engine need not be on this machine."""
    from tuner.engines.engine import find_engine
    from tuner.errors import UnknownEngine

    try:
        return find_engine(spec).version
    except UnknownEngine:
        name, equals, version = spec.partition("==")
        if not equals:
            raise
        return version.strip()


def _absolute(measure: str) -> str:
    """A recording's path as the worker sees it, whatever its folder."""
    from pathlib import Path

    kind, colon, file = measure.partition(":")
    return f"{kind}:{Path(file).absolute()}" if kind == "replay" and file else measure
