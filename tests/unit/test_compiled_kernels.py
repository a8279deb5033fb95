"""Kernels that are compiled ahead: the tile that a card runs, its shared memory, where it fails."""

import pytest

from tuner.devices.table import devices, find_device
from tuner.engines.sglang.compiled_kernels import compiled_kernel, refusals
from tuner.families.dense_gemm.problem import parse_dense_gemm

KERNEL = compiled_kernel("int8_scaled_mm")
A100, L40S, H200, B200 = map(find_device, ("A100", "L40S", "H200", "B200"))
BEFORE, NOW = "0.4.4", "0.5.16"  # sm_89 has had a table since 0.4.4.post2


def problem(N: int, K: int = 7168):
    return parse_dense_gemm(f"channel_gemm:N={N},K={K},dtype=int8_w8a8")


# The tiles of sm80_dispatch_shape and what they need: stages x (M + N) x K bytes of int8.
SM80 = [
    (1, 4096, (16, 64, 128), 61_440),
    (16, 4097, (16, 64, 128), 51_200),
    (17, 4096, (32, 64, 128), 73_728),
    (32, 4097, (32, 64, 128), 61_440),
    (33, 4096, (64, 64, 128), 81_920),
    (33, 4097, (64, 128, 128), 122_880),
    (64, 20_000, (64, 128, 128), 122_880),
    (65, 8191, (64, 128, 128), 122_880),
    (65, 8192, (128, 128, 64), 81_920),
    (128, 512, (64, 128, 128), 122_880),
    (129, 512, (128, 128, 64), 81_920),
    (4096, 8191, (128, 128, 64), 81_920),
]
SM89 = [
    (16, 8192, (16, 64, 128), 51_200),
    (16, 8193, (16, 128, 128), 73_728),
    (32, 8192, (32, 64, 128), 61_440),
    (32, 8193, (32, 128, 128), 81_920),
    (64, 8192, (64, 64, 128), 81_920),
    (64, 8193, (64, 128, 128), 73_728),
    (128, 8192, (64, 128, 128), 73_728),
    (128, 16_384, (128, 128, 64), 81_920),
    (128, 16_385, (64, 64, 128), 81_920),
    (256, 4096, (64, 128, 128), 73_728),
    (256, 8192, (128, 128, 64), 81_920),
    (256, 16_384, (256, 128, 64), 73_728),
    (256, 16_385, (128, 128, 64), 81_920),
    (257, 512, (128, 128, 64), 81_920),
]


@pytest.mark.parametrize(("m", "n", "tile", "needs"), SM80)
def test_tiles_of_sm80(m, n, tile, needs):
    for card, version in ((A100, NOW), (L40S, BEFORE)):
        found = KERNEL.tile(version, card, m, n)
        assert (found.tile, found.shared_bytes) == (tile, needs)
    assert found.fits(L40S) == (needs <= 101_376)
    assert found.fits(A100)


@pytest.mark.parametrize(("m", "n", "tile", "needs"), SM89)
def test_tiles_of_sm89(m, n, tile, needs):
    found = KERNEL.tile(NOW, L40S, m, n)
    assert (found.tile, found.shared_bytes) == (tile, needs)
    assert found.fits(L40S)


def test_no_tile_of_sm89_is_too_large_for_its_cards():
    assert max(tile.shared_bytes for tile in KERNEL.tiles(NOW, L40S)) == 81_920
    for card in devices():
        if card.target.name in ("sm_86", "sm_89"):
            for n in (512, 4096, 4104, 8184, 8192, 20_000):
                assert not KERNEL.sizes_too_large(NOW, card, n), card.name


def test_sm80s_tiles_fail_on_an_l40s_at_exactly_these_sizes():
    failing = {
        (m, n)
        for m in range(1, 300)
        for n in (8, 4096, 4104, 8184, 8192, 16_384)
        if not KERNEL.tile(BEFORE, L40S, m, n).fits(L40S)
    }
    assert failing == {
        (m, n)
        for m in range(33, 129)
        for n in (8, 4096, 4104, 8184, 8192, 16_384)
        if (m <= 64 and n > 4096) or (m > 64 and n < 8192)
    }


@pytest.mark.parametrize(
    ("n", "ranges"),
    [(512, [(65, 128)]), (4096, [(65, 128)]), (7168, [(33, 128)]), (8192, [(33, 64)])],
)
def test_sizes_that_fail_are_ranges(n, ranges):
    found = KERNEL.sizes_too_large(BEFORE, L40S, n)
    assert [(first, last) for first, last, _ in found] == ranges
    assert not KERNEL.sizes_too_large(BEFORE, A100, n)


@pytest.mark.parametrize(
    ("version", "card", "fails"),
    [
        ("0.4.4", "L40S", True),
        ("0.4.4.post1", "L40S", True),
        ("0.4.4.post2", "L40S", False),
        ("0.4.4.post2", "A40", True),
        ("0.4.5", "A40", False),
        ("0.5.23", "RTX 4090", False),
        ("0.4.4", "H200", False),
    ],
)
def test_tables_came_with_releases(version, card, fails):
    assert bool(refusals("int8_scaled_mm", version, problem(7168), find_device(card))) == fails


def test_cards_after_hopper_have_no_kernel():
    for card in devices():
        built = card.target.name in ("sm_80", "sm_86", "sm_89", "sm_90")
        assert bool(KERNEL.tiles(NOW, card)) == built, card.name
        assert (KERNEL.tile(NOW, card, 1, 512) is not None) == built
        if not built:
            (said,) = refusals("int8_scaled_mm", NOW, problem(7168), card)
            assert said.startswith(f"int8_scaled_mm is not built for {card.target.name}")


def test_hopper_takes_as_many_stages_as_fit():
    for m, n, tile in (
        (32, 8184, (64, 64, 128)),
        (64, 8192, (64, 64, 256)),
        (200, 8, (128, 128, 128)),
    ):
        found = KERNEL.tile(NOW, H200, m, n)
        assert found.tile == tile
        assert found.shared_bytes is None
        assert found.fits(H200)


def test_shapes_that_it_refuses_are_named():
    (rows,) = refusals("int8_scaled_mm", NOW, problem(7168, K=1000), H200)
    assert rows == "int8_scaled_mm refuses K=1000: it is no multiple of 16"
    (columns,) = refusals("int8_scaled_mm", NOW, problem(100), H200)
    assert columns == "int8_scaled_mm refuses N=100: it is no multiple of 8"
    assert not refusals("int8_scaled_mm", NOW, problem(7168), H200)
