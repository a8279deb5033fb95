"""Do the nightly round: compare the watch list with the store, and post jobs for the difference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any

from tuner.errors import TunerError, UnusableStore
from tuner.jobs.job import Job, JobRequest, JobState, Priority, UnreadableRequest
from tuner.jobs.queue import JobQuery
from tuner.jobs.workers import JobRequirements
from tuner.problems.results import Winner
from tuner.store.api_key import NIGHTLY
from tuner.store.current_winners import current_winners
from tuner.store.database import Clock, Database, utc_now
from tuner.store.jobs import JobStore
from tuner.store.lookups import Lookups
from tuner.store.nights import NightStore, Round
from tuner.store.results import ResultStore
from tuner.store.submissions import Unmet
from tuner.store.workers import WorkerStore
from tuner.tuning.gains import NOISE, gains, mean_gain
from workers.coverage import WatchState, WatchStatus, watch_statuses
from workers.night_report import model_reports, with_faster
from workers.queue import Announcer, Announces
from workers.settings import STORE_LIMITS, Settings
from workers.watches import LeftAlone, Unresolved, WatchList, watch_list_of

KINDS = ("missing", "stale", "revalidated")  # kinds of queued requests, in a round's summary


@dataclass(frozen=True)
class Outcome:
    """A request that a night queued, and its outcome."""

    kind: str  # of KINDS
    queued: Mapping[str, Any]  # as the night's summary has it
    job: Job | None  # None: nothing was queued, or a night before job_id was recorded
    gain_after: float | None  # of the winners in the job's environment, once it is done

    @property
    def faster(self) -> bool:
        """Say whether the mean gain has grown by more than the noise of times."""
        return (self.gain_after or 0.0) > (self.gain_before or 1.0) * (1 + NOISE)

    @property
    def gain_before(self) -> float | None:
        return self.queued.get("gain_before")

    @property
    def failed(self) -> bool:
        return self.job is not None and self.job.state in (JobState.FAILED, JobState.DEAD)

    def as_json(self) -> dict[str, Any]:
        job = self.job
        return {
            **self.queued,
            "kind": self.kind,
            "why": self.queued.get("why", ""),
            "job_id": job.id if job else self.queued.get("job_id"),
            "state": job.state.value if job else None,
            "error": job.error if job else "",
            "gain_before": self.gain_before,
            "gain_after": self.gain_after,
            "faster": self.faster,
        }


def gain_now(request: JobRequest, results: ResultStore) -> float | None:
    """Return the mean gain of the results that count now for a request; None without any."""
    engine = request.engine.partition("==")[0].strip()
    found = results.winners_at(request.problem, request.device, engine)
    return _gain(current_winners(found))


def outcomes(summary: Mapping[str, Any], store: Database) -> list[Outcome]:
    """Return the outcomes of a night's requests: failures first, then in the summary's order."""
    queued = list(_queued(summary))
    ids = {one["job_id"] for _, one in queued if one.get("job_id")}
    jobs = JobStore(store).with_ids(ids)
    after = {
        job.id: _gain(ResultStore(store).winners_of(job.run_id))
        for job in jobs.values()
        if job.state is JobState.DONE and job.run_id is not None
    }
    found = []
    for kind, one in queued:
        job = jobs.get(one.get("job_id") or "")
        found.append(Outcome(kind, one, job, after.get(job.id) if job else None))
    return sorted(found, key=lambda one: not one.failed)


def seen_now(summary: Mapping[str, Any] | None, store: Database) -> dict[str, Any]:
    """Return a night's summary, with each model's faster problems and the outcomes of
    its requests.
    """
    found = [one.as_json() for one in outcomes(summary or {}, store)]
    return {"summary": summary and with_faster(summary, found), "outcomes": found}


def _queued(summary: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for kind in KINDS:
        for one in summary.get(kind) or ():
            yield kind, one


def _gain(winners: Sequence[Winner]) -> float | None:
    return mean_gain(one.ratio for one in gains(winner.entry for winner in winners))


SCHEDULE = "nightly"
UNDER_WAY = "another process is doing it"  # or was: a round that was killed counts for a while
AT_ONCE = 100  # jobs of one transaction
NOT_FRESH = timedelta(0)  # no finished job answers the round's requests: they are to run again


@dataclass(frozen=True)
class NightWork:
    """The work that a nightly round will do."""

    watched: Sequence[WatchStatus]
    revalidate: Sequence[JobRequest]
    errors: Sequence[tuple[str, str]]  # the watched problem, and why no job can be made of it
    gains: Mapping[str, float | None]  # before the round, by the key of the request
    left_alone: Sequence[LeftAlone]  # parts of watched models that are not kept tuned
    unmet: Unmet  # says of its jobs why no living worker will do them

    def requests(self) -> list[JobRequest]:
        new = [one.request for one in self.watched if one.standing is not WatchState.TUNED]
        return [*new, *self.revalidate]

    def summary(self, job_ids: Mapping[str, str]) -> dict[str, Any]:
        """Return the work as JSON. `submitted` and `waiting` are added when the jobs are posted.

        `job_ids` are the ids of posted jobs by their request's key.
        """

        def named(request: JobRequest) -> dict[str, Any]:
            posted = {"job_id": job_ids[request.key]} if request.key in job_ids else {}
            return {**_named(request), "gain_before": self.gains.get(request.key), **posted}

        return {
            "watched": len(self.watched),
            **{
                standing.value: [
                    {**named(one.request), "why": one.why}
                    for one in self.watched
                    if one.standing is standing
                ]
                for standing in (WatchState.MISSING, WatchState.STALE)
            },
            "revalidated": [named(request) for request in self.revalidate],
            "models": model_reports(self.watched, self.revalidate, self.left_alone),
            "errors": [{"what": what, "why": why} for what, why in self.errors],
            "unmet": sorted(filter(None, set(map(self.unmet, self.requests())))),
        }


def due_night(settings: Settings, now: datetime) -> date:
    """Return the date of the last night whose hour has come, in UTC, even if it is done late."""
    return (now - timedelta(hours=settings.nightly_hour)).date()


def run_nightly(
    settings: Settings, *, dry_run: bool = False, force: bool = False, today: date | None = None
) -> dict[str, Any]:
    """Call `do_round` in the settings' store, with messages over their broker."""
    with Database.open(settings.database_url, STORE_LIMITS) as store:
        announcer = Announcer(settings)
        return do_round(settings, store, announcer, dry_run=dry_run, force=force, today=today)


