"""The registry entry of Mamba-2 state updates; importing it loads no heavy module."""

from __future__ import annotations

from tuner.families.state_update.problem import (
    NAME,
    Update,
    check_cache_dtype,
    parse_state_update,
    same_states,
)
from tuner.families.state_update.selection import read_selection
from tuner.problems.batch_sizes import parse_batch_sizes
from tuner.problems.registry import Family, Option

FAMILY = Family(
    name="state_update",
    title="the state update of Mamba-2 layers",
    flag="--mamba",
    problems=(NAME,),
    example="state_update:heads=..,head_dim=..,state_size=..,groups=..",
    parse=parse_state_update,
    parts=Update,
    shaping=(
        Option(
            "mamba_ssm_cache_dtype",
            "--mamba-ssm-cache-dtype",
            str,
            "Type of Mamba states, as the server's flag of this name; default: as the engine does.",
            check_cache_dtype,
        ),
    ),
    selecting=(
        Option(
            "batch_sizes",
            "--batch-sizes",
            str,
            "e.g. 1,2,4; default: 11 from 1 to 1024 sequences.",
            parse_batch_sizes,
        ),
    ),
    searching=(),
    read_selection=read_selection,
    package="tuner.families.state_update",
    alike=same_states,
)
