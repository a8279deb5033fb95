"""Which dense GEMMs a model's rank runs, as a user names it."""

from pathlib import Path

import pytest

from tuner.devices.table import find_device
from tuner.errors import BadProblem
from tuner.families.dense_gemm.models import resolve, resolve_config
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.models.serving import Resolved, Serving
from tuner.problems.dtypes import Dtype

MODELS = Path(__file__).parent.parent / "data" / "models"
L40S = find_device("L40S")
SHARED = {(512, 7168), (7168, 256)}  # of DeepSeek-R1 at TP 8


def shapes(found: Resolved) -> list[tuple[int, int]]:
    problems = [problem for problem in found.problems if isinstance(problem, DenseGemm)]
    assert len(problems) == len(found.problems)
    return [(problem.N, problem.K) for problem in problems]


@pytest.mark.parametrize(
    ("version", "options", "apart"),
    [
        ("0.5.16", {}, False),
        ("0.5.16", {"fuse_shared": False}, True),
        ("0.5.16", {"ep": 8}, True),
        ("0.4.4", {}, True),
    ],
)
@pytest.mark.parametrize("source", ["deepseek-r1", "config.json"])
def test_shared_experts_are_gemms_only_where_the_engine_does_not_fuse_them(
    version, options, apart, source
):
    serving = Serving(device=L40S, tp=8, engine_version=version, options=options)
    if source == "deepseek-r1":
        found = resolve(source, serving)
    else:
        data = (MODELS / "deepseek-r1" / "config.json").read_bytes()
        found = resolve_config(data, "my-model", serving)
    assert (set(shapes(found)) & SHARED) == (SHARED if apart else set())
    assert len(shapes(found)) == (9 if version == "0.4.4" else 6) + 2 * (
        apart and version != "0.4.4"
    )
    assert "linear layers of a rank" in found.notes[0]


def test_a_dense_model_has_gemms_too():
    found = resolve("qwen3-32b-fp8", Serving(device=L40S, tp=2))
    assert shapes(found) == [(5120, 5120), (5120, 4096), (25600, 5120), (5120, 12800)]


def test_a_model_in_16_bits_says_what_to_ask_for():
    with pytest.raises(BadProblem, match="--dtype fp8_w8a8"):
        resolve("qwen3-32b", Serving(device=L40S, tp=2))
    found = resolve("qwen3-32b", Serving(device=L40S, tp=2, dtype=Dtype.FP8_W8A8))
    assert all(problem.family == "channel_gemm" for problem in found.problems)
