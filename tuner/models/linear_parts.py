"""List linear layers from a checkpoint's sizes, as sglang's model classes make them.

Each function names the file and class of sglang's srt/models whose layers it lists; 0.4.4 to 0.5.23
agree unless a comment says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tuner.models.attention import AttentionShape, Layers
from tuner.models.linears import FUSED_QKV_A, Columns, Group, Linear, LinearShape, Split
from tuner.models.quantization import Quantization, unquantised
from tuner.problems.dtypes import Dtype

Skips = Callable[[str, int], bool]  # (layer's name, number of its layer) -> not quantised


@dataclass(frozen=True)
class Style:
    """The differences between classes of models."""

    mlp: str = "mlp"
    shared: str = "mlp.shared_experts"
    data_parallel: bool = True  # its attention reads attn_tp_size
    gated: bool = False  # query columns come with as many of an output gate
    checks_qkv: bool = True  # False: skip_block_quant_check


_NO_DP = Style(data_parallel=False)
_GATED = Style(shared="mlp.shared_expert", gated=True)
# Classes whose layers these functions know. Attention's file says whether it runs data-parallel.
STYLES: dict[str, Style] = {
    **dict.fromkeys(  # deepseek_v2.py; kimi_k25.py, kimi_vl.py and glm4_moe.py derive from it
        (
            *("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"),
            *("KimiK25ForConditionalGeneration", "KimiVLForConditionalGeneration"),
            *("GlmMoeDsaForCausalLM", "Glm4MoeLiteForCausalLM"),
        ),
        Style(),
    ),
    **dict.fromkeys(  # llama.py, qwen2.py, glm4.py, gemma2.py, gemma3_causal.py, granite.py
        (
            *("LlamaForCausalLM", "MistralForCausalLM", "Mistral3ForConditionalGeneration"),
            *("InternLM3ForCausalLM", "Phi3ForCausalLM"),
            *("Qwen2ForCausalLM", "Qwen2_5_VLForConditionalGeneration", "MiMoForCausalLM"),
            *("Glm4ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"),
            *("Gemma3ForConditionalGeneration", "GraniteForCausalLM", "MixtralForCausalLM"),
        ),
        _NO_DP,
    ),
    **dict.fromkeys(  # qwen3.py, qwen3_moe.py, glm4_moe.py, minimax_m2.py, phimoe.py
        (
            *("Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration"),
            *("Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration"),
            *("Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM", "PhiMoEForCausalLM"),
        ),
        Style(),
    ),
    "Qwen2MoeForCausalLM": Style(shared="mlp.shared_expert"),  # qwen2_moe.py
    **dict.fromkeys(("MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM"), Style(checks_qkv=False)),
    **dict.fromkeys(  # llama4.py, Llama4MoE and Llama4DecoderLayer
        ("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
        Style(mlp="feed_forward", shared="feed_forward.shared_expert"),
    ),
    **dict.fromkeys(  # qwen3_next.py and qwen3_5.py
        (
            *("Qwen3NextForCausalLM", "Qwen3_5ForConditionalGeneration"),
            "Qwen3_5MoeForConditionalGeneration",
        ),
        _GATED,
    ),
}


@dataclass(frozen=True)
class LinearAttention:
    """The heads of a gated delta net (Qwen3-Next, Qwen3.5)."""

    key_heads: int
    value_heads: int
    key_dim: int  # columns of a head
    value_dim: int


@dataclass(frozen=True)
class LinearSizes:
    """The sizes of a checkpoint's linear layers. `at` fields hold numbers of layers, from 0."""

    hidden: int
    attention: AttentionShape
    attention_at: tuple[Sequence[int], ...]  # for each of attention.layers; empty: unknown
    q_lora_rank: int = 0
    index_heads: int = 0  # of the indexer of sparse attention
    index_head_dim: int = 0
    index_wk_quantised: bool = True
    delta: LinearAttention | None = None
    delta_at: Sequence[int] = ()
    intermediate: int = 0  # columns of the gate of an MLP without experts
    dense_at: Sequence[int] = ()
    shared_intermediate: int = 0  # columns of all shared experts together
    shared_at: Sequence[int] = ()


def linear_shape(
    sizes: LinearSizes, style: Style, scheme: Quantization, skips: Skips, *, source: str = ""
) -> LinearShape:
    """Return the linear layers of a model whose weights have that scheme, except where `skips` says
    no.
    """
    out = sizes.attention.dtype
    plain = unquantised(out.value)
    layers: dict[Linear, int] = {}
    for layer, places in _parts(sizes, style, scheme):
        skipped = sum(skips(layer.name, at) for at in places)
        # Layers whose numbers are unknown are judged as layer 0 is.
        if not places:
            layers[replace(layer, scheme=plain if skips(layer.name, 0) else scheme)] = 0
        for kind, count in (
            (layer, len(places) - skipped),
            (replace(layer, scheme=plain), skipped),
        ):
            if count:
                layers[kind] = layers.get(kind, 0) + count
    counted = tuple(replace(layer, count=count) for layer, count in layers.items())
    return LinearShape(
        counted, out if out is Dtype.FLOAT16 else Dtype.BFLOAT16, style.data_parallel, source
    )