def do_round(
    settings: Settings,
    store: Database,
    announcer: Announces,
    *,
    dry_run: bool = False,
    force: bool = False,
    today: date | None = None,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Do a round of the night of `today`; return its work, or why there is none to do.

    Without `today` it is the last night whose hour has come. A night is done once with each watch
    list: a process that has a nightly.toml adds the problems that a process without it, or with
    another, left out. With `force` a round is done at any time, and the night stays as it is: done,
    or to be done. A dry run writes nothing. Without watches the night stays to be done. Raises
    MalformedWatchList or UnusableStore.
    """
    day = today or due_night(settings, (clock or utc_now)())
    nights = NightStore(store, clock)
    watch_list = watch_list_of(settings, nights)
    if not watch_list.watches:
        return _dated(
            {"skipped": "nothing is watched: begin with `tuner nightly watches add`"}, day
        )
    if dry_run:
        return _dated(work_of(watch_list, store, clock).summary({}), day)
    began = nights.begin(SCHEDULE, day, watch_list.of_file, again=force)
    if began is None:
        return _dated({"skipped": _why_not(nights, day)}, day)
    done = Round(began, watch_list.of_file, forced=force)
    try:
        todo = work_of(watch_list, store, clock)
        job_ids: dict[str, str] = {}
        posted = _submit(todo, JobStore(store, clock), announcer, job_ids)
        _withdraw(todo, JobStore(store, clock))
    except Exception as error:
        said = {"errors": [{"what": "the round failed", "why": str(error)}]}
        nights.finish(SCHEDULE, day, replace(done, error=type(error).__name__), said)
        raise
    summary = _dated({**todo.summary(job_ids), **posted}, day)
    nights.finish(SCHEDULE, day, done, summary)
    return summary


def headline(summary: Mapping[str, Any]) -> str:
    """Say a round's summary in one line."""
    title = f"{summary['schedule']} of {summary['date']}"
    if "skipped" in summary:
        return f"{title}: {summary['skipped']}"
    if "watched" not in summary:
        return f"{title}: not finished"
    todo = sum(len(summary[kind]) for kind in KINDS)
    parts = [f"{summary['watched']} watched", f"{todo} to do"]
    if "submitted" in summary:
        waiting = len(summary["waiting"])
        parts += [f"{len(summary['submitted'])} queued", f"{waiting} waiting before"]
    if errors := len(errors_of(summary)):
        parts.append(f"{errors} error" + ("s" if errors > 1 else ""))
    return f"{title}: {', '.join(parts)}"


def errors_of(summary: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """Return the failures of a round: watches that no job can be made of, and jobs not
    submitted.
    """
    return [*summary.get("errors", ()), *summary.get("not_submitted", ())]


def work_of(watch_list: WatchList, store: Database, clock: Clock | None = None) -> NightWork:
    """Compare the watch list with the store. Writes nothing."""
    found: dict[str, JobRequest] = {}
    errors = []
    left_alone: list[LeftAlone] = []
    reasons = WorkerStore(store, clock).reasons()
    workers = reasons.workers
    for watch in watch_list.watches:
        for request in watch.requests(workers):
            if isinstance(request, Unresolved):
                errors.append((str(request), str(request.error)))
            elif isinstance(request, LeftAlone):
                left_alone.append(request)
            else:
                found[request.key] = request
    judged = watch_statuses(found.values(), Lookups(store), workers)
    errors += [
        (f"{one.request.problem.spec()} on {one.request.device}", one.why)
        for one in judged
        if one.standing is WatchState.ERROR
    ]
    judged = [
        replace(one, request=_pinned(one)) for one in judged if one.standing is not WatchState.ERROR
    ]
    again = _oldest(judged, watch_list.revalidate, NightStore(store), reasons.unmet)
    results = ResultStore(store)
    todo = [one.request for one in judged if one.standing is not WatchState.TUNED]
    gains = {request.key: gain_now(request, results) for request in (*todo, *again)}
    return NightWork(judged, again, errors, gains, left_alone, reasons.unmet)


def _oldest(
    judged: Sequence[WatchStatus], count: int, nights: NightStore, unmet: Unmet
) -> list[JobRequest]:
    """Return for each device the `count` requests to measure again that waited for longest.

    A request has waited since its result was published, or since it was last tried: a request that
    fails holds up no other. An unfinished try has its place until it ends, so requests that no
    living worker can do have places of their own.
    """
    # The seed makes a new run, which measures again instead of resuming the old run. The request
    # stays the same until it has a new result.
    since = {
        replace(one.request, seed=int(one.tuned_at.timestamp())): one.tuned_at
        for one in judged
        if one.tuned_at is not None and one.request.needs_gpu  # the same would be predicted
    }
    tried = nights.last_posted([request.key for request in since])
    waits = defaultdict(list)
    for request, tuned_at in since.items():
        posted, unfinished = tried.get(request.key, (tuned_at, False))
        place = request.device, unmet(request) != ""
        waits[place].append(((not unfinished, posted, request.key), request))
    in_order = (sorted(some, key=lambda one: one[0])[:count] for some in waits.values())
    return [request for some in in_order for _, request in some]


def _submit(
    todo: NightWork, jobs: JobStore, announcer: Announces, job_ids: dict[str, str]
) -> dict[str, Any]:
    """Post the jobs, and put their ids into `job_ids`, by the keys of the requests."""
    submitted: list[str] = []
    waiting: list[str] = []
    errors: list[dict[str, str]] = []
    requests = todo.requests()
    for at in range(0, len(requests), AT_ONCE):
        some = requests[at : at + AT_ONCE]
        wanted = [(one, Priority.NORMAL) for one in some]
        try:
            answers = jobs.submit_all(wanted, unmet=todo.unmet, client=NIGHTLY, fresh=NOT_FRESH)
        except UnusableStore:  # the round is to be done again
            raise
        except TunerError as error:
            errors += [{"what": one.problem.spec(), "why": str(error)} for one in some]
            continue
        for request, answer in zip(some, answers, strict=True):
            job_ids[request.key] = answer.job.id
            if answer.created:
                announcer.announce(answer.job)
            (submitted if answer.created else waiting).append(answer.job.id)
    return {"submitted": submitted, "waiting": waiting, "not_submitted": errors}


def _withdraw(todo: NightWork, jobs: JobStore) -> None:
    """Withdraw from queued jobs if tonight's jobs for the same work are for other versions of the
    engine, and no living worker has theirs, or they were for any version.
    """
    wanted = defaultdict(set)
    for one in todo.watched:
        wanted[_work(one.request)].add(one.request.engine)
    for job in _queued_jobs(jobs):
        request = job.request
        if isinstance(request, UnreadableRequest):
            continue
        engines = wanted.get(_work(request), set())
        replaced = engines and request.engine not in engines
        if replaced and (todo.unmet(request) or JobRequirements.of(request).version is None):
            jobs.cancel(job.id, NIGHTLY)


def _queued_jobs(jobs: JobStore) -> Iterator[Job]:
    query, after = JobQuery(client=NIGHTLY, states=frozenset({JobState.QUEUED})), None
    while page := jobs.list(query, after=after, limit=AT_ONCE):
        yield from page
        after = page[-1].created_at, page[-1].id


def _work(request: JobRequest) -> str:
    """Return a key of the work of a request with any version of its engine, at any time."""
    return replace(request, engine=request.engine.partition("==")[0].strip(), seed=0).key


def _pinned(one: WatchStatus) -> JobRequest:
    """Return the request for the engine version by which it was judged, if that is known."""
    need = JobRequirements.of(one.request).pinned((), one.here)
    return replace(one.request, engine=need.engine)


def _why_not(nights: NightStore, day: date) -> str:
    night = nights.night(SCHEDULE, day)
    at = night and night.done_at()
    if at is None:
        return UNDER_WAY
    return f"it was done at {at:%H:%M} UTC; --force (in the API: force) does it again"


def _named(request: JobRequest) -> dict[str, Any]:
    return {
        "model": request.model,
        "problem": request.problem.spec(),
        "device": request.device,
        "engine": request.engine,
        "measure": request.measure,
    }


def _dated(summary: Mapping[str, Any], day: date) -> dict[str, Any]:
    return {"schedule": SCHEDULE, "date": day.isoformat(), **summary}
