"""The last gate, as far as a machine without the engine goes."""

import json

import pytest

from tuner.errors import BadInput, MeasurerFailed
from tuner.families.fused_moe.prove import Proof, ProofRow, prove
from tuner.problems.registry import parse_problem

PROBLEM = "fused_moe:E=8,N=64,K=128,top_k=2,dtype=bfloat16"


def row(tuned: float, shipped: float, tuned_error: float = 0.01) -> ProofRow:
    us = {"tuned": tuned, "shipped": shipped, "default": shipped}
    errors = {"tuned": tuned_error, "shipped": 0.01, "default": 0.01}
    return ProofRow(parse_problem(PROBLEM), 8, us, errors)


def test_slower_or_less_exact_is_not_proven():
    assert row(100.0, 100.0).proven
    assert row(100.4, 100.0).proven
    assert not row(101.0, 100.0).proven
    assert not row(50.0, 100.0, tuned_error=0.02).proven
    assert not row(50.0, 100.0, tuned_error=float("nan")).proven
    proof = Proof([row(50.0, 100.0), row(101.0, 100.0)])
    assert not proof.proven
    assert "NOT PROVEN" in proof.as_text()
    assert json.loads(json.dumps(proof.as_json()))["proven"] is False


def test_nothing_exported_is_said(tmp_path):
    with pytest.raises(BadInput, match="tuner export"):
        prove(tmp_path, "NVIDIA_H200", "sglang")


def test_an_engine_that_cannot_be_imported_is_said(tmp_path):
    sidecar = tmp_path / "provenance/triton_3_6_0/E=8,N=64,device_name=NVIDIA_H200.json"
    sidecar.parent.mkdir(parents=True)
    row = {"environment": {"device": "NVIDIA_H200", "engine": "sglang"}}
    sidecar.write_text(json.dumps({"problem": PROBLEM, "entries": {"8": row}}))
    with pytest.raises(BadInput):
        prove(tmp_path, "NVIDIA_H200_NVL", "sglang")
    with pytest.raises(MeasurerFailed, match="sglang"):
        prove(tmp_path, "NVIDIA_H200", "sglang")