def _parts(
    sizes: LinearSizes, style: Style, scheme: Quantization
) -> Iterator[tuple[Linear, Sequence[int]]]:
    """Yield each kind of layer, and the numbers of the model's layers that have it."""
    for kind, places in zip(sizes.attention.layers, sizes.attention_at, strict=True):
        made = (
            _latent(sizes, kind, scheme)
            if sizes.attention.kv_lora_rank
            else _plain(sizes, kind, style, scheme)
        )
        yield from ((layer, places) for layer in made)
    if sizes.delta:
        made = _delta_net(sizes, sizes.delta, scheme)
        yield from ((layer, sizes.delta_at) for layer in made)
    if sizes.dense_at:
        made = _mlp(style.mlp, Group.DENSE, sizes.hidden, sizes.intermediate, scheme)
        yield from ((layer, sizes.dense_at) for layer in made)
    if sizes.shared_intermediate:
        made = _mlp(style.shared, Group.SHARED, sizes.hidden, sizes.shared_intermediate, scheme)
        yield from ((layer, sizes.shared_at) for layer in made)


def _latent(sizes: LinearSizes, kind: Layers, scheme: Quantization) -> Iterator[Linear]:
    """Yield the layers of latent attention.

    Source: deepseek_v2.py, DeepseekV2AttentionMLA; layers/attention/dsa/dsa_indexer.py, Indexer.
    kv_b runs in prefill alone; decode has its weights multiplied into others (w_kc and w_vc).
    """
    shape, rank, heads = sizes.attention, sizes.q_lora_rank, kind.q_heads
    rope = shape.qk_rope_head_dim
    latent = Columns(shape.kv_lora_rank + rope)
    if rank:
        first = (Columns(rank), latent)
        yield _linear(FUSED_QKV_A, first, sizes.hidden, Split.NONE, scheme)
        query = (Columns(heads * kind.head_dim),)
        yield _linear("self_attn.q_b_proj", query, rank, Split.COLUMN, scheme)
    else:
        query = (Columns(heads * kind.head_dim),)
        yield _linear("self_attn.q_proj", query, sizes.hidden, Split.COLUMN, scheme)
        name = "self_attn.kv_a_proj_with_mqa"
        yield _linear(name, (latent,), sizes.hidden, Split.NONE, scheme)
    if sizes.index_heads:
        index = (Columns(sizes.index_heads * sizes.index_head_dim),)
        yield _linear("self_attn.indexer.wq_b", index, rank, Split.NONE, scheme)
        if sizes.index_wk_quantised:
            key = (Columns(sizes.index_head_dim),)
            yield _linear("self_attn.indexer.wk", key, sizes.hidden, Split.NONE, scheme)
    both = (Columns(heads * (kind.head_dim - rope + kind.v_head_dim)),)
    yield _linear("self_attn.kv_b_proj", both, shape.kv_lora_rank, Split.COLUMN, scheme)
    yield _output("self_attn.o_proj", heads * kind.v_head_dim, sizes.hidden, scheme)


def _plain(
    sizes: LinearSizes, kind: Layers, style: Style, scheme: Quantization
) -> Iterator[Linear]:
    """Yield the layers of llama.py, LlamaAttention; qwen3.py, Qwen3Attention; and most others."""
    columns = (
        Columns(kind.q_heads * kind.head_dim * (2 if style.gated else 1)),
        Columns(kind.kv_heads * kind.head_dim, heads=kind.kv_heads),
        Columns(kind.kv_heads * kind.v_head_dim, heads=kind.kv_heads),
    )
    qkv = _linear("self_attn.qkv_proj", columns, sizes.hidden, Split.COLUMN, scheme)
    yield replace(qkv, checks_columns=style.checks_qkv)
    yield _output("self_attn.o_proj", kind.q_heads * kind.v_head_dim, sizes.hidden, scheme)


def _delta_net(sizes: LinearSizes, net: LinearAttention, scheme: Quantization) -> Iterator[Linear]:
    """Yield the layers of qwen3_next.py, Qwen3GatedDeltaNet; qwen3_5.py, Qwen3_5GatedDeltaNet.

    conv1d is no GEMM.
    """
    key, value = Columns(net.key_heads * net.key_dim), Columns(net.value_heads * net.value_dim)
    inputs = (key, key, value, value)
    yield _linear("linear_attn.in_proj_qkvz", inputs, sizes.hidden, Split.COLUMN, scheme)
    gates = (Columns(net.value_heads), Columns(net.value_heads))
    yield _linear("linear_attn.in_proj_ba", gates, sizes.hidden, Split.COLUMN, scheme)
    yield _output("linear_attn.out_proj", value.size, sizes.hidden, scheme)


def _mlp(
    name: str, group: Group, hidden: int, intermediate: int, scheme: Quantization
) -> Iterator[Linear]:
    """Yield the layers of deepseek_v2.py, DeepseekV2MLP; llama.py, LlamaMLP; qwen2.py, Qwen2MLP."""
    both = (Columns(intermediate), Columns(intermediate))
    yield Linear(f"{name}.gate_up_proj", both, hidden, Split.COLUMN, group, scheme)
    yield Linear(f"{name}.down_proj", (Columns(hidden),), intermediate, Split.ROW, group, scheme)


def _linear(
    name: str, columns: tuple[Columns, ...], K: int, split: Split, scheme: Quantization
) -> Linear:
    return Linear(name, columns, K, split, Group.ATTENTION, scheme)


def _output(name: str, K: int, hidden: int, scheme: Quantization) -> Linear:
    return _linear(name, (Columns(hidden),), K, Split.ROW, scheme)
