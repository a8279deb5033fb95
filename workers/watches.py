"""The watch list: which models are kept tuned, on which devices.

It is a nightly.toml. The API takes the same tables as JSON objects:

    revalidate = 2                     # oldest results to measure again, for each device and night

    [[watch]]
    models = ["deepseek-r1"]           # presets: all their problems; or fused_moe:... and others
    devices = ["L40S", "H200"]
    tp = [8, 16]                       # this and all below may be left out
    ep = [1]
    dtypes = ["int8_w8a8"]             # default: the model's own
    batch_sizes = [1, 2, 4]            # default: the engine's own
    engine = "sglang"
    measure = "gpu"
    effort = "standard"
    families = ["attention"]           # or "all"; default: all whose files servers read
    server_args = "--quantization fp8" # flags and variables that the servers are started with
    architecture = "..."               # of problems: the class of their model,
    checkpoint = "..."                 # and how it stores experts, as the request of a job has them
    hidden = ["fused_moe:..."]         # problems of it that nobody wants
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tuner.devices.table import Device, find_device
from tuner.engines.engine import parse_spec
from tuner.engines.settings import flags_to_keep, server_settings, settings_to_keep
from tuner.errors import BadInput, MalformedWatchList, TunerError, UnknownModel
from tuner.files import Table, parse_toml
from tuner.jobs.job import JobRequest
from tuner.jobs.model_jobs import ModelJobs, model_jobs
from tuner.jobs.running import RunningServer, ask_listed
from tuner.jobs.web import checked_url
from tuner.jobs.workers import JobRequirements, WorkerStatus, engine_version_here
from tuner.models.serving import Serving
from tuner.models.table import find_preset
from tuner.problems.dtypes import parse_dtype
from tuner.problems.points import Problem, ServerSettings
from tuner.problems.registry import find_family, parse_problem
from tuner.store.nights import NightStore, StoredWatch
from tuner.targets import (
    ALL,
    FamilyNames,
    TuningTarget,
    all_settings,
    as_flags_say,
    families_named,
    is_url,
    reader_of,
    refuse_options,
    resolve_model,
)
from tuner.tuning.request import parse_effort, parse_source
from workers.settings import Settings

REVALIDATE = 2
_MOST = 4096  # jobs of one watch
# Left out of its table if empty, so that an equal watch of an earlier program has the same key.
_OFTEN_EMPTY = ("families", "architecture", "checkpoint", "server_args", "hidden")


@dataclass(frozen=True)
class Watch:
    """Every combination of these values is kept tuned. Raises BadInput for invalid values."""

    models: tuple[str, ...]
    devices: tuple[str, ...]
    tp: tuple[int, ...] = (1,)
    ep: tuple[int, ...] = (1,)
    dtypes: tuple[str, ...] = ()  # none: the model's own
    batch_sizes: tuple[int, ...] = ()  # none: the engine's own
    engine: str = "sglang"
    measure: str = "gpu"
    effort: str = "standard"
    families: FamilyNames = ()  # of models, as `resolve_model` takes them
    architecture: str = ""  # of problems: the class of their model
    checkpoint: str = ""  # likewise how it stores experts
    server_args: str = ""  # flags and variables that the servers are started with
    hidden: tuple[str, ...] = ()  # problems that are left out
    id: int | None = field(default=None, compare=False)  # of a watch that was added

    def __post_init__(self) -> None:
        for device in self.devices:
            find_device(device)
        for dtype in self.dtypes:
            parse_dtype(dtype)
        parse_source(self.measure)
        parse_effort(self.effort)
        families_named(self.families)
        server_settings(self.server_args)
        many = [self.models, self.devices, self.tp, self.ep, self.dtypes or ("",)]
        count = len(list(itertools.islice(itertools.product(*many), _MOST + 1)))
        if not 0 < count <= _MOST:
            raise BadInput(f"a watch names at least one model and device, and {_MOST} jobs at most")

    @property
    def key(self) -> str:
        """Return the watch's name, which does not depend on its hidden problems."""
        whole = replace(self, hidden=()).as_json()
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """Return the watch as a table of nightly.toml."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if name != "id" and (value or name not in _OFTEN_EMPTY)
        }

    def requests(self, workers: Sequence[WorkerStatus] = ()) -> Iterator[Watched]:
        """Yield a job for each problem of each combination that is not hidden, and its parts that
        are left out.

        Yield Unresolved if there can be no job. Problems are for the engine's version that a job
        would get now.
        """
        here = engine_version_here(self.engine)
        choices = itertools.product(
            self.models, self.devices, self.tp, self.ep, self.dtypes or (None,)
        )
        for model, device, tp, ep, dtype in choices:
            try:
                minute = int(time.monotonic() // 60)
                running = _running(model, minute) if is_url(model) else None
                if isinstance(running, TunerError):
                    raise running
                spec = running.spec if running else self.engine
                need = JobRequirements(find_device(device).name, self.measure == "gpu", spec)
                engine = need.newest(workers, here).engine
                combination = model, tp, ep, dtype, engine, find_device(device).name
                jobs = _jobs(self, combination, running, minute)
                # Results are judged by the version that a job gets, if workers name a version.
                pinned = need.newest(workers, None).engine
            except TunerError as error:
                name = f"{model} TP {tp} EP {ep}" + (f" {dtype}" if dtype else "")
                yield Unresolved(name, device, error)
                continue
            for one in jobs.requests:
                if one.spec not in self.hidden:
                    yield replace(one, engine=pinned)
            for left in jobs.left_out:
                if left.what not in self.hidden:
                    yield LeftAlone(model, find_device(device).name, left.what, left.why)

    def jobs(
        self,
        model: str,
        tp: int,
        ep: int,
        dtype: str | None,
        engine: str,
        device: Device,
        running: RunningServer | None = None,
    ) -> ModelJobs:
        """Return the jobs of one combination. Raises BadInput.

        `running` is the server at the model's URL, if the model is a URL.
        """
        name, version = parse_spec(engine)
        flags = server_settings(self.server_args)
        if running:
            model = find_preset(running.model).name
            flags = {**server_settings(running.server_args or ""), **flags}
        else:
            check_model(model)
        serving = Serving(
            engine=name,
            engine_version=version,
            device=device,
            tp=tp,
            dtype=parse_dtype(dtype) if dtype else None,
            options={"ep": ep} if ep > 1 else {},
        )
        targets = resolve_model(model, as_flags_say(serving, flags), self.families)
        server = targets[0].server or ServerSettings(self.architecture, self.checkpoint)
        settings = all_settings(server, engine, flags, ep)
        sizes = {"batch_sizes": self.batch_sizes} if self.batch_sizes else {}
        refuse_options([one.family for one in targets], sizes)

        def request_of(target: TuningTarget, problem: Problem) -> JobRequest:
            own = {option.name for option in target.family.selecting}
            some = {option: value for option, value in sizes.items() if option in own}
            return JobRequest(
                problem=problem,
                device=device.name,
                engine=self.engine,
                measure=self.measure,
                selection=target.family.read_selection(problem, some),
                effort=parse_effort(self.effort),
                model=model,
                server=settings_to_keep(name, problem, settings),
            )

        place, kind = (name, version or ""), parse_source(self.measure).kind
        unread = bool(self.families)
        return model_jobs(targets, place, device, settings, kind, request_of, unread=unread)


@lru_cache(maxsize=64)
def _running(url: str, _: int) -> RunningServer | TunerError:
    """Return the server at a URL, or why it is not known, asked once a minute.

    Pages must not wait again and again for a server that is away.
    """
    try:
        return ask_listed(url)
    except TunerError as error:
        return error


@lru_cache(maxsize=1024)
def _jobs(
    watch: Watch,
    combination: tuple[str, int, int, str | None, str, str],
    running: RunningServer | None,
    _: int,
) -> ModelJobs:
    """Return the jobs as `jobs` does, at most a minute old.

    Pages ask for them again and again, and an engine may change in place.
    """
    model, tp, ep, dtype, engine, device = combination
    return watch.jobs(model, tp, ep, dtype, engine, find_device(device), running)


@dataclass(frozen=True)
class Unresolved:
    """A combination of a watch that no job can be made of."""

    model: str  # with the parallel sizes and the dtype; or which watch cannot be read
    device: str  # as the watch spells it; "" for a watch that cannot be read
    error: TunerError

    def __str__(self) -> str:
        return f"{self.model} on {self.device}" if self.device else self.model


@dataclass(frozen=True)
class LeftAlone:
    """A part of a watched model that is not kept tuned, and the reason."""

    model: str
    device: str  # the device table's name
    what: str  # a problem, or families in words
    why: str


Watched = JobRequest | Unresolved | LeftAlone


@dataclass(frozen=True)
class UnreadableWatch:
    """A stored watch that this release cannot read: it must not stop the others."""

    id: int
    error: TunerError = field(compare=False)

    def requests(self, workers: Sequence[WorkerStatus] = ()) -> Iterator[Watched]:
        """Yield the error, in place of a watch's requests."""
        yield Unresolved(f"watch {self.id}", "", self.error)


