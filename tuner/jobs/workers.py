"""Describe workers: their abilities, who can do a job, and why a job does not go on."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import lru_cache
from typing import Any

from tuner.engines.engine import find_engine, version_order
from tuner.errors import UnknownEngine
from tuner.jobs.job import (
    HEARTBEAT,
    HELD,
    LEASE,
    Job,
    JobFilter,
    JobRequest,
    JobState,
    UnreadableRequest,
    iso,
    read_time,
)

BEAT = timedelta(seconds=10)
ALIVE = timedelta(seconds=45)  # a worker that was seen within this is alive
FORGET_AFTER = timedelta(days=14)  # since it was last seen


class WorkerState(str, Enum):
    """Whether a worker takes the jobs that it could do."""

    ACTIVE = "active"
    SET_ASIDE = "set_aside"  # it could not begin to tune, twice in a row
    STOPPED = "stopped"


@dataclass(frozen=True)
class WorkerInfo:
    """A worker process and its abilities."""

    id: str  # one for each process
    name: str  # the same after a restart
    host: str
    gpu: str  # its UUID; "" without one
    device: str  # the GPU's name in the device table; "" without one
    devices: tuple[str, ...] | None  # whose predictions and replays it does; None: all
    engines: tuple[str, ...]  # sglang==0.5.16, ...: the preferred version of an engine first
    packages: Mapping[str, str]  # name -> version: triton, torch, engine-tuner

    def filters(self) -> list[JobFilter]:
        """Return the jobs that it takes: first the jobs that measure on its GPU, then
        all others.
        """
        names = {_parts(engine)[0] for engine in self.engines}
        engines = (*self.engines, *sorted(names))
        others = JobFilter(needs_gpu=False, devices=self.devices, engines=engines)
        if not self.gpu:
            return [others]
        return [JobFilter(needs_gpu=True, devices=(self.device,), engines=engines), others]

    def preferred(self) -> Mapping[str, str]:
        """Return each engine's version here when no version is given: sglang -> sglang==0.5.16."""
        return {_parts(engine)[0]: engine for engine in reversed(self.engines)}

    def with_engines(self, engines: tuple[str, ...]) -> WorkerInfo:
        """Return the same worker with other engines."""
        return replace(self, engines=engines)


def drain_state(job_id: str | None) -> str:
    """Name the state of a worker that an operator drains, which may still have a job."""
    return "draining" if job_id else "drained"


@dataclass(frozen=True)
class WorkerStatus:
    """A worker as the store knows it."""

    info: WorkerInfo
    state: WorkerState
    reason: str  # why it was set aside
    drain: bool
    started_at: datetime
    seen_at: datetime
    alive: bool
    job_id: str | None  # that it has now

    @property
    def takes_jobs(self) -> bool:
        return self.alive and self.state is WorkerState.ACTIVE and not self.drain

    @property
    def doing(self) -> str:
        """Say in a word: idle, busy, draining, drained, set aside, stopped or lost."""
        if self.state is WorkerState.STOPPED:
            return "stopped"
        if not self.alive:
            return "lost"
        if self.state is WorkerState.SET_ASIDE:
            return "set aside"
        if self.drain:
            return drain_state(self.job_id)
        return "busy" if self.job_id else "idle"

    def called(self, name: str) -> bool:
        """Say whether `name` is the worker's name, its id or its host."""
        return name in (self.info.id, self.info.name, self.info.host)

    def as_json(self) -> dict[str, Any]:
        """Return the worker as the API and `tuner admin workers --json` show it."""
        return {
            **asdict(self.info),
            "state": self.doing.replace(" ", "_"),
            "reason": self.reason,
            "job_id": self.job_id,
            "started_at": iso(self.started_at),
            "seen_at": iso(self.seen_at),
        }


def read_info(values: Mapping[Any, Any]) -> WorkerInfo:
    """Read a worker process from its row, or from the JSON object of a worker."""
    info = WorkerInfo(**{one.name: values[one.name] for one in fields(WorkerInfo)})
    devices = None if info.devices is None else tuple(info.devices)
    return replace(info, devices=devices, engines=tuple(info.engines))


def read_worker(values: Mapping[str, Any]) -> WorkerStatus:
    """Read a worker from the JSON object that `WorkerStatus.as_json` makes."""
    doing = values["state"]
    states = {"set_aside": WorkerState.SET_ASIDE, "stopped": WorkerState.STOPPED}
    return WorkerStatus(
        info=read_info(values),
        state=states.get(doing, WorkerState.ACTIVE),
        reason=values["reason"],
        drain=doing in ("draining", "drained"),
        started_at=read_time(values["started_at"]),
        seen_at=read_time(values["seen_at"]),
        alive=doing not in ("stopped", "lost"),
        job_id=values["job_id"],
    )


