"""Load proof with a bundle: tuned, shipped and default; RDMA or sockets; ready or not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from bundle_cases import CASES, built, place
from typer.testing import CliRunner, Result

from tuner.cli import app
from tuner.deploy.load_proof import prove_loads, read_deployed, render_proof
from tuner.deploy.load_proof.deployed import FileOrigin
from tuner.deploy.load_proof.proof import LoadProof
from tuner.engines.engine import find_engine
from tuner.errors import BadInput, BundleRefused
from tuner.families.fused_moe.engine import moe_engine

L40S, H20, RAY = CASES
NAME = "E=257,N=128,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128]"
MOUNTED = "/opt/tuner/engine-configs/configs/triton_3_6_0"
PACKAGE = "/sgl-workspace/sglang/python/sglang/srt/layers/moe/moe_runner/triton_utils/configs"
LOADED = "[2026-11-01 10:00:00 TP{}] Using MoE kernel config from {}/{}.json."
IB = (
    "h20-node01:812:812 [0] NCCL INFO NET/IB : Using [0]mlx5_1:1/RoCE [1]mlx5_2:1/RoCE [RO]; OOB "
    "xgbe0:10.63.65.207<0>"
)
USING = "h20-node01:812:812 [0] NCCL INFO Using network {}"
DIRECT = "h20-node01:812:9 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA"
READY = "[2026-11-01 10:09:00] The server is fired up and ready to roll!"


def tuned_lines(folder: str = MOUNTED) -> list[str]:
    return [LOADED.format(0, folder, name) for name in (NAME, f"{NAME}_down")]


def proved(tmp_path: Path, lines: list[str], case: str = H20) -> LoadProof:
    (tmp_path / "server.log").write_text("\n".join(lines) + "\n")
    archive = tmp_path / "bundle.tar.gz"
    archive.write_bytes(built(case).archive)
    return prove_loads([tmp_path / "server.log"], read_deployed(archive))


def test_the_whole_launch_as_the_user_looked_at_it(tmp_path: Path) -> None:
    proof = proved(tmp_path, [IB, USING.format("IB"), DIRECT, *tuned_lines(), READY])
    assert proof.ok, proof.problems()
    assert {load.origin for load in proof.loads} == {FileOrigin.TUNED.value}
    text = render_proof(proof)
    assert "entries: 18 predicted" in text
    assert "NET/IB (server.log:2)" in text
    assert "mlx5_1, mlx5_2, control over xgbe0" in text
    assert "1 channels with GPUDirect RDMA, 0 without" in text
    assert "ready           server.log:6" in text
    assert text.endswith("\nas tuned\n")


def test_the_engine_s_own_file_is_not_a_tuned_one(tmp_path: Path) -> None:
    shipped = tuned_lines(f"{PACKAGE}/triton_3_6_0")
    proof = proved(tmp_path, [USING.format("IB"), *shipped, READY])
    assert {load.origin for load in proof.loads} == {FileOrigin.SHIPPED.value}
    assert f"{NAME}: the engine's own file was loaded, not a tuned one" in proof.problems()
    assert "shipped         moe" in render_proof(proof)


def test_a_file_that_the_folder_carries_is_the_engine_s_own(tmp_path: Path) -> None:
    engine = moe_engine(find_engine("sglang==0.5.16"))
    one = next(file.path for file in engine.shipped() if file.path.name != f"{NAME}.json")
    line = LOADED.format(0, f"/opt/tuner/engine-configs/configs/{one.parent.name}", one.stem)
    proof = proved(tmp_path, [USING.format("IB"), line, *tuned_lines(), READY])
    assert proof.loads[0].origin == FileOrigin.SHIPPED.value
    assert proof.ok  # another layer's: nobody tuned it


def test_a_tuned_file_that_no_line_names(tmp_path: Path) -> None:
    proof = proved(tmp_path, [USING.format("IB"), tuned_lines()[0], READY])
    assert proof.problems() == [f"{NAME}_down: in the bundle, but no line says that it was loaded"]


def test_sockets_are_not_rdma(tmp_path: Path) -> None:
    sockets = "h20-node01:812:812 [0] NCCL INFO NET/Socket : Using [0]xgbe0:10.63.65.207<0>"
    proof = proved(tmp_path, [sockets, USING.format("Socket"), *tuned_lines(), READY])
    assert proof.problems() == ["NCCL uses TCP sockets between nodes, not RDMA (server.log:2)"]
    silent = proved(tmp_path, [*tuned_lines(), READY])
    assert silent.problems() == [
        "no line says which network NCCL uses: start the servers with NCCL_DEBUG=INFO"
    ]


def test_a_server_that_is_not_ready(tmp_path: Path) -> None:
    proof = proved(tmp_path, [USING.format("IB"), *tuned_lines()])
    assert proof.problems() == ["no line says that the server is ready"]
    vllm = "(APIServer pid=1) INFO:     Application startup complete."
    assert proved(tmp_path, [USING.format("IB"), *tuned_lines(), vllm]).ok


def test_an_unpacked_bundle_and_an_exported_folder_serve_too(tmp_path: Path) -> None:
    root = place(built(H20), tmp_path / "unpacked")
    here = tuned_lines(str(root / "engine-configs/configs/triton_3_6_0"))
    (tmp_path / "server.log").write_text("\n".join([USING.format("IB"), *here, READY]))
    assert prove_loads([tmp_path / "server.log"], read_deployed(root)).ok
    # Files and their sidecars alone, as `tuner export` writes them.
    shutil.copytree(root / "engine-configs", tmp_path / "configs_out")
    log = tmp_path / "other.log"
    log.write_text("\n".join(tuned_lines(f"{tmp_path}/configs_out/configs/triton_3_6_0")))
    assert prove_loads([log], read_deployed(tmp_path / "configs_out")).ok
    assert prove_loads([log]).ok  # the sidecars are on this machine


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"holds neither MANIFEST\.json nor provenance"):
        read_deployed(tmp_path)
    archive = bytearray(built(H20).archive)
    archive[len(archive) // 2] ^= 1
    (tmp_path / "b.tar.gz").write_bytes(archive)
    with pytest.raises(BundleRefused):
        read_deployed(tmp_path / "b.tar.gz")


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["load-proof", *map(str, arguments)])


def test_the_command_takes_the_bundle_first(tmp_path: Path) -> None:
    archive, log = tmp_path / "b.tar.gz", tmp_path / "server.log"
    archive.write_bytes(built(H20).archive)
    log.write_text("\n".join([USING.format("IB"), *tuned_lines(), READY]))
    assert command(archive, log).exit_code == 0
    assert command(log).exit_code == 1  # nothing tells a tuned file from a shipped one
    alone = command(archive)
    assert alone.exit_code == 2
    assert "give a server's log after" in alone.stderr
