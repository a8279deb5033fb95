"""What chaos.py found afterwards, in the database and in its answers: lost, doubled, reclaimed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos_attempts import Attempts, quantile, read_attempts
from sqlalchemy import JSON, Text, text
from sqlalchemy.types import TypeEngine

from tuner.jobs.job import UNFINISHED, JobState
from tuner.store.jobs import JobStore

if TYPE_CHECKING:
    from chaos_clients import Promises
    from chaos_harm import Harm
    from chaos_neighbours import Said

CLAIMING = timedelta(seconds=2)  # a claim may have begun before a drain


@dataclass(frozen=True)
class Lies:
    """What the lying worker did."""

    jobs: int
    set_aside: int
    began: int
    refused: int  # writes with a lost lease
    accepted: Sequence[str]


@dataclass(frozen=True)
class Verdict:
    """The figures, and what they break."""

    asked: int  # jobs that the clients were to post
    reclaim_limit_s: float
    promises: Promises
    harm: Harm
    wall_s: float
    states: dict[str, int]  # of the accepted jobs
    created_twice: int  # jobs beyond the first of one request
    unasked: int  # jobs under no key: half of a submission was kept
    published_twice: int
    stored: int  # trials
    measured_again: int  # trials that were stored already, and were measured again
    largest_batch: int  # trials that were measured and stored at once
    attempts: Attempts
    claimed_while_drained: int
    lies: Lies
    beside: Said | None  # the commands on a SQLite file

    def broken(self) -> list[str]:
        """The promises that were not kept."""
        lost = [f"{end.owner}: {end.reason}" for end in self.attempts.unexplained]
        found = {
            **(self._broken_beside(self.beside) if self.beside else {}),
            "jobs were never accepted": self.asked - len(self.promises.accepted),
            f"answers that must not be, as {self.promises.wrong[:1]}": len(self.promises.wrong),
            "accepted jobs were lost": self.lost,
            "jobs are stuck": self.stuck,
            "jobs were created twice": self.jobs_created_twice,
            "answers named another job for one key": self.promises.contradictions,
            "accepted keys were forgotten": self.promises.forgotten,
            "jobs are there without their keys": self.unasked + self.promises.unkeyed,
            "results were published twice": self.published_twice,
            "stored trials were measured again": self.measured_again,
            f"attempts were lost though nobody harmed the worker, as {lost[:3]}": len(lost),
            "jobs were claimed by a worker that was drained": self.claimed_while_drained,
            f"writes with a lost lease were accepted: {self.lies.accepted[:3]}": len(
                self.lies.accepted
            ),
            "workers never began a job and were not set aside": self.lies.jobs
            - self.lies.began
            - self.lies.set_aside,
            "requests with an old key were accepted": self.harm.old_keys_accepted,
            f"causes kept jobs for over {self.reclaim_limit_s:g} s at p99": sum(
                quantile(held, 0.99) > self.reclaim_limit_s for held in self.held.values()
            ),
            "clock steps did not reach the queue": int(
                self.harm.clock_steps > 0 and self.attempts.clock_off_s < 3000
            ),
        }
        return [f"{count} {what}" for what, count in found.items() if count]

    @staticmethod
    def _broken_beside(said: Said) -> dict[str, int]:
        return {
            "trials ended before all harm was done": int(not said.complete),
            f"faults are in the file: {said.integrity}": int(said.integrity != "ok"),
            f"processes went on in a deleted file: {said.held_deleted[:3]}": len(said.held_deleted),
            "API keys that were printed are lost": said.keys_lost,
            f"commands failed though nobody harmed them, as {said.failed[:1]}": len(said.failed),
        }

    @property
    def stuck(self) -> int:
        return sum(self.states.get(state.value, 0) for state in UNFINISHED)

    @property
    def lost(self) -> int:
        return sum(self.states.values()) - self.states.get(JobState.DONE.value, 0) - self.stuck

    @property
    def held(self) -> Mapping[str, list[float]]:
        return self.attempts.held(self.harm.disk_full)

    @property
    def jobs_created_twice(self) -> int:
        """By the database's count, and by the answers that said "created"."""
        said = sum(count - 1 for count in self.promises.created.values() if count > 1)
        return max(self.created_twice, said)

    @property
    def keys_amiss(self) -> int:
        promises = self.promises
        return promises.forgotten + promises.contradictions + promises.unkeyed + self.unasked

    def rows(self) -> dict[str, str]:
        """What was found, by what it is."""
        again, harm = self.promises.tried_again, self.harm
        return {
            "jobs accepted over HTTP": f"{len(self.promises.accepted)} "
            f"({self.promises.batches} submissions were batches)",
            "harm to processes": f"{harm.counts.total()} times ({shown(harm.counts)})",
            "harm to servers": self._servers(),
            "requests that were sent again": f"{again.total()} ({shown(again) or 'none'})",
            "accepted jobs lost": f"**{self.lost}** ({shown(self.states)})",
            "jobs stuck at the end": f"**{self.stuck}**",
            "jobs created twice for one key": f"**{self.jobs_created_twice}**",
            "keys forgotten, given another job, or lacking at a job": f"**{self.keys_amiss}**",
            "results published twice": f"**{self.published_twice}**",
            "stored trials measured again": f"**{self.measured_again}** of {self.stored}",
            "attempts that ended without an answer": f"{len(self.attempts.ends)}, of which "
            f"{self.attempts.counted()} count (a batch has {self.largest_batch} trials at most)",
            "attempts lost by a worker that nobody harmed": f"**{len(self.attempts.unexplained)}**",
            **(self._beside(self.beside) if self.beside else self._liar_and_drains()),
            **{f"until a job is queued again: {what}": text for what, text in self._held_rows()},
            "wall time": f"{self.wall_s:.0f} s",
        }

    def table(self) -> str:
        """As Markdown."""
        rows = (f"| {what} | {figure} |" for what, figure in self.rows().items())
        return "\n".join(["| what | figure |", "|---|---|", *rows])

    def _liar_and_drains(self) -> dict[str, str]:
        lies = self.lies
        return {
            "lying worker": f"{lies.jobs} jobs, all taken back; {lies.refused} late writes "
            f"refused, **{len(lies.accepted)}** accepted",
            "jobs claimed by a drained worker": f"**{self.claimed_while_drained}** "
            f"in {len(self.harm.drains)} drains",
        }

    @staticmethod
    def _beside(said: Said) -> dict[str, str]:
        return {
            "commands beside the service": f"{said.runs.total()} ({shown(said.runs)}), "
            f"**{len(said.failed)}** failed",
            "commands that were ended by SIGKILL or SIGTERM": f"{said.harmed.total()} "
            f"({shown(said.harmed)})",
            "processes that went on in a deleted file": f"**{len(said.held_deleted)}**",
            "API keys that were printed and are lost": f"**{said.keys_lost}** of {len(said.keys)}",
            "`PRAGMA integrity_check`": f"**{said.integrity}**",
        }

    def _servers(self) -> str:
        harm = self.harm
        found = [f"{what} {count} times" for what, count in sorted(harm.restarts.items())]
        found += [f"disk full for {(end - begin).seconds} s" for begin, end in harm.disk_full]
        if harm.clock_steps:
            found.append(f"the queue's clock set {harm.clock_steps} times, by an hour")
        if harm.keys_rotated:
            accepted = f"{harm.old_keys_accepted} old ones were accepted"
            found.append(f"{harm.keys_rotated} API keys replaced ({accepted})")
        return "; ".join(found) or "left alone"

    def _held_rows(self) -> list[tuple[str, str]]:
        found = [(cause, told(held)) for cause, held in self.held.items()]
        if full := self.attempts.held_when_full(self.harm.disk_full):
            found.append(("meanwhile the disk was full", told(full)))
        return found


