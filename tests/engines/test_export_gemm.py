"""Exports of dense GEMMs: what servers read is what was chosen, and nothing better is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from cases import H200, deliver
from gemm_cases import tile
from real_gemm import RealGemm

from tuner.bindings.sglang.dense_gemm import open_delivery
from tuner.bindings.sglang.dense_gemm.delivery import GemmDelivery
from tuner.bindings.sglang.plugin.gemm_files import find_gemm_files, read_gemm_file
from tuner.engines.config_files import launch_config
from tuner.engines.engine import find_engine
from tuner.engines.sglang.package import SGLang
from tuner.errors import ExportRefused
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.dense_gemm.problem import DensePart, parse_dense_gemm
from tuner.problems.points import Config, Point
from tuner.problems.results import Compiled, Entry, Environment, Incumbent, Status, Winner

FP8 = parse_dense_gemm("block_gemm:N=2112,K=7168,dtype=fp8_w8a8,block=128x128")
INT8 = parse_dense_gemm("block_gemm:N=2112,K=7168,dtype=int8_w8a8,block=128x128")
CHANNEL = parse_dense_gemm("channel_gemm:N=4096,K=2048,dtype=fp8_w8a8")
NEWEST = "0.5.23"
ENVIRONMENT = Environment("NVIDIA_H200", "sglang", NEWEST, "3.8.0", "kernels", driver="550")
TILE = tile(16, 64, 128, group=8, stages=4)
CHANNEL_TILE = Config({k: v for k, v in TILE.items() if k != "GROUP_SIZE_M"})
DAY = datetime(2026, 11, 1, tzinfo=timezone.utc)


def winner(
    problem=FP8, M=1, config=TILE, status=Status.OK, *, days: int = 0, **environment: str
) -> Winner:
    default = {"default": Incumbent(config.replace(num_warps=8), Status.OK, 30.0)}
    compiled = Compiled(Status.OK, 55_808, 96, 0)
    us = None if status is Status.INCUMBENT else 20.0
    entry = Entry(Point(M, DensePart.DENSE), config, status, us, compiled, default, "1.5x as fast")
    here = replace(ENVIRONMENT, **environment)
    return Winner(problem, here, entry, 1, DAY + timedelta(days=days))


@pytest.fixture
def delivery() -> GemmDelivery:
    return open_delivery(find_engine(f"sglang=={NEWEST}"))


@pytest.fixture
def installed(tmp_path) -> GemmDelivery:
    """A copy of the engine that may be written to: its kernels' folder, and no configs."""
    real = find_engine(f"sglang=={NEWEST}")
    root = tmp_path / "site-packages" / "sglang"
    folder = root / "kernels/ops/gemm"
    folder.mkdir(parents=True)
    for name in ("fp8_kernel.py", "int8_kernel.py"):
        (folder / name).write_text((real.root / "kernels/ops/gemm" / name).read_text())
    return open_delivery(SGLang(NEWEST, root))


def test_the_plugins_files_lie_under_the_root(delivery, tmp_path):
    winners = [winner(M=M) for M in (64, 1, 8)] + [winner(INT8), winner(CHANNEL, 1, CHANNEL_TILE)]
    files = deliver(delivery, winners, tmp_path, H200)
    folder = tmp_path / "gemm" / "triton_3_8_0"
    name = "N=2112,K=7168,dtype={}_w8a8,block=128x128,device_name=NVIDIA_H200.json"
    assert {file.path for file in files} == {
        folder / f"block_gemm,{name.format('fp8')}",
        folder / f"block_gemm,{name.format('int8')}",
        folder / "channel_gemm,N=4096,K=2048,dtype=fp8_w8a8,device_name=NVIDIA_H200.json",
    }
    assert sorted(file.path for file in files) == find_gemm_files(tmp_path)
    [file] = [file for file in files if file.problem == FP8]
    assert file.sidecar == tmp_path / "provenance/gemm/triton_3_8_0" / file.path.name
    read = read_gemm_file(file.path)
    assert list(read.entries) == [1, 8, 64]
    assert (read.engine_version, read.kernel_hash) == (NEWEST, "kernels")
    assert read.engine_entries()[8] == dict(TILE)
    sidecar = json.loads(file.sidecar.read_text())
    assert sidecar["entries"]["8"]["median_us"] == 20.0
    assert sidecar["entries"]["8"]["environment"]["driver"] == "550"
    assert file.as_json() == {"batch_sizes": [1, 8, 64]}
    assert [row["batch_size"] for row in file.rows()] == [1, 8, 64]


def test_files_in_the_package_are_what_the_real_loader_reads(installed, tmp_path):
    swapped = TILE.replace(BLOCK_SIZE_K=64, SWAP_AB=1, SPLIT_K=8)
    winners = [
        winner(M=1, config=swapped),
        winner(M=16, config=TILE.replace(SWAP_AB=0, SPLIT_K=1)),
        winner(INT8),
        winner(CHANNEL, 4, CHANNEL_TILE),
    ]
    root = installed.engine_root
    files = deliver(installed, winners, root, H200)
    names = {file.path.name for file in files}
    assert all(file.path.parent == root / "configs" for file in files)
    assert all(file.sidecar.parent == root / "provenance" for file in files)
    key = "N=2112,K=7168,device_name=NVIDIA_H200,dtype={},block_shape=[128, 128].json"
    assert names == {
        key.format("fp8_w8a8"),
        key.format("int8_w8a8"),
        "N=4096,K=2048,device_name=NVIDIA_H200,dtype=fp8_w8a8_channelwise.json",
    }
    real = RealGemm(NEWEST)
    assert real.entries(FP8, "NVIDIA_H200", root) == {
        1: {**swapped, "SWAP_AB": True},
        16: dict(TILE),  # without keys for which the plain kernel would stop
    }
    text = (root / "configs" / key.format("fp8_w8a8")).read_text()
    assert '"SWAP_AB": true' in text
    assert real.entries(INT8, "NVIDIA_H200", root) == {1: dict(TILE)}
    assert real.entries(CHANNEL, "NVIDIA_H200", root) == {4: dict(CHANNEL_TILE)}


