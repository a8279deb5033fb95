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
    AllFamilies,
    DeviceName,
    DtypeName,
    EffortName,
    EngineOfTarget,
    Families,
    Json,
    Measure,
    Seed,
    Server,
    ServerArgs,
    Target,
    Tp,
)
from tuner.cli.targets import (
    TargetOptions,
    read_command_target,
    selection_of,
    targets_and_settings,
)
from tuner.devices.table import Device, find_device
from tuner.shell import command_line

if TYPE_CHECKING:  # `tuner --help` must not pay for SQLAlchemy
    from typing import Any

    from tuner.jobs.job import Submitted
    from tuner.jobs.queue import Queue
    from tuner.problems.points import Problem
    from tuner.targets import TuningTarget


@command_of(jobs, "submit")
@with_family_options
def submit(
    target: Target,
    device: DeviceName,
    choice: FamilyChoice,
    every: AllFamilies = False,
    families: Families = "",
    tp: Tp = 1,
    dtype: DtypeName = None,
    measure: Measure = "gpu",
    effort: EffortName = "standard",
    engine: EngineOfTarget = "",
    server_args: ServerArgs = "",
    seed: Seed = 0,
    urgent: Annotated[
        bool, typer.Option("--urgent", help="Run before waiting jobs; default: after them.")
    ] = False,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Queue tuning jobs for a worker, one for each problem of a model, and print their ids.

    Of a model, the problems for which servers read a file; `tuner plan` shows which.
    """
    from tuner.engines.engine import parse_spec
    from tuner.engines.settings import settings_to_keep
    from tuner.jobs.job import JobRequest, Priority
    from tuner.jobs.model_jobs import model_jobs
    from tuner.targets import read_family_names
    from tuner.tuning.request import parse_effort, parse_source

    with open_jobs(server) as queue:
        card = find_device(device)
        named = read_command_target(target)
        pinned = _pinned(queue, card, engine or named.served_by()[0] or "sglang", measure)
        name, version = parse_spec(pinned)
        flags = named.settings(server_args)
        asked = TargetOptions(named, card, name, version, tp, dtype, flags)
        label = named.model.name if named.server and named.model else target
        names = read_family_names(families)
        every = every or bool(names) or (named.model is not None and choice.family is None)
        targets, flags = targets_and_settings(asked, choice, every, names)

        def request_of(found: TuningTarget, problem: Problem) -> JobRequest:
            return JobRequest(
                problem=problem,
                device=card.name,
                engine=pinned,
                measure=measure if server else _absolute(measure),
                selection=selection_of(found.family, problem, choice),
                effort=parse_effort(effort),
                wide=choice.values.get("wide"),
                seed=seed,
                model=label if found.is_model and ":" not in label else "",
                server=settings_to_keep(name, problem, flags),
            )

        place, kind = (name, version or ""), parse_source(measure).kind
        unread = bool(names) or not every
        found = model_jobs(targets, place, card, flags, kind, request_of, unread=unread)
        for note in (*found.notes, *found.left_out):
            say(note)
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
    """The engine with the version that the jobs are for, as the queue's workers have it.

    Raises UnknownEngine where neither they nor this machine has one.
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
