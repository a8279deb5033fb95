"""Fused-MoE problems for which tests ask the engines' own loaders."""

from __future__ import annotations

import random

from draws import times
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tuner.families.fused_moe.problem import FusedMoe
from tuner.problems.dtypes import Dtype

# (dtype, block_shape, per_channel_quant) that the loaders of both engines know.
KINDS = [
    (Dtype.BFLOAT16, None, False),
    (Dtype.FLOAT16, None, False),
    (Dtype.FP8_W8A8, None, False),
    (Dtype.FP8_W8A8, None, True),
    (Dtype.FP8_W8A8, (128, 128), False),
    (Dtype.FP8_W8A8, (64, 128), False),
    (Dtype.INT8_W8A16, None, False),
    (Dtype.INT8_W8A16, (0, 128), False),
    (Dtype.INT4_W4A16, (0, 128), False),
]
INT8_KINDS = [(Dtype.INT8_W8A8, None, True), (Dtype.INT8_W8A8, (128, 128), False)]
quick = settings(times(0.6), suppress_health_check=[HealthCheck.function_scoped_fixture])


def problem(E=256, N=256, dtype=Dtype.FP8_W8A8, block_shape=None, per_channel=False) -> FusedMoe:
    return FusedMoe(E, N, 4096, 1, dtype, block_shape, per_channel)


def random_entry(rng: random.Random) -> dict[str, int]:
    """An entry of a config file."""
    return {
        **{"BLOCK_SIZE_M": rng.choice([16, 64]), "BLOCK_SIZE_N": rng.choice([32, 64, 128, 256])},
        **{"BLOCK_SIZE_K": 128, "GROUP_SIZE_M": rng.choice([1, 16, 32]), "num_warps": 4},
        "num_stages": rng.choice([2, 3, 4, 5]),
    }


def problems(kinds) -> st.SearchStrategy[FusedMoe]:
    """Layers of some kinds, whose N is a multiple of every block."""
    return st.builds(
        lambda E, N, kind: problem(E, 128 * N, *kind),
        st.integers(1, 512),
        st.integers(1, 128),
        st.sampled_from(kinds),
    )
