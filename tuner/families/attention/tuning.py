"""Opens attention's tuning runs."""

from __future__ import annotations

from tuner.families.attention.joint.tuning import JointRun
from tuner.families.attention.problem import Attention
from tuner.families.attention.run import AttentionRun
from tuner.tuning.run import TuningRun
from tuner.tuning.run_request import Request


def open_run(request: Request) -> TuningRun:
    """The run of a request. Raises BadInput for a request that cannot be tuned."""
    assert isinstance(request.problem, Attention)  # the registry opened this run
    return JointRun(request) if request.problem.chooses_splits else AttentionRun(request)
