"""Which known winners are tried first."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import cases
import pytest
from cases import FP8, H200

from tuner.devices.table import find_device
from tuner.families.fused_moe.engine import MoeFileKey, ShippedFile
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.families.fused_moe.space import seeds_for, space_for
from tuner.problems.points import Config, Point
from tuner.tuning.space import Space

POINT = Point(64, Gemm.UP)
KEY = MoeFileKey(256, 256, "NVIDIA_H200", "fp8_w8a8", (128, 128))


def config(n: int, stages: int = 3, warps: int = 4) -> Config:
    return cases.config(64, n, 128, warps, stages)


def file(key: MoeFileKey, entries: Mapping[int, Config]) -> ShippedFile:
    return ShippedFile(Path(str(key)), key, "3.6.0", entries, ())


@cache
def spaces(problem: FusedMoe = FP8, device: str = "H200") -> dict[Gemm, Space]:
    there = find_device(device)
    return {gemm: space_for(problem, there, gemm) for gemm in Gemm}


def seeds(*files: ShippedFile, point: Point = POINT, **more: object) -> list[Config]:
    there = spaces()
    at = {point: there[point.part]}
    return seeds_for(at, FP8, H200, there, files, **more)[point]


# Each is nearer to the problem than the file below, which is otherwise like it.
NEAR = file(KEY, {64: config(32)})
FARTHER = [
    MoeFileKey(256, 256, "NVIDIA_H200", None),
    MoeFileKey(256, 256, "NVIDIA_H200", "int8_w8a8", (128, 128)),
    MoeFileKey(256, 256, "NVIDIA_H200", "fp8_w8a8"),
    MoeFileKey(256, 256, "NVIDIA_B200", "fp8_w8a8", (128, 128)),
    MoeFileKey(256, 256, "NVIDIA_H100_80GB_HBM3", "fp8_w8a8", (128, 128)),
    MoeFileKey(256, 256, "NVIDIA_UNHEARD_OF", "fp8_w8a8", (128, 128)),
    MoeFileKey(8, 256, "NVIDIA_H200", "fp8_w8a8", (128, 128)),
    MoeFileKey(256, 2048, "NVIDIA_H200", "fp8_w8a8", (128, 128)),
    MoeFileKey(256, 256, "NVIDIA_H200", "fp8_w8a8", (128, 128), gemm=Gemm.DOWN),
]


@pytest.mark.parametrize("key", FARTHER, ids=str)
def test_the_nearer_file_comes_first(key):
    assert seeds(file(key, {64: config(128)}), NEAR) == [config(32), config(128)]


def test_the_nearer_batch_size_comes_first():
    shipped = file(KEY, {1: config(32), 48: config(128), 4096: config(256)})
    assert seeds(shipped)[0] == config(128)
    assert seeds(shipped, point=Point(1, Gemm.UP))[0] == config(32)


def test_what_wins_often_beats_what_won_nearby():
    others = [
        file(MoeFileKey(128, 256, d, "fp8_w8a8", (128, 128)), {64: config(256, stages=5)})
        for d in ("NVIDIA_H200", "NVIDIA_H20", "NVIDIA_H20-3e", "NVIDIA_H100_80GB_HBM3")
    ]
    assert seeds(NEAR, *others)[0] == config(256, stages=5)


def test_a_winner_takes_votes_from_its_neighbours():
    shipped = [
        file(KEY, {64: config(64, stages=3), 65: config(64, stages=4)}),
        file(MoeFileKey(200, 256, "NVIDIA_H200", "fp8_w8a8", (128, 128)), {64: config(256, 2, 8)}),
    ]
    # Alone, stages=4 would come second: it is as near as the first.
    assert seeds(*shipped) == [config(64, 3), config(256, 2, 8), config(64, 4)]


def test_known_configurations_come_before_all_others_and_once():
    known = {POINT: [config(128, 5), config(32)]}
    assert seeds(NEAR, known=known) == [config(128, 5), config(32)]


def test_files_of_one_key_can_be_left_out():
    other = file(MoeFileKey(256, 128, "NVIDIA_H20", "fp8_w8a8", (128, 128)), {64: config(128)})
    assert seeds(NEAR, other, without={(256, 256), (257, 256)}) == [config(128)]


def test_nothing_shipped_leaves_nothing():
    assert seeds() == []
