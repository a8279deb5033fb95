"""Opens attention's tuning runs."""

from __future__ import annotations

from tuner.families.attention.run import AttentionRun
from tuner.tuning.run import Request, TuningRun


def open_run(request: Request) -> TuningRun:
    """The run of a request. Raises BadInput for a request that cannot be tuned."""
    return AttentionRun(request)
