"""The way of the H20 authors: captured outputs, both start scripts, the proof, the table of a run.

Their posts: sglang on 2 x 8 H20 (sglang issue 4978) and vLLM on Ray on the same machines.
"""

import shlex
import subprocess
from pathlib import Path

import pytest
from bundle_cases import CAPTURES, CASES, ENGINES, EXAMPLES, unpacked
from commands import tuner

_, H20, RAY = CASES
NODES = ("h20-node01", "h20-node02")
GIVEN = [f"--node={name}={CAPTURES / name}" for name in NODES]
RAILS = ",".join(f"mlx5_{i}" for i in range(1, 9))


def started(case: str, tmp_path: Path, node: str) -> list[str]:
    """The words with which a node's server is started, from the captures."""
    archive = tmp_path / "bundle.tar.gz"
    toml = EXAMPLES / f"{case}.toml"
    options = ["--device", "H20", "--cluster", toml, "--allow-predicted", "--out", archive]
    options += ["--engine", ENGINES[case][0]]
    made = tuner("bundle", *options, *GIVEN)
    assert "|  the same" in made.stderr
    files = unpacked(archive.read_bytes())
    script = tmp_path / "docker.sh"
    script.write_bytes(files[f"nodes/{node}/docker.sh"].data)
    done = subprocess.run(["bash", script, "--print"], capture_output=True, text=True, check=True)
    return shlex.split(done.stdout)


def variables(words: list[str]) -> dict[str, str]:
    pairs = zip(words, words[1:], strict=False)
    return dict(value.split("=", 1) for word, value in pairs if word == "--env")


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.usefixtures("bundled_store")
@pytest.mark.parametrize(("node", "rank"), [(NODES[0], "0"), (NODES[1], "1")])
def test_sglang_s_start_script(tmp_path, node, rank):
    words = started(H20, tmp_path, node)
    assert (
        variables(words).items()
        >= {
            "NCCL_IB_HCA": RAILS,
            "NCCL_IB_GID_INDEX": "3",
            "NCCL_DEBUG": "INFO",
            "GLOO_SOCKET_IFNAME": "xgbe0",
            "NCCL_SOCKET_IFNAME": "xgbe0",
            "TP_SOCKET_IFNAME": "xgbe0",
            "SGLANG_HOST_IP": f"10.63.65.20{7 + int(rank)}",
            "HOST_IP": f"10.63.65.20{7 + int(rank)}",
        }.items()
    )
    assert after(words, "--node-rank") == rank  # other flags: tests/engines/test_bundle_scripts.py


@pytest.mark.usefixtures("bundled_store")
def test_vllm_s_start_script(tmp_path):
    head = started(RAY, tmp_path, NODES[0])
    assert (
        variables(head).items()
        >= {
            "VLLM_HOST_IP": "10.63.65.207",
            "HOST_IP": "10.63.65.207",
            "NCCL_IB_HCA": RAILS,
            "NCCL_DEBUG": "INFO",
            "TP_SOCKET_IFNAME": "xgbe0",
        }.items()
    )
    assert shlex.split(head[-1])[:3] == ["ray", "start", "--head"]
