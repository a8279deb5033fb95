"""The gain that is expected of a load: from a profile of the server without the files, and from the
kernels' own gains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tuner.deploy.served.loads import Load
from tuner.errors import BadInput
from tuner.problems.records import Winner
from tuner.profile import Phase, read
from tuner.profile.estimate import estimate

# What a phase's gain is expected to show in, by the fields of `measure.Speed`.
_SHOWN_IN = {
    Phase.PREFILL: ("prefill_tok_s", "ttft_ms"),
    Phase.DECODE: ("decode_tok_s", "tpot_ms"),
}


def expected_gains(
    folder: Path, load: Load, winners: Sequence[Winner], say: Callable[[str], None]
) -> dict[str, float]:
    """The expected gains of a load, by the field of a metric; empty where no profile tells.

    `folder` holds the profiles of the server without the files, one folder for each load; `winners`
    are those of the exported problems. Kernels of other problems are expected to stay as they are.
    """
    if not winners:
        return {}
    tunable = {winner.problem.family for winner in winners}
    try:
        found = estimate(read([folder / str(load)]), winners, tunable=tunable)
    except BadInput as error:
        say(f"no gain is expected of load {load}: {error}")
        return {}
    return {field: phase.gain for phase in found.phases for field in _SHOWN_IN.get(phase.phase, ())}
