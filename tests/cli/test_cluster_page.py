"""docs/cluster.md's commands, word for word but for the shared folder.

On each commit, `tuner tune` does less: `quick` says how. At night it does what the page says.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cases import ROOT
from tiers import only

PAGE = (ROOT / "docs" / "cluster.md").read_text()
FILES = (
    "E=256,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True",
    "E=256,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True_down",
)
CONFIGS = "/opt/tuner/engine-configs/configs/triton_3_6_0"


@pytest.fixture
def shell(env, tmp_path):
    """Run one block of the page in a folder with the examples and the captures."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    env.pop("TUNER_SHELF", None)  # the results that come with this program count
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(block: str) -> subprocess.CompletedProcess[str]:
        script = f"set -eu\n{block.replace('/shared', str(tmp_path / 'shared'))}"
        done = subprocess.run(
            ["bash", "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def quick(block: str) -> str:
    """Return the same commands with less work: the experts of one batch size."""
    assert block.count("--measure predict") == 1
    less = "--measure predict --family fused_moe --effort quick --batch-sizes 1"
    return block.replace("--measure predict", less)


def node_log(node: int) -> str:
    """The lines of one node's eight ranks."""
    ranks = range(8 * node, 8 * node + 8)
    lines = [f"[TP{rank}] Using MoE kernel config from {CONFIGS}/{name}.json."
             for rank in ranks for name in FILES]  # fmt: skip
    network = f"l40s-0{node + 1}:812:812 [0] NCCL INFO Using network IB"
    ready = "The server is fired up and ready to roll!"
    return "\n".join([network, *lines, ready]) + "\n"


def test_a_folder_for_many_nodes(shell, tmp_path):
    done = shell(blocks()[0])
    assert f"export SGLANG_MOE_CONFIG_DIR={tmp_path}/shared/tuned-1" in done.stdout
    assert list((tmp_path / "shared/tuned-1/configs").rglob("*.json"))


@pytest.mark.parametrize("whole", only([False], [False, True]))
def test_the_l40s_example(shell, tmp_path, whole):
    _, build, prove, _ = blocks()
    done = shell(build if whole else quick(build))
    shown = re.search(r"^```\n(files for .*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert shown and shown[1] in done.stderr
    assert "--tp-size 32" in done.stdout and "--quantization w8a8_int8" in done.stdout
    for node in range(4):
        (tmp_path / f"l40s-0{node + 1}.log").write_text(node_log(node))
    proof = prove.partition("cd ..\n")[2]
    assert shell(proof).stdout.endswith("\nas tuned\n")
    undo(tmp_path / "l40s-4x8-NVIDIA_L40S", shell)


def undo(bundle, shell):
    """The page's line that starts servers without the tuned files."""
    line = re.search(r"`(sed -i [^`]*)`", PAGE)
    assert line
    with_files, without = (
        shell(f"cd {bundle}\n{before}nodes/l40s-02/docker.sh --print").stdout
        for before in ("", f"{line[1]}\n")
    )
    setting = " --env SGLANG_MOE_CONFIG_DIR=/opt/tuner/engine-configs"
    assert setting in with_files and without == with_files.replace(setting, "")


@pytest.mark.parametrize("whole", only([False], [False, True]))
def test_the_h20_example(shell, whole):
    block = blocks()[3]
    done = shell(block if whole else quick(block))
    assert "0 errors, 0 warnings" in done.stdout
    assert "leave it: fused_moe:E=257,N=128" in done.stderr
    words = done.stdout.split()
    devices = ",".join(f"mlx5_{number}" for number in range(1, 9))
    assert f"NCCL_IB_HCA={devices}" in words and "NCCL_IB_GID_INDEX=3" in words
