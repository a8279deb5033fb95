"""Turn the bodies of requests into jobs and watches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from api.requests import SubmitJob, SubmitModel, WatchIn
from api.state import Api
from tuner.devices.table import Device, find_device
from tuner.engines.engine import Engine, find_engine, parse_spec
from tuner.engines.settings import server_settings, settings_to_keep
from tuner.errors import BadInput, BadProblem, IndivisibleShape, ServerUnavailable, UnknownEngine
from tuner.export.plan import Elsewhere, ModelPlan
from tuner.jobs.job import JobRequest, refuse_undoable
from tuner.jobs.model_jobs import ModelJobs, model_jobs
from tuner.jobs.running import RunningServer, ask_listed
from tuner.jobs.workers import JobRequirements, WorkerStatus, engine_version_here
from tuner.models.serving import Note, Serving
from tuner.models.table import find_preset
from tuner.problems.points import Problem, ServerSettings
from tuner.problems.registry import Selection, families, family_of, parse_problem
from tuner.problems.results import MeasureKind
from tuner.store.plans import stored_plan
from tuner.targets import (
    Target,
    TuningTarget,
    all_settings,
    as_flags_say,
    is_url,
    only_problem,
    read_target,
    resolve_model,
    resolve_target,
)
from tuner.tuning.request import parse_source
from workers.settings import Settings
from workers.watches import Watch, is_preset, model_name, named, read_watch


@dataclass(frozen=True)
class Asked:
    """Hold the problems that a body asks to tune, and how they are served."""

    body: SubmitJob
    device: Device
    engine: str  # with its version, if one is known
    targets: Sequence[TuningTarget]
    settings: Mapping[str, str]  # of the servers, with the class and the checkpoint of their model
    label: str  # the model's name, if it has one

    @property
    def problems(self) -> list[Problem]:
        return [problem for target in self.targets for problem in target.problems]

    def selection(self, problem: Problem) -> Selection:
        """Return the points of a problem that the body selects. Raises BadInput."""
        family = family_of(problem)
        return family.read_selection(problem, self.body.fields(family.selecting))

    def request(self, target: TuningTarget, problem: Problem) -> JobRequest:
        """Return the job of a problem. Raises BadInput."""
        name, _ = parse_spec(self.engine)
        return JobRequest(
            problem=problem,
            device=self.device.name,
            engine=self.engine,
            measure=self.body.measure,
            selection=self.selection(problem),
            effort=self.body.effort,
            wide=self.body.fields(target.family.searching).get("wide"),
            seed=self.body.seed,
            model=self.body.name or self.label,
            server=settings_to_keep(name, problem, self.settings),
        )


def job_request(
    body: SubmitJob, settings: Settings, workers: Sequence[WorkerStatus]
) -> tuple[JobRequest, list[str]]:
    """Return the job, for a version of its engine, and the assumptions about its model.

    Raises BadInput, which names the wrong field if it is known, or OptionsRefused if a field does
    not apply to the problem.
    """
    given = body.given()
    asked = _asked(
        body, settings, workers, lambda found, how: [resolve_target(found, how, given=given)]
    )
    (target,) = asked.targets
    with _in_field("model"):
        request = asked.request(target, only_problem(target))
        refuse_undoable(request)
    return request, in_api_words(target.notes)


def request_of_batch(
    body: SubmitJob,
    settings: Settings,
    workers: Sequence[WorkerStatus],
    away: dict[str, ServerUnavailable],
) -> tuple[JobRequest, list[str]]:
    """Return the job as `job_request` does, but wait once for a server that does not answer."""
    place = body.model if isinstance(body.model, str) else ""
    if place in away:
        raise away[place]
    try:
        return job_request(body, settings, workers)
    except ServerUnavailable as error:
        away[place] = error
        raise


def asked_model(body: SubmitModel, settings: Settings, workers: Sequence[WorkerStatus]) -> Asked:
    """Read which problems of a model a body asks for. Raises the errors of `job_request`."""
    names, given = body.families, body.given()
    return _asked(
        body, settings, workers, lambda found, how: resolve_model(found, how, names, given)
    )


def jobs_of(asked: Asked, body: SubmitModel) -> ModelJobs:
    """Return the jobs of a model and its parts that are left out. Raises BadInput."""
    name, version = parse_spec(asked.engine)
    wanted = set(map(parse_problem, body.problems))
    if unknown := wanted - set(asked.problems):
        spec = min(one.spec() for one in unknown)
        raise BadProblem(f"the model has no problem {spec}: GET /v1/plan has its problems")
    with _in_field("model"):
        return model_jobs(
            asked.targets,
            (name, version or ""),
            asked.device,
            asked.settings,
            parse_source(body.measure).kind,
            asked.request,
            unread=bool(body.families or body.problems),
            only=wanted,
        )


def plan_of(asked: Asked, api: Api) -> ModelPlan:
    """Return the plan of a model by the store's results. Raises UnusableStore."""
    name, version = parse_spec(asked.engine)
    engine: Engine | Elsewhere
    try:
        engine = find_engine(asked.engine)
    except UnknownEngine:
        engine = Elsewhere(name, version or "")
    return stored_plan(
        api.results,
        api.estimates,
        asked.problems,
        engine,
        asked.device,
        asked.settings,
        asked.body.effort,
        asked.selection,
        kind=parse_source(asked.body.measure).kind,
    )


