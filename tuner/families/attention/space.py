"""Define the launch configurations of attention's kernels that are legal for a problem."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tuner.devices.table import Device
from tuner.families.attention.problem import Attention, AttentionPart
from tuner.families.attention.splits import BOTH, KV_SPLITS, MAX_KV_SPLITS, MOST
from tuner.problems.points import TRITON_DEFAULTS, Config
from tuner.tuning.space import Rule, Space

_TILES: Mapping[str, tuple[int, ...]] = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (16, 32, 64, 128),
    "num_warps": (2, 4, 8),
    "num_stages": (1, 2, 3, 4),
}
_GROUPED: Mapping[str, tuple[int, ...]] = {
    "BLOCK_N": (16, 32, 64, 128),
    "BLOCK_H": (16, 32, 64),
    "num_warps": (1, 2, 4, 8),
    "num_stages": (1, 2, 3, 4, 5),
}
_ALONE: Mapping[str, tuple[int, ...]] = {
    "BLOCK_N": (16, 32, 64, 128),
    "num_warps": (1, 2, 4, 8),
    "num_stages": (1, 2, 3, 4),
}
_REDUCE: Mapping[str, tuple[int, ...]] = {"num_warps": (1, 2, 4, 8)}
_SPLITS = tuple(1 << n for n in range(MOST.bit_length()))
LEAST_H = 16  # the fewest rows of a tensor core's product
ELEMENT_BYTES = 2


def attention_space(
    problem: Attention, device: Device, part: AttentionPart, takes: Collection[str]
) -> Space:
    """Return the space of a part. `takes`: the constants that the engine's kernel has, and the
    numbers of KV splits if these are to be chosen too.
    """
    axes = {name: values for name, values in _axes(problem, part).items() if name in takes}
    axes |= {name: _SPLITS for name in BOTH if name in takes}
    return Space(
        axes,
        tuple(_rules(problem, device, part)),
        growing=frozenset({"BLOCK_M", "BLOCK_N", "BLOCK_H", "num_stages"}),
        defaults=TRITON_DEFAULTS,
    )


def _axes(problem: Attention, part: AttentionPart) -> Mapping[str, tuple[int, ...]]:
    if part is AttentionPart.REDUCE:
        return _REDUCE
    if part is AttentionPart.DECODE:
        if problem.shares_kv:
            return {**_GROUPED, "HAS_MLA": (0, 1)}
        return _GROUPED if problem.group > 1 else _ALONE
    return _TILES


def _rules(problem: Attention, device: Device, part: AttentionPart) -> Iterator[Rule]:
    columns = 1 << (problem.Lv - 1).bit_length()  # BLOCK_DV, a power of two
    warp = device.target.warp_size
    if part in (AttentionPart.EXTEND, AttentionPart.PREFILL):
        yield Rule(
            "at most 128 accumulators a thread",
            "a thread has 255 registers; more accumulators spill in every kernel compiled",
            lambda c: c["BLOCK_M"] * max(columns, c["BLOCK_N"]) <= 128 * warp * c["num_warps"],
        )
        yield Rule(
            "two warps for the smallest tiles alone",
            "a warp multiplies 16 rows at a time",
            lambda c: c["num_warps"] > 2 or c["BLOCK_M"] <= 32,
        )
    if part is AttentionPart.DECODE and problem.group > 1:
        whole = max(LEAST_H, 1 << (problem.group - 1).bit_length())
        yield Rule(
            "BLOCK_H divides the group, or is the least that holds all of it",
            "_fwd_grouped_kernel_stage1 counts blocks of heads from the first head on, so a block "
            "that begins in a group and ends in the next reads the wrong keys; measured so",
            lambda c: (
                c["BLOCK_H"] == whole
                or (c["BLOCK_H"] < problem.group and problem.shares_keys_in(c["BLOCK_H"]))
            ),
        )
        yield Rule(
            "at most 256 accumulators a thread",
            "a thread has 255 registers",
            lambda c: c["BLOCK_H"] * columns <= 256 * warp * c["num_warps"],
        )
    if part in (AttentionPart.DECODE, AttentionPart.REDUCE):
        yield Rule(
            "no sequence has more parts than the launch has room for",
            "the kernels would leave out the others",
            lambda c: c.get(KV_SPLITS, 0) <= c.get(MAX_KV_SPLITS, 0),
        )
    if part is not AttentionPart.REDUCE:
        yield Rule(
            "one tile of keys fits into shared memory",
            "the tile that is multiplied lies there whatever the number of stages",
            lambda c: _tile_bytes(problem, c) <= device.shared_optin_bytes,
        )


def _tile_bytes(problem: Attention, config: Config) -> int:
    return config["BLOCK_N"] * min(problem.Lq, problem.Lv) * ELEMENT_BYTES


def smaller_configs(config: Config) -> Iterator[Config]:
    """Yield configurations with less and less shared memory, safe but slow, for when the engine's
    does not fit: first fewer stages, then narrower tiles of keys, then of queries.
    """
    for name, least in (("num_stages", 1), ("BLOCK_N", 16), ("BLOCK_M", LEAST_H)):
        while config.get(name, 0) > least:
            less = config[name] - 1 if name == "num_stages" else config[name] // 2
            config = config.replace(**{name: less})
            yield config
