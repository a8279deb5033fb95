"""The gain that a profile and the kernels' own gains let expect of a load."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_cases import winners
from profile_traces import CUBLAS, DECODE, MOE, TraceWriter

from tuner.deploy.served.expected import expected_gains
from tuner.deploy.served.loads import Load

LOAD = Load(8, 1024, 128)
WINNERS = winners("cluster-l40s-4x8")  # fused MoE, each 1.2 times as fast


def profiled(tmp_path: Path) -> Path:
    trace = TraceWriter()
    for _ in range(3):
        trace.step((MOE, 60.0), (CUBLAS, 40.0), mark="step[EXTEND bs=8 toks=8192]")
        trace.step((MOE, 30.0), (DECODE, 50.0), (CUBLAS, 20.0), mark="step[DECODE bs=8]")
    (tmp_path / str(LOAD)).mkdir()
    trace.write(tmp_path / str(LOAD) / "1-TP-0.trace.json.gz")
    return tmp_path


def test_a_share_of_the_time_becomes_as_much_shorter_as_its_kernels(tmp_path: Path) -> None:
    found = expected_gains(profiled(tmp_path), LOAD, WINNERS, pytest.fail)
    prefill, decode = 1 / (1 - 0.6 * (1 - 1 / 1.2)), 1 / (1 - 0.3 * (1 - 1 / 1.2))
    assert found == {
        **{"prefill_tok_s": pytest.approx(prefill, rel=0.01), "ttft_ms": found["prefill_tok_s"]},
        # Attention has no file here, so it is expected to stay as it is.
        **{"decode_tok_s": pytest.approx(decode, rel=0.01), "tpot_ms": found["decode_tok_s"]},
    }


def test_without_a_profile_or_files_nothing_is_expected(tmp_path: Path) -> None:
    said: list[str] = []
    assert expected_gains(tmp_path, LOAD, WINNERS, said.append) == {}
    assert said and str(LOAD) in said[0]
    assert expected_gains(profiled(tmp_path), LOAD, [], said.append) == {}