@pytest.mark.parametrize("status", [Status.INCUMBENT, Status.OK])
def test_channels_are_left_to_cutlass_where_nothing_better_was_chosen(installed, status, tmp_path):
    """Without an entry the engine runs CUTLASS there, not the default of its Triton kernel."""
    kept = winner(CHANNEL, 64, CHANNEL_TILE, status)
    own = {"default": Incumbent(CHANNEL_TILE, Status.OK, 20.0)}
    kept = replace(kept, entry=replace(kept.entry, incumbents=own))
    winners = [winner(CHANNEL, 1, CHANNEL_TILE), kept]
    root = installed.engine_root
    deliver(installed, winners, root, H200)
    read = RealGemm(NEWEST).entries(CHANNEL, "NVIDIA_H200", root)
    assert read == {1: dict(CHANNEL_TILE), 64: None}
    [file] = deliver(installed, winners, tmp_path / "out", H200)
    assert read_gemm_file(file.path).engine_entries() == read
    gemm = gemm_engine(find_engine(f"sglang=={NEWEST}"))
    default = launch_config(gemm.default_config(CHANNEL, H200, 64))
    untuned = winner(CHANNEL, 64, default, Status.INCUMBENT)
    untuned = replace(untuned, entry=replace(untuned.entry, incumbents={}))
    [file] = deliver(installed, [winners[0], untuned], tmp_path / "untuned", H200)
    assert read_gemm_file(file.path).engine_entries() == read
    # The default of its Triton kernel is an entry where it was measured as faster than CUTLASS.
    known = {**own, "cutlass": Incumbent(Config({}), Status.OK, 40.0, backend="cutlass")}
    faster = replace(winners[0].entry, incumbents=known, without_us="cutlass")
    faster = replace(faster, config=CHANNEL_TILE, point=kept.entry.point)
    beside = [winners[0], replace(kept, entry=faster)]
    [file] = deliver(installed, beside, tmp_path / "faster", H200)
    assert read_gemm_file(file.path).entries[64] == CHANNEL_TILE
    # Blocks run in Triton in any case: an entry does no harm there, and a neighbour's might.
    block = winner(FP8, 64, TILE, status)
    own = {"default": Incumbent(TILE, Status.OK, 20.0)}
    block = replace(block, entry=replace(block.entry, incumbents=own))
    [file] = deliver(installed, [block], tmp_path / "blocks", H200)
    assert read_gemm_file(file.path).entries[64] == TILE


def test_the_entry_is_the_one_that_was_timed(tmp_path):
    """0.5.12 raises BLOCK_SIZE_K to the block of K, and its kernel was timed so."""
    old = open_delivery(find_engine("sglang==0.5.12"))
    below = winner(config=TILE.replace(BLOCK_SIZE_K=64), engine_version="0.5.12")
    [file] = deliver(old, [below], tmp_path, H200)
    assert read_gemm_file(file.path).entries[1]["BLOCK_SIZE_K"] == 128


def test_what_the_engine_reads_no_file_for_is_refused(delivery, tmp_path):
    int8 = parse_dense_gemm("channel_gemm:N=64,K=64,dtype=int8_w8a8")
    with pytest.raises(ExportRefused, match=r"reads no file for channel_gemm"):
        delivery.files([winner(int8, 1, CHANNEL_TILE)], H200, tmp_path)
    older = open_delivery(find_engine("sglang==0.5.16"))
    with pytest.raises(ExportRefused, match="sglang 0.5.16 reads no file for channel_gemm"):
        older.files([winner(CHANNEL, 1, CHANNEL_TILE)], H200, tmp_path)


def test_a_file_that_servers_could_not_read_is_refused(delivery, tmp_path):
    with pytest.raises(ExportRefused, match="unknown field 'BLOCK_SIZE_Q'"):
        delivery.files([winner(config=TILE.replace(BLOCK_SIZE_Q=3))], H200, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_that_changed_under_our_hands_is_noticed(installed, tmp_path):
    for root in (installed.engine_root, tmp_path / "out"):
        [file] = deliver(installed, [winner()], root, H200)
        file.path.write_text(file.text().replace('"num_stages": 4', '"num_stages": 2'))
        with pytest.raises(ExportRefused):
            installed.verify([file], H200, root)
        file.path.unlink()
        with pytest.raises(ExportRefused):
            installed.verify([file], H200, root)


@pytest.mark.parametrize("version", ["0.4.4", "0.5.2"])
def test_releases_without_plugins_take_files_in_their_package_alone(version):
    delivery = open_delivery(find_engine(f"sglang=={version}"))
    assert "loads no plugins" in delivery.obstacle(into_engine=False)
    assert "--into-engine" in delivery.obstacle(into_engine=False)
    assert delivery.obstacle(into_engine=True) == ""


def test_how_servers_are_pointed_at_the_files(delivery):
    assert delivery.obstacle(into_engine=False) == delivery.obstacle(into_engine=True) == ""
    assert delivery.variable == "TUNER_GEMM_CONFIG_DIR"
    assert list(delivery.packaged()) == []  # the engine goes on reading its own
    assert not delivery.advice(())
    assert delivery.engine_root == find_engine(f"sglang=={NEWEST}").root / "kernels/ops/gemm"
