"""List the linear layers that one rank runs, and find the numbers of ranks that divide them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tuner.errors import BadProblem, IndivisibleShape
from tuner.models.linears import FUSED_QKV_A, Columns, Group, Linear, LinearShape, Split, why_unread
from tuner.models.model import Model
from tuner.models.quantization import Quantization
from tuner.problems.dtypes import Dtype

_QKV_A = ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa")
_NEAREST_UP_TO = 1024  # the largest tp that is proposed


@dataclass(frozen=True)
class Ranks:
    """The number of ranks that share each group of layers.

    The expert-parallel size is not here, because it divides routed experts alone. But with
    --moe-a2a-backend, sglang gives each rank the whole shared experts: `shared_tp` is then 1.
    """

    tp: int = 1  # --tp-size
    dp: int = 1  # --dp-size with --enable-dp-attention; else 1
    dense_tp: int | None = None  # --moe-dense-tp-size; None: tp
    shared_tp: int | None = None  # None: tp
    fuse_shared: bool = False  # shared experts are experts of the fused-MoE kernel: no GEMM
    fuse_qkv_a: bool = True  # False: an old engine; see FUSED_QKV_A

    def of(self, group: Group) -> int:
        """Return how many ranks share a layer of that group."""
        if group is Group.ATTENTION:
            return self.tp // self.dp
        return (self.dense_tp if group is Group.DENSE else self.shared_tp) or self.tp


@dataclass(frozen=True)
class RankLinear:
    """One rank's share of a linear layer: C (M, N) = A (M, K) x B (N, K) transposed."""

    name: str
    N: int
    K: int
    dtype: Dtype | None  # fp8_w8a8 or int8_w8a8; None: no Triton GEMM reads it, see `why`
    block: tuple[int, int] | None  # quantisation block (n, k); None: a scale for each channel
    count: int  # how many layers of the model have it; 0: unknown
    why: str = ""  # why no Triton GEMM reads it, e.g. "stored as mxfp4"


def linear_layers(
    model: Model, ranks: Ranks, *, scheme: Quantization | None = None
) -> list[RankLinear]:
    """Return the linear layers of one rank, in the order of a forward pass.

    `scheme` replaces the checkpoint's quantisation, as --quantization of a server does. Layers of
    one shape are listed apart, because each has a name. Raises IndivisibleShape, which names the
    nearest tp that works, and BadProblem if the linear layers are not known.
    """
    shape = known_linears(model)
    if ranks.tp < 1 or ranks.dp < 1:
        raise BadProblem(f"parallel sizes start at 1, not tp={ranks.tp}, dp={ranks.dp}")
    if ranks.tp % ranks.dp:
        near = min(
            (n for n in range(1, ranks.tp + 1) if ranks.tp % n == 0),
            key=lambda n: (abs(n - ranks.dp), n),
        )
        raise IndivisibleShape(
            f"dp={ranks.dp} does not divide tp={ranks.tp}; the nearest that does is dp={near}"
        )
    if ranks.dp > 1 and not shape.data_parallel:
        raise BadProblem(f"sglang has no data-parallel attention for {model.architecture}")
    layers = [
        replace(layer, scheme=scheme) if scheme else layer for layer in _run_apart(shape, ranks)
    ]
    if refusal := next((why for layer in layers if (why := refuses(layer, ranks))), None):
        raise IndivisibleShape(f"{model.name}: {refusal}{_advice(layers, ranks)}")
    return [_of_rank(layer, ranks) for layer in layers]


def known_linears(model: Model) -> LinearShape:
    """Return the model's linear layers.

    Raises MalformedCheckpoint or BadProblem if they are not known.
    """
    if model.linears is None:
        model.refuse_unread("linears")
        raise BadProblem(
            f"the linear layers of {model.name} ({model.architecture}) are not known: give the "
            "problem itself, block_gemm:N=.. or channel_gemm:N=.."
        )
    return model.linears


def refuses(layer: Linear, ranks: Ranks) -> str:
    """Say why the engine cannot divide a layer; "" if it can.

    The checks of blocks are from sglang's srt/layers/quantization/fp8.py
    (Fp8LinearMethod.validate_block_quant_shapes) and blockwise_int8.py
    (BlockInt8LinearMethod.create_weights). Until 0.5.16 they compare with the whole tp, and so
    accept data-parallel attention whose scales cannot be divided; such a shape is refused here.
    """
    n = ranks.of(layer.group)
    if layer.split is Split.NONE:
        return ""
    block_n, block_k = layer.scheme.block_shape or (1, 1)
    if why_unread(layer.scheme):
        block_n = block_k = 1  # another kernel's rules apply
    where = f"tp={ranks.tp}" + (f", dp={ranks.dp}" if ranks.dp > 1 else "")
    if layer.split is Split.ROW:
        if layer.K % n:
            return f"{where} does not divide K={layer.K} of {layer.name}"
        if n > 1 and layer.K // n % block_k:
            return f"{where} leaves K={layer.K // n} of {layer.name}, {_undivided(block_k)}"
        return ""
    for one in layer.columns:
        ways = _ways(one, n)
        if ways == 0 or one.size % ways:
            return f"{where} does not divide {_named(one)} of {layer.name}"
        checked = layer.checks_columns and (n > 1 or len(layer.columns) > 1)
        if checked and one.size // ways % block_n:
            return f"{where} leaves {one.size // ways} columns of {layer.name}, " + _undivided(
                block_n
            )
    return ""


def _undivided(block: int) -> str:
    return f"which the quantisation block of {block} does not divide"


def _named(one: Columns) -> str:
    return f"the {one.heads} key heads" if one.heads else f"{one.size} columns"


def _ways(one: Columns, n: int) -> int:
    """Return by how much `n` ranks divide the columns; 0: they cannot (QKVParallelLinear)."""
    if not one.heads:
        return n
    if n >= one.heads:
        return one.heads if n % one.heads == 0 else 0
    return n if one.heads % n == 0 else 0


def _of_rank(layer: Linear, ranks: Ranks) -> RankLinear:
    n = ranks.of(layer.group)
    N, K, scheme = sum(one.size for one in layer.columns), layer.K, layer.scheme
    if layer.split is Split.COLUMN:
        N = sum(one.size // _ways(one, n) for one in layer.columns)
    if layer.split is Split.ROW:
        K //= n
    why = why_unread(scheme)
    dtype, block = (None, None) if why else (scheme.dtype, scheme.block_shape)
    return RankLinear(layer.name, N, K, dtype, block, layer.count, why)


def _run_apart(shape: LinearShape, ranks: Ranks) -> Iterator[Linear]:
    """Yield the layers that are separate GEMMs with these ranks and this engine."""
    for layer in shape.layers:
        if layer.group is Group.SHARED and ranks.fuse_shared:
            continue
        if layer.name != FUSED_QKV_A or ranks.fuse_qkv_a:
            yield layer
            continue
        for name, one in zip(_QKV_A, layer.columns, strict=True):
            yield replace(layer, name=name, columns=(one,))


def _advice(layers: list[Linear], ranks: Ranks) -> str:
    """Name the nearest tp that works with the other settings."""
    sizes = range(ranks.dp, _NEAREST_UP_TO + 1, ranks.dp)
    works = [tp for tp in sizes if not any(refuses(one, replace(ranks, tp=tp)) for one in layers)]
    if not works:
        return "; no tp works with this block"
    return f"; the nearest that works is tp={min(works, key=lambda tp: (abs(tp - ranks.tp), tp))}"
