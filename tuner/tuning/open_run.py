"""From a request to a report: one tuning run, of either family of problems."""

from tuner.families.attention.tuning import AttentionSession
from tuner.families.fused_moe.problem import FusedMoe
from tuner.families.fused_moe.tuning import MoeSession
from tuner.tuning.run import Request, Session


def open_session(request: Request) -> Session:
    """The session that runs a request. Raises BadInput for what cannot be tuned as asked."""
    if isinstance(request.problem, FusedMoe):
        return MoeSession(request)
    return AttentionSession(request)