@dataclass(frozen=True)
class JobRequirements:
    """The abilities that a worker must have to do a job."""

    device: str
    needs_gpu: bool
    engine: str  # sglang==0.5.16, or sglang: any version

    @classmethod
    def of(cls, request: JobRequest | UnreadableRequest) -> JobRequirements:
        """Return the requirements of a job."""
        return cls(request.device, request.needs_gpu, request.engine)

    def met_by(self, info: WorkerInfo) -> bool:
        """Say whether a worker can do the job."""
        return self._device_met_by(info) and self._engine_met_by(info)

    def _device_met_by(self, info: WorkerInfo) -> bool:
        if self.needs_gpu:
            return info.device == self.device
        return info.devices is None or self.device in info.devices

    def _engine_met_by(self, info: WorkerInfo) -> bool:
        name, version = _parts(self.engine)
        return any(
            _parts(one)[0] == name and version in (None, _parts(one)[1]) for one in info.engines
        )

    def pinned(self, workers: Iterable[WorkerStatus], here: str | None) -> JobRequirements:
        """Return the same requirements with one version of the engine.

        Without a version, it is the version `here`, unless the living workers for the device have
        only others: then it is the newest that any of them prefers. It stays open if nobody knows a
        version.
        """
        name, version = _parts(self.engine)
        if version is not None:
            return self
        able = [one.info for one in workers if one.takes_jobs and self._device_met_by(one.info)]
        everything = {engine for info in able for engine in info.engines}
        preferred = {info.preferred().get(name) for info in able} - {None}
        if here is not None and (f"{name}=={here}" in everything or not preferred):
            return replace(self, engine=f"{name}=={here}")
        newest = max((one for one in preferred if one), key=_version_order, default=self.engine)
        return replace(self, engine=newest)

    def newest(self, workers: Iterable[WorkerStatus], here: str | None) -> JobRequirements:
        """Return the same requirements with the newest version that a worker of `takers` prefers.

        Without takers, return `pinned`. Repeated work must not go back to an old version.
        """
        name, version = _parts(self.engine)
        theirs = {one.preferred()[name] for one in self.takers(workers)}
        if version is not None or not theirs:
            return self.pinned((), here)
        return replace(self, engine=max(theirs, key=_version_order))

    def takers(self, workers: Iterable[WorkerStatus]) -> list[WorkerInfo]:
        """Return the workers that take such a job. If none does now, return the last start of each
        that is expected back.

        A worker of this machine that does not take jobs would come back with what is installed now.
        """
        able = [one for one in workers if self.met_by(one.info)]
        if now := [one.info for one in able if one.takes_jobs]:
            return now
        last = {one.info.name: one.info for one in sorted(able, key=lambda one: one.seen_at)}
        return [one for one in last.values() if one.host != socket.gethostname()]

    def hosts(self, workers: Iterable[WorkerStatus]) -> set[str]:
        """Return the hosts of all known workers that can do the job, living or not."""
        return {one.info.host for one in workers if self.met_by(one.info)}

    @property
    def version(self) -> str | None:
        return _parts(self.engine)[1]

    def unmet(self, workers: Sequence[WorkerStatus], now: datetime) -> str:
        """Say why no living worker can do the job; "" if a worker can."""
        able = [one for one in workers if self.met_by(one.info)]
        if any(one.takes_jobs for one in able):
            return ""
        name, version = _parts(self.engine)
        what = f"{name} {version}" if version else name
        host = "both" if self.needs_gpu else what
        card = f"with {self.device}" if self.needs_gpu else f"for predictions of {self.device}"
        text = f"no worker {card} and {what}"
        if not able:
            return f"{text} was ever seen: start `tuner worker` on a host with {host}"
        living = [one for one in able if one.alive]
        if aside := [one for one in living if one.state is WorkerState.SET_ASIDE]:
            return f"{text} takes jobs: {aside[0].info.name} is set aside: {aside[0].reason}"
        if living:
            return f"{text} takes jobs: {living[0].info.name} is drained"
        return f"{text} is alive; last seen {ago(now - max(one.seen_at for one in able))} ago"


def _parts(engine: str) -> tuple[str, str | None]:
    """Split as `parse_spec`, but for any name: a newer program's workers may have other engines."""
    name, equals, version = (part.strip() for part in engine.partition("=="))
    return name, version if equals else None


