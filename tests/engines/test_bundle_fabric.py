"""The test of the network: what cards can carry, perftest's output, and an all-reduce on CPUs."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from bundle_cases import CASES, built, example, files_of, place

from tuner.deploy import fabric
from tuner.deploy.bundle.scripts import fabric_program

L40S, H20, RAY = CASES
PERFTEST = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : mlx5_1
 Link type       : Ethernet
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             {0}              {0}              0.175
---------------------------------------------------------------------------------------
"""


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Ten cards of 200 Gb/s at PCIe 4.0 x16; mlx5_1 sits at x8."""
    root = tmp_path / "infiniband"
    for number in range(10):
        device = root / f"mlx5_{number}"
        (device / "ports/1").mkdir(parents=True)
        (device / "ports/1/rate").write_text("200 Gb/sec (4X HDR)\n")
        (device / "device").mkdir()
        (device / "device/current_link_speed").write_text("16.0 GT/s PCIe\n")
        (device / "device/current_link_width").write_text("8\n" if number == 1 else "16\n")
    return root


def test_a_card_carries_the_less_of_its_port_and_its_slot(sysfs: Path) -> None:
    expected = fabric.expectations(sysfs, "=mlx5_0,mlx5_1:1")
    assert list(expected) == ["mlx5_0", "mlx5_1"]
    assert expected["mlx5_0"] == pytest.approx(200 / 8 * fabric.PORT_PAYLOAD)
    assert expected["mlx5_1"] == pytest.approx(8 * 1.969 * fabric.PCIE_PAYLOAD)


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ("", 10),
        ("mlx5_1", 1),
        ("mlx5", 10),
        ("^mlx5_0", 9),
        ("=mlx5", 0),
        ("^mlx5", 0),
        ("^=mlx5", 10),
    ],
)
def test_devices_are_chosen_as_nccl_chooses_them(sysfs: Path, asked: str, count: int) -> None:
    assert len(fabric.chosen_devices(sysfs, asked)) == count


def test_a_port_at_a_sixteenth_of_the_rate_is_slow(sysfs: Path) -> None:
    (sysfs / "mlx5_3/ports/1/rate").write_text("10 Gb/sec (1X QDR)\n")
    expected = fabric.expectations(sysfs, "mlx5")
    assert fabric.verdict(expected["mlx5_3"], fabric.wanted_rate(expected, "mlx5_3"), 0.9) != "ok"
    assert fabric.verdict(expected["mlx5_1"], fabric.wanted_rate(expected, "mlx5_1"), 0.9) == "ok"
    done = program("--sysfs", sysfs, "expect")
    assert [line.split()[0] for line in done.stdout.splitlines() if "SLOW" in line] == ["mlx5_3"]


def test_perftest_s_output_is_read() -> None:
    assert fabric.written(PERFTEST.format("184.00")) == pytest.approx(23.0)
    assert fabric.written("Couldn't connect to 10.0.0.1:18515") is None


def test_the_limit_of_an_all_reduce() -> None:
    cards = {"mlx5_0": 23.0, "mlx5_1": 23.0, "mlx5_2": 23.0, "mlx5_3": 23.0}
    nvlink = "GPU0\t X \tNV18\n"
    assert fabric.all_reduce_limit(cards, nvlink, "5, 16\n") == (92.0, "the RDMA cards together")
    limit, why = fabric.all_reduce_limit(cards, "GPU0\t X \tPIX\n", "4, 16\n4, 16\n")
    assert (round(limit, 1), why) == (27.4, "a GPU's PCIe link")
    # What the L40S author measured on such a box: through the processor, and card to card.
    assert fabric.verdict(11, limit, fabric.ALL_REDUCE_OK).startswith("SLOW: less than 60%")
    assert fabric.verdict(19, limit, fabric.ALL_REDUCE_OK) == "ok"


def program(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(Path(fabric.__file__)), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "NCCL_IB_GID_INDEX": "3", **variables},
    )


@pytest.mark.parametrize(("gigabits", "code"), [("184.00", 0), ("61.00", 1)])
def test_bandwidth_asks_each_device_and_judges_it(
    sysfs: Path, tmp_path: Path, gigabits: str, code: int
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "said").write_text(PERFTEST.format(gigabits))
    (tools / "ib_write_bw").write_text(
        f'#!/bin/sh\necho "$@" >> {tools}/asked\nexec cat {tools}/said\n'
    )
    (tools / "ib_write_bw").chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    variables = {"PATH": path, "NCCL_IB_HCA": "mlx5_2,mlx5_3"}
    done = program("--sysfs", sysfs, "bandwidth", "10.0.0.7", **variables)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.count("of   23.2") == 2
    asked = (tools / "asked").read_text().splitlines()
    assert asked[1] == "-d mlx5_3 -p 18516 -F --report_gbits -x 3 10.0.0.7"


def test_without_perftest_its_package_is_named(sysfs: Path, tmp_path: Path) -> None:
    done = program("--sysfs", sysfs, "serve", PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "perftest" in done.stderr


def test_expect_adds_the_cards_up(sysfs: Path) -> None:
    done = program("--sysfs", sysfs, "expect", NCCL_IB_HCA="mlx5_2,mlx5_3")
    assert done.stdout.splitlines()[-1] == "together     46.5 GB/s"


def test_an_all_reduce_over_two_processes(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *ranks, str(Path(fabric.__file__))]
        + ["--sysfs", str(tmp_path), "all-reduce", "--backend", "gloo", "--largest", "1048576"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "   1048576 bytes" in done.stdout
    assert "2 ranks: " in done.stdout
    assert done.stdout.rstrip().endswith("nothing to compare with")


def test_the_scripts_start_it_with_the_node_s_variables(tmp_path: Path) -> None:
    root = place(built(H20), tmp_path)
    assert files_of(built(H20))["fabric.py"].data == fabric_program()
    script = root / "nodes/h20-node02/fabric.sh"

    def printed(*arguments: str) -> list[str]:
        run = ["bash", str(script), "--print", *arguments]
        return shlex.split(subprocess.run(run, capture_output=True, text=True, check=True).stdout)

    words = printed("all-reduce")
    assert words[:2] == ["docker", "run"]
    assert f"{root}:/opt/tuner/bundle:ro" in words
    assert "NCCL_SOCKET_IFNAME=xgbe0" in words
    assert words[-2:] == ["/opt/tuner/bundle/fabric.py", "all-reduce"]
    launch = words[words.index("torch.distributed.run") :]
    options = dict(zip(launch[1:-2:2], launch[2:-2:2], strict=True))
    assert options["--node-rank"] == "1"
    assert options["--master-addr"] == example(H20).nodes[0].host
    bare = subprocess.run(
        ["bash", str(script), "--bare", "--print", "bandwidth", "10.63.65.207"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shlex.split(bare.stdout) == ["python3", f"{root}/fabric.py", "bandwidth", "10.63.65.207"]
    wrong = subprocess.run(["bash", str(script), "fly"], capture_output=True, text=True)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert json.loads((root / "MANIFEST.json").read_text())["cluster"]["nodes"]


def test_scripts_refuse_what_they_cannot_do(tmp_path: Path) -> None:
    root = place(built(H20), tmp_path / "a:b")
    for words in (["bandwidth"], ["--bare", "bandwidth"], ["expect"]):
        command = ["bash", root / "nodes/h20-node02/fabric.sh", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode in (1, 2), words
        assert ("needs the HOST" if "bandwidth" in words else "colon") in done.stderr
