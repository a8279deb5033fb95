"""Commands find the machine's own GPU where `--device` does not name one."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.devices.here import (
    VISIBLE,
    card_to_check_or_here,
    device_or_here,
    gpu_of_kind,
    gpu_to_measure_on,
)
from tuner.devices.table import find_device
from tuner.errors import BadInput, UnknownDevice

MIXED = (
    "#!/bin/sh\ncase $1 in\n*uuid*) printf 'GPU-a1\\nGPU-b2\\nGPU-c3\\n';;\n"
    "*) printf 'NVIDIA H200\\nNVIDIA L40S\\nNVIDIA H200\\n';;\nesac\n"
)
TUNE = ("tune", "deepseek-r1", "--tp", "3")


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A nvidia-smi that a test writes; until then there is none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(VISIBLE, raising=False)
    return tmp_path / "nvidia-smi"


def answers(smi: Path, *names: str, code: int = 0) -> None:
    smi.write_text("#!/bin/sh\n" + "".join(f"echo '{name}'\n" for name in names) + f"exit {code}\n")
    smi.chmod(0o755)


def test_the_one_kind_of_gpu_here_is_taken(smi):
    answers(smi, *["NVIDIA L40S"] * 4)
    assert device_or_here("").name == "NVIDIA_L40S"
    assert device_or_here("H200").name == "NVIDIA_H200"


def test_several_kinds_are_named(smi):
    answers(smi, "NVIDIA L40S", "NVIDIA H200", "NVIDIA L40S")
    with pytest.raises(UnknownDevice, match="has NVIDIA H200 and NVIDIA L40S: .* --device"):
        device_or_here("")


def test_a_card_that_is_not_known_is_named(smi):
    answers(smi, "Tesla V100-SXM2-16GB")
    with pytest.raises(UnknownDevice, match="V100"):
        device_or_here("")


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("words", [TUNE, ("check", "x.json"), ("export",)])
def test_without_a_gpu_the_error_names_the_option(smi, words, broken, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.json").write_text("{}")
    if broken:
        answers(smi, "NVIDIA-SMI has failed", code=9)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "--device H200" in done.output


def test_tune_uses_it(smi):
    answers(smi, "NVIDIA L40S")
    done = CliRunner().invoke(app, [*TUNE, "--measure", "bla"])
    assert done.exit_code == 2
    assert "--device" not in done.output


def test_an_unknown_gpu_here_is_checked_by_its_compute_capability(smi, tmp_path, compile_cache):
    smi.write_text(
        "#!/bin/sh\ncase $1 in *compute_cap*) echo 12.0;; *) echo NVIDIA New Card;; esac\n"
    )
    smi.chmod(0o755)
    assert card_to_check_or_here("").name == "sm_120"
    file = tmp_path / "E=8,N=256,device_name=NVIDIA_New_Card.json"
    tile = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
    file.write_text(json.dumps({"1": {**tile, "num_warps": 4, "num_stages": 3}}))
    words = ["check", str(file), "--engine", "sglang==0.5.16"]
    unknown = CliRunner().invoke(app, words)
    assert unknown.exit_code == 2 and "as in --device sm_120" in unknown.stderr
    done = CliRunner().invoke(app, [*words, "--device", "sm_120"])
    assert done.exit_code == 0, done.output
    assert "sm_120 has 101,376 bytes of shared memory a block" in done.stdout
    assert "there are files for NVIDIA_New_Card" in done.stderr


@pytest.mark.parametrize(
    ("visible", "words", "said"),
    [
        (None, ("--gpu", "1"), "tp=3"),  # it gets so far that it resolves the model for the L40S
        (None, ("--gpu", "1", "--device", "H200"), "GPU 1 here is NVIDIA L40S, and not NVIDIA_H20"),
        (None, ("--gpu", "3"), "lists the GPUs 0 to 2 here, and no GPU 3"),
        (None, (), "choose one with --device"),
        (None, ("--gpu", "1", "--device", "H200", "--measure", "predict"), "tp=3"),
        ("1,2", (), "tp=3"),
        ("1,2", ("--device", "H200"), "GPU 1 here is NVIDIA L40S, and not NVIDIA_H200"),
        ("GPU-b", ("--device", "H200"), "GPU GPU-b here is NVIDIA L40S, and not NVIDIA_H200"),
        ("GPU-b", ("--gpu", "1"), "tp=3"),
        ("GPU-b", ("--gpu", "0"), "GPU 0 is not in CUDA_VISIBLE_DEVICES=GPU-b: leave --gpu out"),
        ("1,2", ("--gpu", "0"), "GPU 0 is not in CUDA_VISIBLE_DEVICES=1,2: leave --gpu out"),
        ("1,2", ("--gpu", "0", "--device", "H200", "--measure", "predict"), "tp=3"),
        ("MIG-c", ("--device", "H200"), "tp=3"),  # nvidia-smi does not list it
        ("", ("--device", "H200"), "CUDA_VISIBLE_DEVICES names no GPU: unset it"),
        ("-1", ("--device", "H200"), "CUDA_VISIBLE_DEVICES names no GPU: unset it"),
    ],
)
def test_the_gpu_to_measure_on_says_for_which_kind(smi, monkeypatch, visible, words, said):
    smi.write_text(MIXED)
    smi.chmod(0o755)
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    done = CliRunner().invoke(app, [*TUNE, *words])
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize(
    ("visible", "number", "taken"),
    [
        (None, None, "0"),
        (None, 2, "2"),
        ("3,1", None, "3"),
        ("3,1", 1, "1"),
        ("GPU-b2,GPU-a1", None, "GPU-b2"),
        ("MIG-5", None, "MIG-5"),
        ("2,-1,0", None, "2"),
    ],
)
def test_what_cuda_visible_devices_names_is_measured_on_as_it_is(
    smi, monkeypatch, visible, number, taken
):
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    assert gpu_to_measure_on(number) == taken


@pytest.mark.parametrize(
    ("card", "visible", "taken"),
    [
        ("L40S", None, "1"),
        ("H200", None, "0"),
        ("H200", "1,2", "2"),
        ("L40S", "0,2", None),
        ("L40S", "GPU-b", "1"),
        ("H100", None, None),
    ],
)
def test_results_are_measured_on_a_gpu_of_their_kind(smi, monkeypatch, card, visible, taken):
    smi.write_text(MIXED)
    smi.chmod(0o755)
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    assert gpu_of_kind(find_device(card)) == taken


def test_a_gpu_behind_a_wrong_name_is_not_visible(smi, monkeypatch):
    monkeypatch.setenv(VISIBLE, "2,-1,0")
    with pytest.raises(BadInput, match="GPU 0 is not in CUDA_VISIBLE_DEVICES=2:"):
        gpu_to_measure_on(0)
