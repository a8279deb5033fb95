"""The command that queues jobs, in the local store or on a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.app import command_of, print_json, say
from tuner.cli.family_options import FamilyChoice, with_family_options
from tuner.cli.jobs import jobs, open_jobs
from tuner.cli.options import (
    DeviceName,
    DtypeName,
    EffortName,
    EngineOfTarget,
    Json,
    Measure,
    Server,
    ServerArgs,
    Target,
    Tp,
)
from tuner.cli.plan import say_too_large
from tuner.cli.problems import TargetOptions, selection_of, targets_and_settings
from tuner.cli.targets import read_command_target
from tuner.devices.table import Device, find_device
from tuner.shell import command_line

if TYPE_CHECKING:  # `tuner --help` must not pay for SQLAlchemy
    from typing import Any

    from tuner.cli.jobs import Queue
    from tuner.jobs.job import Submitted
    from tuner.problems.points import Problem
    from tuner.targets import TuningTarget


@command_of(jobs, "submit")
@with_family_options
def submit(
    target: Target,
    device: DeviceName,
    tp: Tp = 1,
    *,
    choice: FamilyChoice,
    dtype: DtypeName = None,
    measure: Measure = "gpu",
    effort: EffortName = "standard",
    engine: EngineOfTarget = "",
    server_args: ServerArgs = "",
    urgent: Annotated[
        bool, typer.Option("--urgent", help="Run before waiting jobs; default: after them.")
    ] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Queue a tuning job for each problem of a model.

    These are the problems for which servers read a file, as `tuner plan` shows them. Prints the
    ids of the jobs.
    """
    from tuner.engines.engine import parse_spec
    from tuner.engines.settings import settings_to_keep
    from tuner.jobs.job import JobRequest, Priority
    from tuner.jobs.model_jobs import model_jobs
    from tuner.tuning.request import parse_effort, parse_source

    with open_jobs(server) as queue:
        card = find_device(device)
        named = read_command_target(target)
        pinned = _pinned(queue, card, engine or named.served_by()[0] or "sglang", measure)
        name, version = parse_spec(pinned)
        flags = named.settings(server_args)
        asked = TargetOptions(named, card, name, version, tp, dtype, flags)
        label = named.model.name if named.server and named.model else target
        every = named.model is not None and not choice.names
        targets, flags = targets_and_settings(asked, choice, every)

        def request_of(found: TuningTarget, problem: Problem) -> JobRequest:
            return JobRequest(
                problem=problem,
                device=card.name,
                engine=pinned,
                measure=measure if server else _absolute(measure),
                selection=selection_of(found.family, problem, choice),
                effort=parse_effort(effort),
                model=label if found.is_model and ":" not in label else "",
                server=settings_to_keep(name, problem, flags),
            )

        place, kind = (name, version or ""), parse_source(measure).kind
        found = model_jobs(targets, place, card, flags, kind, request_of, unread=not every)
        for note in (*found.notes, *found.left_out):
            say(note)
        say_too_large(named.model, [one for some in targets for one in some.problems], card)
        priority = Priority.URGENT if urgent else Priority.NORMAL
        answers = queue.submit_all(found.requests, priority=priority) if found.requests else []
        waiting = {reason for one in answers if (reason := queue.waiting(one.job))}
    _show_submitted(answers, sorted(waiting), as_json)
    if answers and not as_json:
        words = ["follow", answers[0].job.id] if len(answers) == 1 else []
        words += ["--server", server] if server else []
        say(f"next: {command_line('tuner', 'jobs', *words)}")


def _show_submitted(answers: Sequence[Submitted], waiting: Sequence[str], as_json: bool) -> None:
    from tuner.tuning.request import estimate_line

    if not answers:
        say("nothing is queued")
    for reason in waiting:
        say(f"waiting: {reason}")
    estimated = [one.estimated_gpu_s for one in answers if one.estimated_gpu_s is not None]
    if estimated:
        say(estimate_line(sum(estimated), answers[0].job.request.device))
    for answer in answers:
        if not answer.created:
            say(f"the same job was submitted before: it is {answer.job.state.value}")
        if not as_json:
            typer.echo(answer.job.id)
    if as_json:
        posted = [_as_json(answer) for answer in answers]
        print_json(posted[0] if len(posted) == 1 else {"jobs": posted})


def _as_json(answer: Submitted) -> dict[str, Any]:
    return {
        **answer.job.as_json(),
        "created": answer.created,
        "estimated_gpu_s": answer.estimated_gpu_s,
    }


def _pinned(queue: Queue, device: Device, spec: str, measure: str) -> str:
    """Return the engine with the version for which jobs are made, as the queue's workers have it.

    Raises UnknownEngine if neither they nor this machine has a release.
    """
    from tuner.engines.engine import find_engine
    from tuner.jobs.workers import JobRequirements, engine_version_here

    need = JobRequirements(device.name, measure == "gpu", spec)
    pinned = need.pinned(queue.workers(), engine_version_here(spec)).engine
    return pinned if "==" in pinned else f"{pinned}=={find_engine(pinned).version}"


def _absolute(measure: str) -> str:
    """Make a recording's path absolute, because the worker runs in another folder."""
    kind, colon, file = measure.partition(":")
    return f"{kind}:{Path(file).absolute()}" if kind == "replay" and file else measure