def judge(
    jobs: JobStore,
    asked: int,
    reclaim_limit_s: float,
    promises: Promises,
    harm: Harm,
    lies: Path,
    wall_s: float,
    beside: Said | None,
) -> Verdict:
    """Read the database, and what the clients were answered; no worker is asked."""
    accepted = set(promises.accepted.values())
    with jobs.database.read() as connection:

        def rows(query: str, **types: TypeEngine[Any]) -> list[Any]:
            return list(connection.execute(text(query).columns(**types) if types else text(query)))

        states = {row.id: row.state for row in rows("SELECT id, state FROM jobs")}
        done = Counter(
            row.job_id for row in rows("SELECT job_id FROM job_events WHERE kind = 'done'")
        )
        published = Counter(row.run_id for row in rows("SELECT run_id FROM chaos_published"))
        batches = rows("SELECT data FROM job_events WHERE kind = 'trials'", data=JSON())
        (twice,) = rows("SELECT count(*) - count(DISTINCT request_key) AS jobs FROM jobs")
        keyed = rows("SELECT job_id, job_ids FROM idempotency_keys", job_id=Text(), job_ids=JSON())
        (stored,) = rows("SELECT count(*) AS trials FROM trials")
        attempts = read_attempts(connection, harm, timedelta(seconds=reclaim_limit_s))
    with_key = {one for row in keyed for one in row.job_ids or [row.job_id]}
    return Verdict(
        asked=asked,
        reclaim_limit_s=reclaim_limit_s,
        promises=promises,
        harm=harm,
        wall_s=wall_s,
        states=dict(Counter(states.get(job_id, "unknown") for job_id in accepted)),
        created_twice=twice.jobs,
        unasked=len(states.keys() - with_key),
        published_twice=sum(count > 1 for count in [*done.values(), *published.values()]),
        stored=stored.trials,
        measured_again=sum(row.data["tried"] - row.data["new"] for row in batches),
        largest_batch=max((row.data["tried"] for row in batches), default=0),
        attempts=attempts,
        claimed_while_drained=claimed_while_drained(attempts, harm),
        lies=read_lies(lies),
        beside=beside,
    )


def claimed_while_drained(attempts: Attempts, harm: Harm) -> int:
    """Claims of workers at a time at which they were to take no jobs."""
    return sum(
        claim.owner in drain.owners and drain.begin + CLAIMING < claim.at < drain.end
        for claim in attempts.claims
        for drain in harm.drains
    )


def read_lies(path: Path) -> Lies:
    """What the lying worker wrote down."""
    told = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return Lies(
        jobs=len(told),
        set_aside=sum(one["set_aside"] for one in told),
        began=sum(one["begins"] for one in told),
        refused=sum(len(one["refused"]) for one in told),
        accepted=[what for one in told for what in one["accepted"]],
    )


def told(seconds: Sequence[float]) -> str:
    p50, p99 = quantile(seconds, 0.5), quantile(seconds, 0.99)
    return f"{len(seconds)}; p50 {p50:.1f} s, p99 **{p99:.1f} s**"


def shown(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
