"""Which finished runs asked the same as a new one, with other kernels."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, select

from tuner.problems.records import RunKey, RunState
from tuner.store.rows import environment_row, run_row
from tuner.store.tables import environments, problems, runs

# What a time depends on besides the machine code and its arguments.
_MEASURED_ON = ("device", "engine", "torch", "cuda", "driver", "backends")
_ASKED = ("measure", "effort", "space", "recording", "routing")
AT_MOST = 5  # runs to look at; a run whose winners a later one replaced does not count


def earlier_runs(key: RunKey) -> Select[Any]:
    """Selects the ids of such runs, the newest first."""
    run, environment = run_row(key), environment_row(key.environment)
    return (
        select(runs.c.id)
        .join(problems, runs.c.problem_id == problems.c.id)
        .join(environments, runs.c.environment_id == environments.c.id)
        .where(
            problems.c.spec == key.problem.spec(),
            runs.c.state == RunState.DONE.value,
            environments.c.fingerprint != environment["fingerprint"],
            *(runs.c[name] == run[name] for name in _ASKED),
            *(environments.c[name] == environment[name] for name in _MEASURED_ON),
        )
        .order_by(runs.c.updated_at.desc(), runs.c.id.desc())
        .limit(AT_MOST)
    )