@dataclass(frozen=True)
class WatchList:
    """The watches that the nightly round keeps tuned."""

    watches: tuple[Watch | UnreadableWatch, ...]
    revalidate: int = REVALIDATE  # oldest results to measure again, for each device and night

    @property
    def of_file(self) -> str:
        """Return a name of the watches of the nightly.toml; "" if there is none."""
        listed = [one for one in self.watches if isinstance(one, Watch) and one.id is None]
        return WatchList(tuple(listed)).digest if listed else ""

    @property
    def digest(self) -> str:
        """Return a text that is equal for lists of the same requests in the same order."""
        said = [one.as_json() if isinstance(one, Watch) else one.id for one in self.watches]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]


def read_watch_list(path: Path) -> WatchList:
    """Read a nightly.toml. Raises MalformedWatchList, which names the field."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MalformedWatchList(f"cannot read {path}: {error.strerror}") from None
    values = parse_toml(data, str(path), MalformedWatchList)
    try:
        table = Table(values, "", MalformedWatchList)
        revalidate = table.whole("revalidate", 0, 1000, REVALIDATE)
        rows = table.take("watch", [])
        table.done()
    except MalformedWatchList as error:
        raise MalformedWatchList(f"{path}: {error}") from None
    if not isinstance(rows, list):
        raise MalformedWatchList(f"{path}: write [[watch]], with two brackets, for each watch")
    return WatchList(
        tuple(read_watch(row, f"{path}: watch {i + 1}") for i, row in enumerate(rows)), revalidate
    )


def watch_list_of(settings: Settings, nights: NightStore) -> WatchList:
    """Read the watches of the file, and the watches that were added over the API.

    Raises MalformedWatchList for the file, which its owner can mend.
    """
    listed = read_watch_list(settings.nightly) if settings.nightly else WatchList(())
    added = [_read_stored(row) for row in nights.watches()]
    return replace(listed, watches=(*listed.watches, *added))


def _read_stored(row: StoredWatch) -> Watch | UnreadableWatch:
    try:
        return replace(read_watch(row.watch, f"watch {row.id}"), id=row.id)
    except MalformedWatchList as error:
        return UnreadableWatch(row.id, error)


def read_watch(values: Mapping[str, Any], where: str = "the watch") -> Watch:
    """Read a watch from a table of nightly.toml or a JSON object. Raises MalformedWatchList."""
    try:
        table = Table(
            dict(values) if isinstance(values, Mapping) else values, where, MalformedWatchList
        )
        given: dict[str, Any] = {
            "models": tuple(table.strings("models", ())),
            "devices": tuple(table.strings("devices", ())),
            "tp": _counts(table, "tp", [1]),
            "ep": _counts(table, "ep", [1]),
            "dtypes": tuple(table.strings("dtypes", ())),
            "batch_sizes": _counts(table, "batch_sizes", []),
            "engine": table.text("engine", None, "sglang"),
            "measure": table.text("measure", None, "gpu"),
            "effort": table.text("effort", None, "standard"),
            "families": _families(table),
            "architecture": table.text("architecture", None, ""),
            "checkpoint": table.text("checkpoint", None, ""),
            "server_args": table.text("server_args", None, ""),
            "hidden": tuple(parse_problem(one).spec() for one in table.strings("hidden", ())),
        }
        table.done()  # before the values: a misspelt field is not called missing
        return Watch(**given)
    except MalformedWatchList:
        raise
    except BadInput as error:
        text = f"{where}: {error.message}"
        raise MalformedWatchList(text, cli=error.cli, api=error.api, page=error.page) from None


def named(watch: Watch) -> Watch:
    """Return the watch as it is stored: with the tables' names of its models and devices.

    Of the servers' flags it has the flags that count. Raises BadInput.
    """
    for model in watch.models:
        check_model(model)
    return replace(
        watch,
        models=tuple(map(model_name, watch.models)),
        devices=tuple(find_device(text).name for text in watch.devices),
        server_args=flags_to_keep(watch.engine, watch.server_args) if watch.server_args else "",
    )


def model_name(text: str) -> str:
    """Return a preset's name as in the table; a problem, a warning line or a server's URL as it is.

    Raises UnknownModel for anything else. A path is never opened, as the answer would tell a client
    which files the server has.
    """
    return find_preset(text).name if is_preset(text) else text


def check_model(text: str) -> None:
    """Raise UnknownModel or BadProblem for a text that names nothing to tune in any way
    of serving.
    """
    if is_url(text):
        checked_url(text)
    elif find_family(text) is not None:
        parse_problem(text)
    else:
        try:
            model_name(text)
        except UnknownModel as error:  # no file is read here, so none is asked for
            steps = _STEPS if error.cli else {}
            raise UnknownModel(error.message, **steps) from None


_STEPS = {
    "cli": "; see `tuner list models`, or name a problem or a server's URL",
    "api": "; GET /v1/models lists the presets",
    "page": ": the page Models lists the known models",
}


def is_preset(text: str) -> bool:
    """Say whether the text can only be a preset's name.

    It is no problem, no warning line and no URL of a running server.
    """
    return find_family(text) is None and reader_of(text) is None and not is_url(text)


def _families(table: Table) -> FamilyNames:
    given = table.take("families", [])
    if given == ALL:
        return ALL
    if not (isinstance(given, list) and all(isinstance(one, str) for one in given)):
        raise MalformedWatchList(f"{table.field('families')} must be a list of names, or all")
    return tuple(given)


def _counts(table: Table, name: str, default: list[int]) -> tuple[int, ...]:
    value = table.take(name, default)
    good = isinstance(value, list) and all(
        isinstance(one, int) and not isinstance(one, bool) and 0 < one < 1 << 20 for one in value
    )
    if not (isinstance(value, list) and good):
        raise MalformedWatchList(f"{table.field(name)} must be a list of whole numbers from 1")
    return tuple(value)
