"""Choose the jobs that a queue lists."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from tuner.jobs.job import JobState


@dataclass(frozen=True)
class JobQuery:
    """A choice of jobs to list. A field that is None or empty excludes none."""

    device: str | None = None  # the device table's name
    model: str | None = None  # a part of the name that the job's request has, in either case
    client: str | None = None  # who posted it first
    states: frozenset[JobState] = frozenset()

    def parameters(self) -> dict[str, str | list[str]]:
        """Return the query as the parameters of GET /v1/jobs, without fields at their default."""
        values: dict[str, str | list[str] | None] = {
            "device": self.device,
            "model": self.model,
            "client": self.client,
            "state": sorted(state.value for state in self.states),
        }
        return {name: value for name, value in values.items() if value}

    @property
    def digest(self) -> str:
        """Return 12 hexadecimal digits that are equal for equal queries: a cursor has them."""
        text = json.dumps(self.parameters(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


ALL_JOBS = JobQuery()
