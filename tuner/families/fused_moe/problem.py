"""Describe a fused-MoE layer as a problem. Shapes have the engines' names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tuner.devices.target import Target
from tuner.errors import BadProblem
from tuner.problems.dtypes import Dtype, parse_dtype
from tuner.problems.points import (
    Config,
    Part,
    Point,
    parse_block_shape,
    parse_flag,
    parse_whole,
    read_fields,
)

_RANKS = ("ep", "shared_experts")
_FIELDS = ("E", "N", "K", "top_k", "dtype", "block_shape", "per_channel_quant", *_RANKS)
# The batch sizes of sglang's tuning script, and so the keys of the files that it ships.
BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)


class Gemm(Part):
    """The two matrix products of a fused-MoE layer."""

    UP = "up"  # A (M, K) x B (E, 2N, K)
    DOWN = "down"  # A (M * top_k, N) x B (E, K, N), scaled by the router's weight

    def point_json(self, point: Point) -> dict[str, str | int]:
        return {"gemm": self.value, "batch_size": point.batch_size}


def gemm_of(point: Point) -> Gemm:
    """Return the gemm of a fused-MoE layer's point."""
    assert isinstance(point.part, Gemm), f"{point} is not a point of a fused-MoE layer"
    return point.part


@dataclass(frozen=True)
class FusedMoe:
    """A fused-MoE layer as one rank runs it.

    Raises BadProblem for values that no engine kernel accepts.
    """

    E: int  # experts on this rank, fused shared experts included
    N: int  # intermediate size on this rank: columns of gate (= of up)
    K: int  # hidden size
    top_k: int  # experts a token goes to, fused shared experts included
    dtype: Dtype
    block_shape: tuple[int, int] | None = None  # quantisation block (n, k); (0, g) = groups along k
    per_channel_quant: bool = False  # a scale per output channel (and per token)
    ep: int = 1  # ranks among which the routed experts are divided; each gets all tokens
    shared_experts: int = 0  # fused, the last of E and of top_k; they get each token

    family: ClassVar[str] = "fused_moe"
    parts: ClassVar[tuple[Gemm, ...]] = (Gemm.UP, Gemm.DOWN)

    def __post_init__(self) -> None:
        for name in ("E", "N", "K", "top_k", "ep"):
            if getattr(self, name) < 1:
                raise BadProblem(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.shared_experts < min(self.E, self.top_k):
            raise BadProblem(
                f"shared_experts={self.shared_experts} counts fused shared experts, which are "
                f"some of E={self.E} and of top_k={self.top_k}"
            )
        if self.routed_top_k > self.all_routed:
            raise BadProblem(
                f"top_k={self.top_k} is more than the E={self.E} experts"
                + (f" of ep={self.ep} ranks" if self.ep > 1 else "")
            )
        if self.block_shape is not None:
            _check_block_shape(self)
        if self.per_channel_quant and not self.dtype.value.endswith("w8a8"):
            raise BadProblem(
                f"per_channel_quant needs fp8_w8a8 or int8_w8a8, not {self.dtype.value}"
            )
        if self.dtype is Dtype.INT8_W8A8 and not (self.block_shape or self.per_channel_quant):
            raise BadProblem(
                "int8_w8a8 is quantised per channel or in blocks: add per_channel_quant"
            )
        if self.dtype is Dtype.INT4_W4A16 and self.block_shape is None:
            raise BadProblem(
                "int4_w4a16 weights have groups along K with a scale each: say how long they are, ",
                cli="--block-shape 0x128 for a model, block_shape=0x128 in a problem",
                api="block_shape=0x128",
            )

    @property
    def routed(self) -> int:
        """Return the number of routed experts of this rank."""
        return self.E - self.shared_experts

    @property
    def all_routed(self) -> int:
        """Return the number of routed experts of all ranks, among which the router chooses."""
        return self.routed * self.ep

    @property
    def routed_top_k(self) -> int:
        """Return how many routed experts a token goes to, on any rank."""
        return self.top_k - self.shared_experts

    @property
    def local_top_k(self) -> float:
        """Return how many experts of this rank a token goes to, on average."""
        return self.routed_top_k / self.ep + self.shared_experts

    @property
    def grouped(self) -> bool:
        """Say whether weights have quantisation groups along k, which need a different kernel."""
        return self.dtype in (Dtype.INT4_W4A16, Dtype.INT8_W8A16) and bool(self.block_shape)

    def gemm_shape(self, gemm: Gemm) -> tuple[int, int]:
        """Return (output columns, reduced length) of an expert's weight."""
        return (2 * self.N, self.K) if gemm is Gemm.UP else (self.K, self.N)

    def spec(self) -> str:
        """Return the canonical text of this problem; `parse_problem` reads it back."""
        parts = [f"E={self.E}", f"N={self.N}", f"K={self.K}", f"top_k={self.top_k}"]
        parts.append(f"dtype={self.dtype.value}")
        if self.block_shape:
            parts.append(f"block_shape={self.block_shape[0]}x{self.block_shape[1]}")
        if self.per_channel_quant:
            parts.append("per_channel_quant")
        parts += [f"ep={self.ep}"] if self.ep > 1 else []
        parts += [f"shared_experts={self.shared_experts}"] if self.shared_experts else []
        return f"{self.family}:{','.join(parts)}"


def _check_block_shape(problem: FusedMoe) -> None:
    assert problem.block_shape is not None
    n, k = problem.block_shape
    if n < 0 or k < 1:
        raise BadProblem(
            f"block_shape {n}x{k} is not a block: use 128x128, or 0x128 for groups along k"
        )
    grouped = problem.dtype in (Dtype.INT4_W4A16, Dtype.INT8_W8A16)
    if (n == 0) != grouped:
        want = f"0x{k}" if grouped else f"{n or k}x{k}"
        raise BadProblem(f"block_shape {n}x{k} does not go with {problem.dtype.value}: use {want}")
    if problem.dtype in (Dtype.BFLOAT16, Dtype.FLOAT16):
        raise BadProblem(f"{problem.dtype.value} weights have no quantisation block")
    if problem.N % (n or k):
        raise BadProblem(f"N={problem.N} is not a multiple of the quantisation block {n or k}")


def parse_fused_moe(text: str) -> FusedMoe:
    """Read `fused_moe:E=256,N=64,K=7168,top_k=8,dtype=int8_w8a8,per_channel_quant`.

    Raises BadProblem, which names the nearest field.
    """
    fields = read_fields(text, _FIELDS, required=5)
    return FusedMoe(
        **{name: parse_whole(name, fields[name]) for name in ("E", "N", "K", "top_k")},
        dtype=parse_dtype(fields["dtype"]),
        block_shape=parse_block_shape(fields["block_shape"]) if "block_shape" in fields else None,
        per_channel_quant=parse_flag("per_channel_quant", fields.get("per_channel_quant", "false")),
        ep=parse_whole("ep", fields.get("ep", "1")),
        shared_experts=parse_whole("shared_experts", fields.get("shared_experts", "0")),
    )


def sorted_slots(valid_slots: int, experts: int, block_m: int) -> int:
    """Return the slots that the engine allocates when it sorts by expert, padded to whole blocks.

    Source: `moe_align_block_size` of sglang 0.5.12 and later. Earlier versions allocate more slots,
    all of them empty, if there are fewer valid slots than experts.
    """
    return valid_slots + min(valid_slots, experts + 1) * (block_m - 1)


def padded_slots(valid_slots: int, experts: int, block_m: int) -> int:
    """Return EM: `sorted_slots`, rounded up to 16; the engine's own sum is not rounded."""
    return -(-sorted_slots(valid_slots, experts, block_m) // 16) * 16


def swaps_ab(config: Config, dtype: Dtype, target: Target) -> bool:
    """Say whether the kernel swaps A and B, by the rule of sglang's `should_enable_swap_ab` and of
    vLLM's: fp8 on sm_90 alone.
    """
    small = config["BLOCK_SIZE_M"] < 64 <= config["BLOCK_SIZE_N"]
    return dtype is Dtype.FP8_W8A8 and target.is_sm(90) and small
