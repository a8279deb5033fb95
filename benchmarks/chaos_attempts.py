"""Why attempts ended without an answer: each one that counts must be explained by harm to it."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from chaos_harm import KILL_TUNING, TERM_TUNING, Blow, Harm
from sqlalchemy import JSON, Connection, text

from tuner.store.tables import UtcDateTime

LIE = "lying worker"
# So long after it at the most, a blow ends the attempt that it hit.
NOTICED = dict.fromkeys((KILL_TUNING, TERM_TUNING), timedelta(seconds=30))
NOTICED_BY_OTHERS = timedelta(seconds=150)  # or the limit until a job is queued again

_STEPS = """
SELECT job_id, seq, e.kind, e.data, s.at, e.at AS queue_at, j.attempts
FROM job_events e JOIN chaos_steps s USING (job_id, seq) JOIN jobs j ON j.id = job_id
WHERE e.kind IN ('leased', 'requeued', 'refused', 'dead') ORDER BY job_id, seq
"""


@dataclass(frozen=True)
class Claim:
    """A job was given to a worker."""

    owner: str
    at: datetime


@dataclass(frozen=True)
class End:
    """An attempt that ended without an answer. Times are the time of day, not the queue's."""

    owner: str
    reason: str
    leased_at: datetime
    at: datetime
    counts: bool  # the job has an attempt less

    @property
    def pid(self) -> int:
        """The worker's process."""
        return int(self.owner.split(":")[1])


@dataclass(frozen=True)
class Explained:
    """An end, what caused it, and how long the job was held by who could not do it."""

    end: End
    cause: str
    held_s: float
    since: datetime


@dataclass(frozen=True)
class Attempts:
    """The attempts of all jobs that ended without an answer."""

    ends: Sequence[End]
    explained: Sequence[Explained]
    unexplained: Sequence[End]  # that count
    claims: Sequence[Claim]
    clock_off_s: float  # between the queue's clock and the time of day, at most

    def counted(self) -> int:
        return sum(end.counts for end in self.ends)

    def held(self, full: Sequence[tuple[datetime, datetime]]) -> Mapping[str, list[float]]:
        """The seconds for which jobs were held, by cause, apart from the times of a full disk."""
        found: dict[str, list[float]] = {}
        for one in self.explained:
            if not _overlaps(one, full):
                found.setdefault(one.cause, []).append(one.held_s)
        return dict(sorted(found.items()))

    def held_when_full(self, full: Sequence[tuple[datetime, datetime]]) -> list[float]:
        """The seconds for which jobs were held while the disk was full, too."""
        return [one.held_s for one in self.explained if _overlaps(one, full)]


def read_attempts(connection: Connection, harm: Harm, limit: timedelta) -> Attempts:
    """What became of each attempt, from the jobs' events; `limit` until a job is queued again."""
    claims, ends, off = [], [], timedelta(0)
    types = {"data": JSON(), "at": UtcDateTime(), "queue_at": UtcDateTime()}
    rows = list(connection.execute(text(_STEPS).columns(**types)))
    for number, row in enumerate(rows):
        off = max(off, abs(row.queue_at - row.at))
        if row.kind == "leased":
            claims.append(Claim(row.data["owner"], row.at))
            continue
        leased = rows[number - 1]  # nothing else comes between a claim and the attempt's end
        after = rows[number + 1 :][:1]
        again = after[0].data["attempt"] - 1 if after and after[0].job_id == row.job_id else None
        left = row.attempts if again is None else again
        counts = left >= leased.data["attempt"]
        owner, reason = leased.data["owner"], row.data["reason"]
        ends.append(End(owner, reason, leased.at, row.at, counts))
    ordered = sorted(ends, key=lambda end: end.at)
    explained, rest = explain(ordered, harm.blows, max(limit, NOTICED_BY_OTHERS))
    unexplained = [end for end in rest if end.counts]
    return Attempts(ends, explained, unexplained, claims, off.total_seconds())


def explain(
    ends: Sequence[End], blows: Sequence[Blow], by_others: timedelta
) -> tuple[Sequence[Explained], Sequence[End]]:
    """Give each end the last blow to its worker before it; each blow explains one end.

    Other workers notice a blow to a worker after `by_others` at the most.
    """
    unused = list(blows)
    explained, rest = [], []
    for end in ends:
        if end.owner.startswith("liar"):
            held_s = (end.at - end.leased_at).total_seconds()
            explained.append(Explained(end, LIE, held_s, end.leased_at))
            continue
        mine = [blow for blow in unused if _may_explain(blow, end, by_others)]
        if not mine:
            rest.append(end)
            continue
        blow = max(mine, key=lambda blow: blow.at)
        unused.remove(blow)
        since = max(blow.at, end.leased_at)
        explained.append(Explained(end, blow.what, (end.at - since).total_seconds(), since))
    return explained, rest


def _may_explain(blow: Blow, end: End, by_others: timedelta) -> bool:
    # Nothing that the store does may cost an attempt, whatever else happened to the worker.
    if re.search("cannot use the store", end.reason):
        return False
    longest = NOTICED.get(blow.what, by_others)
    return blow.pid == end.pid and timedelta(0) <= end.at - blow.at <= longest


def _overlaps(one: Explained, times: Sequence[tuple[datetime, datetime]]) -> bool:
    return any(one.since < end and begin < one.end.at for begin, end in times)


def quantile(values: Sequence[float], share: float) -> float:
    """0 without values."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]
