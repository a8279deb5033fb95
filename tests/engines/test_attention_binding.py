"""Attention's bound kernels run by Triton's interpreter, against a float32 reference.

Lengths are ragged, some sequences have no new tokens and some no cache, tokens lie scattered over
the cache, and outputs start as NaN: a wrong stride, a wrong pointer, a wrong grid or an element
left unwritten shows.
"""

import json
import random

import pytest
from interpret_attention import CASES
from interpreter import interpreted
from tiers import only

from tuner.families.attention.problem import Attention, AttentionPhase
from tuner.families.attention.splits import kv_splits
from tuner.problems.dtypes import Dtype

TOLERANCE = 2**-9  # of fp16 outputs: one unit in the last place, as the interpreter cuts
# The newest release runs all cases; the others what differs from it.
SOME = {
    "0.5.23": tuple(CASES),
    "0.5.16": (
        *("extend own blocks", "extend latent", "extend window", "extend sinks"),
        *("prefill", "decode grouped", "decode latent", "decode latent values", "decode alone"),
        *("decode wide group", "decode sinks", "decode splits"),
    ),
    "0.4.4": (
        *("extend own blocks", "extend 192", "extend window", "extend sinks", "prefill"),
        *("decode grouped", "decode latent", "decode wide group"),
        *("decode alone", "decode capped", "decode sinks", "decode splits"),
    ),
}
ABSENT = {"0.4.4": ("extend window", "extend sinks", "decode sinks")}


@pytest.mark.parametrize("version", only(["0.5.23"], SOME))
def test_bound_kernels_compute_attention(version, tmp_path):
    errors = interpreted("interpret_attention.py", version, tmp_path, *SOME[version])
    assert errors.keys() == set(SOME[version])
    for case, error in errors.items():
        if case in ABSENT.get(version, ()):
            assert "this version's kernel has no" in error, case  # refused, by name
        else:
            assert error <= TOLERANCE, case


def splitting_cases():
    rng = random.Random(20261121)  # noqa: S311 (a draw, no secret)
    for heads, kv_heads in ((16, 1), (32, 8), (64, 8), (16, 16), (128, 1), (4, 2)):
        for batch in (1, 3, 32, 200):
            longest = rng.choice((1, 63, 64, 1000, 4096, 32768))
            yield {
                "cached": [rng.randint(1, longest) for _ in range(batch - 1)] + [longest],
                "q_heads": heads,
                "kv_heads": kv_heads,
                "kv_splits": rng.choice((1, 8, 16, 32, 256)),
                "cores": rng.choice((78, 132, 142, 188)),
            }


@pytest.mark.parametrize("version", only(["0.5.23"], ["0.5.2", "0.5.12", "0.5.16", "0.5.23"]))
def test_caches_are_split_as_the_engine_splits_them(version, tmp_path):
    cases = list(splitting_cases())
    found = interpreted("interpret_kv_splits.py", version, tmp_path, given=json.dumps(cases))
    assert len(found) == len(cases) == 24
    for case, engines in zip(cases, found, strict=True):
        problem = Attention(
            AttentionPhase.DECODE,
            case["q_heads"],
            case["kv_heads"],
            Lq=128,
            Lv=128,
            dtype=Dtype.BFLOAT16,
            kv_splits=case["kv_splits"],
        )
        assert kv_splits(case["cached"], problem, case["cores"]) == engines, case
    assert len({tuple(engines) for engines in found}) > 12  # they do differ