def _version_order(engine: str) -> tuple[Any, ...]:
    return version_order(_parts(engine)[1] or "")


def engine_version_here(spec: str) -> str | None:
    """Return the version that `spec` means on this machine, at most a minute old.

    Without that engine here, return the version that `spec` names, or None.
    """
    return _engine_version_here(spec, int(time.monotonic() // 60))


@lru_cache(maxsize=64)
def _engine_version_here(spec: str, minute: int) -> str | None:
    try:
        return find_engine(spec).version
    except UnknownEngine:
        return spec.partition("==")[2].strip() or None


def ago(age: timedelta) -> str:
    """Say a time span in its largest whole unit: "3 minutes", "2 days"."""
    seconds = max(0, int(age.total_seconds()))
    for name, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if count := seconds // size:
            return f"{count} {name}{'s' if count > 1 else ''}"
    return f"{seconds} s"


SILENT = 2.5 * HEARTBEAT  # two heartbeats were missed, and a third is nearly due


@dataclass(frozen=True)
class Stalled:
    """A job that a silent worker holds. `why` says it in words.

    It is no state of the stored job: a reconciler takes the job back by its own clock, and until
    then the worker may come back.
    """

    worker: str  # its name, or its id if the name is not known
    heartbeat_at: datetime  # the last heartbeat
    last_step_at: datetime  # the job's newest event: most often a batch of trials
    lease_ends_at: datetime
    another: bool  # whether another living worker can take the job then
    why: str

    def as_json(self) -> dict[str, Any]:
        times = ("heartbeat_at", "last_step_at", "lease_ends_at")
        return {**asdict(self), **{name: iso(getattr(self, name)) for name in times}}


class Reasons:
    """Says why jobs do not go on, by the known workers and the time of day."""

    def __init__(self, workers: Sequence[WorkerStatus], now: datetime) -> None:
        self.workers, self.now = workers, now
        self._unmet: dict[JobRequirements, str] = {}  # a list of jobs has few needs

    def stalled(self, job: Job) -> Stalled | None:
        """Return the facts of a held job whose worker is silent; None for any other job."""
        if job.state not in HELD or job.lease_expires_at is None:
            return None
        heartbeat = job.lease_expires_at - LEASE
        if self.now - heartbeat < SILENT:
            return None
        owner = next((one.info.name for one in self.workers if one.info.id == job.owner), "")
        others = [one for one in self.workers if one.info.id != job.owner]
        need = JobRequirements.of(job.request)
        another = any(one.takes_jobs and need.met_by(one.info) for one in others)
        found = Stalled(
            owner or job.owner, heartbeat, job.updated_at, job.lease_expires_at, another, ""
        )
        return replace(found, why=self._said(found))

    def why(self, job: Job) -> str:
        """Say why a job does not go on; "" if nothing is known to hinder it."""
        if stalled := self.stalled(job):
            return stalled.why
        if job.state is not JobState.QUEUED:
            return ""
        if isinstance(job.request, UnreadableRequest):
            return f"this release cannot read its request: {job.request.why}"
        if unmet := self.unmet(job.request):
            return unmet
        if job.available_at > self.now:
            after = f" after: {job.error}" if job.error else ""
            return f"it is tried again at {self._clock(job.available_at)}{after}"
        return ""

    def unmet(self, request: JobRequest) -> str:
        """Say why no living worker can do a job; "" if a worker can."""
        need = JobRequirements.of(request)
        if need not in self._unmet:
            self._unmet[need] = need.unmet(self.workers, self.now)
        return self._unmet[need]

    def as_json(self, job: Job) -> Mapping[str, Any]:
        """Return the fields of the API's answers that say why a job does not go on."""
        stalled = self.stalled(job)
        return {"waiting": self.why(job), "stalled": stalled and stalled.as_json()}

    def _said(self, found: Stalled) -> str:
        silent = (
            f"{found.worker} has sent no heartbeat since {self._clock(found.heartbeat_at)}, "
            f"and the job's last step was at {self._clock(found.last_step_at)}"
        )
        ended = found.lease_ends_at <= self.now
        lease = f"its lease {'ended' if ended else 'ends'} at {self._clock(found.lease_ends_at)}"
        if not found.another:
            return f"{silent}; {lease}, and no other living worker can take the job"
        then = "another worker takes the job soon" if ended else "then another worker takes the job"
        return f"{silent}; {lease}, {then}"

    def _clock(self, at: datetime) -> str:
        form = "%H:%M:%S UTC" if at.date() == self.now.date() else "%Y-%m-%d %H:%M:%S UTC"
        return at.strftime(form)
