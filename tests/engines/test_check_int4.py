"""What `tuner check` says of files for int4 weights, whose names lack groups and K."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.families.fused_moe.check import check_files

ENTRY = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}


@pytest.mark.parametrize(
    ("device", "options", "why"),
    [
        ("H200", {}, "runs a compiled kernel"),
        ("MI300X", {"hidden_size": 4096}, "needs 'SPLIT_K', which nothing here gives it"),
    ],
)
def test_what_is_assumed_is_said_and_what_cannot_be_bound_is_not_judged(
    tmp_path: Path, device: str, options: dict[str, int], why: str
) -> None:
    file = tmp_path / "E=128,N=1536,device_name=NVIDIA_H200,dtype=int4_w4a16.json"
    file.write_text(json.dumps({"1": ENTRY | {"num_warps": 4, "num_stages": 3}}))
    found = check_files([file], find_device(device), find_engine("vllm==0.33.0"), options)
    said = " ".join(found.as_text().split())
    assert "groups of 128 along K" in said
    assert ("K=7168 (--hidden-size)" in said) is (not options)
    assert "not checked: 2 of 2 launches" in said and "none was checked" in said
    assert why in said
    assert "cannot run" not in said and "cannot bind" not in said
    assert found.as_json()["notes"] == list(found.notes)
