"""What is told if no configuration runs at a point."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.problems.results import Trial

_NO_FP8 = "fp8e4nv not supported"  # what Triton says of it on sm_80 and sm_86


def shared_reason(trials: Iterable[Trial]) -> str:
    """The reason that all trials failed for, with what helps: ": ptxas said ..."; empty if they
    have none, or several.
    """
    said = {trial.compiled.detail for trial in trials}
    if len(said) != 1:
        return ""
    (detail,) = said
    if _NO_FP8 in detail:
        return (
            f": {detail}. Triton multiplies fp8 from sm_89 on; on older GPUs servers need another "
            "backend, such as sglang's --moe-runner-backend marlin"
        )
    return f": {detail}" if detail else ""
