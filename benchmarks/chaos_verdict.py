"""What chaos.py found in the database afterwards: lost, doubled, reclaimed."""

from __future__ import annotations

import platform
import re
import statistics
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from tuner.jobs import JobState
from tuner.store import JobStore

if TYPE_CHECKING:
    from chaos import Harm, Posted

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

    posted: Posted
    harm: Harm
    wall_s: float
    states: dict[str, int]  # of the accepted jobs
    lost: int  # accepted, and not done
    published_twice: int
    stored: int  # trials
    measured_again: int  # trials that were stored already, and were measured again
    attempts_lost: int  # that ended without an answer: each may have lost one batch
    reclaim_s: list[float]  # from a worker's death to its job's being queued again

    def broken(self) -> list[str]:
        """The promises that were not kept."""
        found = {
            "accepted jobs were lost": self.lost,
            "requests became two jobs": self.posted.contradictions,
            "results were published twice": self.published_twice,
            "stored trials were measured again": self.measured_again,
            f"leases took over {RECLAIM_LIMIT_S:g} s to be reclaimed at p99": int(
                bool(self.reclaim_s) and _quantile(self.reclaim_s, 0.99) > RECLAIM_LIMIT_S
            ),
        }
        return [f"{count} {what}" for what, count in found.items() if count]

    def as_json(self) -> dict[str, Any]:
        return {
            "accepted": len(self.posted.accepted),
            "states": self.states,
            "lost": self.lost,
            "published_twice": self.published_twice,
            "requests_with_two_jobs": self.posted.contradictions,
            "submissions_tried_again": self.posted.refusals,
            "trials_stored": self.stored,
            "stored_trials_measured_again": self.measured_again,
            "attempts_without_an_answer": self.attempts_lost,
            "kills": self.harm.kills,
            "restarts": self.harm.restarts,
            "leases_reclaimed": len(self.reclaim_s),
            "reclaim_p50_s": round(_quantile(self.reclaim_s, 0.5), 1),
            "reclaim_p99_s": round(_quantile(self.reclaim_s, 0.99), 1),
            "wall_s": round(self.wall_s, 1),
            "python": platform.python_version(),
        }

    def table(self) -> str:
        """As Markdown."""
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(self.harm.kills.items()))
        rows = {
            "jobs accepted": len(self.posted.accepted),
            "SIGKILLs": f"{sum(self.harm.kills.values())} ({kills})",
            "servers": "; ".join(self.harm.restarts) or "left alone",
            "accepted jobs lost": f"**{self.lost}** ({_shown(self.states)})",
            "results published twice": f"**{self.published_twice}**",
            "requests that became two jobs": f"**{self.posted.contradictions}** "
            f"({self.posted.refusals} submissions had to be tried again)",
            "stored trials measured again": f"**{self.measured_again}** of {self.stored}",
            "attempts that ended without an answer": f"{self.attempts_lost}, "
            "each with at most its batch in flight",
            "leases reclaimed after a worker's death": f"{len(self.reclaim_s)}; "
            f"p50 {_quantile(self.reclaim_s, 0.5):.1f} s, "
            f"p99 **{_quantile(self.reclaim_s, 0.99):.1f} s**",
            "wall time": f"{self.wall_s:.0f} s",
        }
        lines = ["| what | figure |", "|---|---|"]
        return "\n".join([*lines, *(f"| {what} | {figure} |" for what, figure in rows.items())])


def judge(jobs: JobStore, posted: Posted, harm: Harm, wall_s: float) -> Verdict:
    """Read the database. Counts nothing from what the clients or workers believe."""
    accepted = set(posted.accepted.values())
    with jobs._read() as connection:

        def rows(query: str) -> list[Any]:
            return list(connection.execute(text(query)))

        states = {row.id: row.state for row in rows("SELECT id, state FROM jobs")}
        done_events = Counter(
            row.job_id for row in rows("SELECT job_id FROM job_events WHERE kind = 'done'")
        )
        published = Counter(row.run_id for row in rows("SELECT run_id FROM chaos_published"))
        batches = rows("SELECT data FROM job_events WHERE kind = 'trials'")
        given_up = rows("SELECT at, data FROM job_events WHERE kind IN ('requeued', 'dead')")
        stored = rows("SELECT count(*) AS n FROM trials")[0].n
    doubled = [*done_events.values(), *published.values()]
    found = Counter(states.get(job_id, "unknown") for job_id in accepted)
    return Verdict(
        posted=posted,
        harm=harm,
        wall_s=wall_s,
        states=dict(found),
        lost=len(accepted) - found[JobState.DONE.value],
        published_twice=sum(count > 1 for count in doubled),
        stored=stored,
        measured_again=sum(row.data["tried"] - row.data["new"] for row in batches),
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


def _shown(states: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
