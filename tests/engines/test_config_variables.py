"""Servers are pointed at a folder only for what it holds, as the engines' own loaders want it."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_sglang import package
from served_cases import exported
from test_load_proof import VERSIONS, ask, place

from tuner.engines.launch import all_config_variables, config_variables
from tuner.engines.sglang.fused_moe.files import read_loader_rules

MOE = "SGLANG_MOE_CONFIG_DIR"
READING = [v for v in VERSIONS if read_loader_rules(package(v), v).config_dir_env]


@pytest.mark.parametrize("version", READING)
def test_sglang_stops_at_a_folder_without_configs(version: str, tmp_path, monkeypatch) -> None:
    exported(tmp_path / "root", folder="attention/triton_3_6_0")
    monkeypatch.setenv(MOE, str(tmp_path / "root"))
    with pytest.raises(FileNotFoundError):
        ask(version, tmp_path / "package")
    assert MOE not in config_variables("sglang", tmp_path / "root")


@pytest.mark.parametrize("version", READING)
def test_sglang_loads_what_the_variable_points_at(version: str, tmp_path, monkeypatch) -> None:
    path = place(tmp_path / "root", version)
    for name in config_variables("sglang", tmp_path / "root"):
        monkeypatch.setenv(name, str(tmp_path / "root"))
    proof, _ = ask(version, tmp_path / "package")
    assert [load.used for load in proof.loads] == [str(path)]


@pytest.mark.parametrize(
    ("engine", "folder", "variables"),
    [
        ("sglang", "configs/triton_3_6_0", [MOE]),
        ("sglang", "attention/triton_3_6_0", ["TUNER_ATTENTION_CONFIG_DIR"]),
        ("sglang", "gemm/triton_3_6_0", ["TUNER_GEMM_CONFIG_DIR"]),
        ("vllm", ".", ["VLLM_TUNED_CONFIG_FOLDER"]),
        ("vllm", "configs/triton_3_6_0", []),
    ],
)
def test_each_kind_of_file_has_its_variable(
    tmp_path: Path, engine: str, folder: str, variables: list[str]
) -> None:
    assert list(config_variables(engine, exported(tmp_path, folder=folder))) == variables
    assert {*variables} <= {*all_config_variables(engine)}
