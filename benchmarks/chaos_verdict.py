"""What chaos.py found afterwards, in the database and in its answers: lost, doubled, reclaimed."""

from __future__ import annotations

import platform
import re
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from tuner.jobs.job import JobState
from tuner.store import JobStore

if TYPE_CHECKING:
    from chaos import Harm
    from chaos_clients import Promises

RECLAIM_LIMIT_S = 60.0

# PostgreSQL itself notes every publishing of a run, whatever our own code says of it.
_WATCH = """
CREATE TABLE chaos_published (run_id integer, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state = 'done' THEN INSERT INTO chaos_published (run_id) VALUES (NEW.id); END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER chaos_watch AFTER UPDATE ON runs FOR EACH ROW EXECUTE FUNCTION chaos_note();
"""


def watch_publishing(jobs: JobStore) -> None:
    """Have the database count what is published."""
    with jobs._write() as connection:
        connection.execute(text(_WATCH))


@dataclass(frozen=True)
class Verdict:
    """The figures, and what they break."""

    asked: int  # jobs that the clients were to post
    workers: int
    promises: Promises
    harm: Harm
    wall_s: float
    states: dict[str, int]  # of the accepted jobs
    lost: int  # accepted, and not done
    created_twice: int  # jobs beyond the first of one request
    unasked: int  # jobs under no key: half of a submission was kept
    published_twice: int
    stored: int  # trials
    measured_again: int  # trials that were stored already, and were measured again
    largest_batch: int  # trials that were measured and stored at once
    attempts_lost: int  # that ended without an answer: each may have lost one batch
    reclaim_s: list[float]  # from a worker's death to its job's being queued again

    def broken(self) -> list[str]:
        """The promises that were not kept."""
        p99 = _quantile(self.reclaim_s, 0.99)
        found = {
            "jobs were never accepted": self.asked - len(self.promises.accepted),
            f"answers that must not be, as {self.promises.wrong[:1]}": len(self.promises.wrong),
            "accepted jobs were lost": self.lost,
            "jobs were created twice": self.jobs_created_twice,
            "answers named another job for one key": self.promises.contradictions,
            "accepted keys were forgotten": self.promises.forgotten,
            "jobs are there without their keys": self.unasked + self.promises.unkeyed,
            "results were published twice": self.published_twice,
            "stored trials were measured again": self.measured_again,
            "more attempts ended than anything was killed": max(
                0, self.attempts_lost - self.batches_at_risk
            ),
            f"leases took over {RECLAIM_LIMIT_S:g} s to be reclaimed at p99": int(
                p99 > RECLAIM_LIMIT_S
            ),
        }
        return [f"{count} {what}" for what, count in found.items() if count]

    @property
    def jobs_created_twice(self) -> int:
        """By the database's count, and by the answers that said "created"."""
        said = sum(count - 1 for count in self.promises.created.values() if count > 1)
        return max(self.created_twice, said)

    @property
    def batches_at_risk(self) -> int:
        """One for each kill of who measures; all of them when the database crashes."""
        kills = self.harm.kills["worker"] + self.harm.kills["tuning process"]
        return kills + self.workers * sum("PostgreSQL" in one for one in self.harm.restarts)

    def as_json(self) -> dict[str, Any]:
        return {
            "accepted": len(self.promises.accepted),
            "states": self.states,
            "lost": self.lost,
            "jobs_created_twice": self.jobs_created_twice,
            "keys_with_two_jobs": self.promises.contradictions,
            "keys_forgotten": self.promises.forgotten,
            "jobs_without_keys": self.unasked + self.promises.unkeyed,
            "published_twice": self.published_twice,
            "requests_tried_again": dict(sorted(self.promises.tried_again.items())),
            "trials_stored": self.stored,
            "stored_trials_measured_again": self.measured_again,
            "largest_batch": self.largest_batch,
            "attempts_without_an_answer": self.attempts_lost,
            "kills": dict(sorted(self.harm.kills.items())),
            "restarts": self.harm.restarts,
            "leases_reclaimed": len(self.reclaim_s),
            "reclaim_p50_s": round(_quantile(self.reclaim_s, 0.5), 1),
            "reclaim_p99_s": round(_quantile(self.reclaim_s, 0.99), 1),
            "wall_s": round(self.wall_s, 1),
            "python": platform.python_version(),
        }

    def table(self) -> str:
        """As Markdown."""
        kills, again = self.harm.kills, self.promises.tried_again
        rows = {
            "jobs accepted over HTTP": len(self.promises.accepted),
            "SIGKILLs": f"{kills.total()} ({_shown(kills)})",
            "servers": "; ".join(self.harm.restarts) or "left alone",
            "requests that were sent again": f"{again.total()} ({_shown(again) or 'none'})",
            "accepted jobs lost": f"**{self.lost}** ({_shown(self.states)})",
            "jobs created twice for one key": f"**{self.jobs_created_twice}**",
            "keys forgotten, given another job, or lacking at a job": f"**{self._keys_amiss}**",
            "results published twice": f"**{self.published_twice}**",
            "stored trials measured again": f"**{self.measured_again}** of {self.stored}",
            "attempts that ended without an answer": f"{self.attempts_lost}: "
            f"as many batches, of {self.largest_batch} trials at the most, "
            "may have been measured twice",
            "leases reclaimed after a worker's death": f"{len(self.reclaim_s)}; "
            f"p50 {_quantile(self.reclaim_s, 0.5):.1f} s, "
            f"p99 **{_quantile(self.reclaim_s, 0.99):.1f} s**",
            "wall time": f"{self.wall_s:.0f} s",
        }
        lines = ["| what | figure |", "|---|---|"]
        return "\n".join([*lines, *(f"| {what} | {figure} |" for what, figure in rows.items())])

    @property
    def _keys_amiss(self) -> int:
        promises = self.promises
        return promises.forgotten + promises.contradictions + promises.unkeyed + self.unasked