def in_api_words(notes: Iterable[str]) -> list[str]:
    """Return sentences for the user in the words of the API."""
    return [note.api if isinstance(note, Note) else note for note in notes]


Resolve = Callable[[Target, Serving], Sequence[TuningTarget]]


def _asked(
    body: SubmitJob, settings: Settings, workers: Sequence[WorkerStatus], resolve: Resolve
) -> Asked:
    with _in_field("measure"):
        check_measure(body.measure, settings)
    device, spec, running = find_device(body.device), body.engine, None
    with _in_field("model"):
        if isinstance(body.model, str) and is_url(body.model):
            running = ask_listed(body.model)
            spec = body.engine if "engine" in body.model_fields_set else running.spec
    need = JobRequirements(device.name, body.measure == MeasureKind.GPU.value, spec)
    engine = need.pinned(workers, engine_version_here(spec)).engine
    with _in_field("server_args"):
        said = (running.server_args if running else "") or ""
        flags = {**server_settings(said), **server_settings(body.server_args)}
    with _in_field("model"):
        found, label = _target(body, running)
        targets = resolve(found, _serving(body, engine, flags))
    server = targets[0].server or ServerSettings(body.architecture, body.checkpoint)
    ep = body.fields(one for target in targets for one in target.family.shaping).get("ep", 1)
    return Asked(body, device, engine, targets, all_settings(server, engine, flags, ep), label)


@contextmanager
def _in_field(name: str) -> Iterator[None]:
    """Say that a mistake is in this field, if no other field is known to be wrong."""
    try:
        yield
    except BadInput as error:
        error.field = error.field or ("tp" if isinstance(error, IndivisibleShape) else name)
        raise


def watch_of(body: WatchIn, settings: Settings) -> Watch:
    """Return the watch as it is stored; see `named`. Raises BadInput."""
    with _in_field("measure"):
        check_measure(body.measure, settings)
    with _in_field("server_args"):
        server_settings(body.server_args)
    return named(read_watch(body.model_dump(mode="json")))


def check_measure(measure: str, settings: Settings) -> None:
    """Raise BadInput for a replay on a server that has no folder of recordings."""
    if measure.startswith("replay:") and settings.recordings is None:
        raise BadInput("this server replays no recordings: TUNER_RECORDINGS names no folder")


def _serving(body: SubmitJob, engine: str, flags: Mapping[str, str]) -> Serving:
    every = (option for family in families() for option in family.shaping)
    # A default is nothing that the server's flags could contradict.
    sent = [option for option in every if option.name in body.model_fields_set]
    name, version = parse_spec(engine)
    serving = Serving(
        engine=name,
        engine_version=version,
        device=find_device(body.device),
        tp=body.tp,
        dtype=body.dtype,
        options=body.fields(sent),
    )
    return as_flags_say(serving, flags)


def _target(body: SubmitJob, running: RunningServer | None) -> tuple[Target, str]:
    """Return the target that a body names, or the model that a server runs, and the name of the
    model if it has a name.
    """
    if running:
        # A path is never opened, as the answer would tell a client which files this machine has.
        model = find_preset(running.model)
        return Target(running.url, model=model), model.name
    if isinstance(body.model, dict):
        name = body.name or "config.json"
        return read_target(json.dumps(body.model).encode(), name), name
    text = model_name(body.model)
    return read_target(text), text if is_preset(text) else ""