def judge(
    jobs: JobStore, asked: int, workers: int, promises: Promises, harm: Harm, wall_s: float
) -> Verdict:
    """Read the database, and what the clients were answered; no worker is asked."""
    accepted = set(promises.accepted.values())
    with jobs._read() as connection:

        def rows(query: str) -> list[Any]:
            return list(connection.execute(text(query)))

        def number(query: str) -> int:
            return int(connection.execute(text(query)).scalar_one())

        states = {row.id: row.state for row in rows("SELECT id, state FROM jobs")}
        done_events = Counter(
            row.job_id for row in rows("SELECT job_id FROM job_events WHERE kind = 'done'")
        )
        published = Counter(row.run_id for row in rows("SELECT run_id FROM chaos_published"))
        batches = rows("SELECT data FROM job_events WHERE kind = 'trials'")
        given_up = rows("SELECT at, data FROM job_events WHERE kind IN ('requeued', 'dead')")
        created_twice = number("SELECT count(*) - count(DISTINCT request_key) FROM jobs")
        unasked = number(
            "SELECT count(*) FROM jobs WHERE id NOT IN (SELECT job_id FROM idempotency_keys)"
        )
        stored = number("SELECT count(*) FROM trials")
    doubled = [*done_events.values(), *published.values()]
    found = Counter(states.get(job_id, "unknown") for job_id in accepted)
    return Verdict(
        asked=asked,
        workers=workers,
        promises=promises,
        harm=harm,
        wall_s=wall_s,
        states=dict(found),
        lost=len(accepted) - found[JobState.DONE.value],
        created_twice=created_twice,
        unasked=unasked,
        published_twice=sum(count > 1 for count in doubled),
        stored=stored,
        measured_again=sum(row.data["tried"] - row.data["new"] for row in batches),
        largest_batch=max((row.data["tried"] for row in batches), default=0),
        attempts_lost=len(given_up),
        reclaim_s=_reclaims(given_up, harm.worker_deaths),
    )


def _reclaims(given_up: list[Any], deaths: dict[int, datetime]) -> list[float]:
    found = []
    for row in given_up:
        owner = re.match(r"the lease of .*:(\d+):\w+ expired", row.data["reason"])
        if owner and (died := deaths.get(int(owner[1]))):
            found.append((row.at - died).total_seconds())
    return found


def _quantile(values: list[float], share: float) -> float:
    if not values:
        return 0.0
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


def _shown(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
