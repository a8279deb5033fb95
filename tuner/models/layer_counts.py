"""Find a model's attention layers with and without a window, from its config.json.

Layers of other kinds (Mamba, linear attention, convolutions) are not among them.
"""

from __future__ import annotations

from collections.abc import Mapping

from tuner.errors import MalformedCheckpoint
from tuner.models.fields import Json, count, size

LAYERS = ("num_hidden_layers", "n_layers", "num_layers")
PATTERN = "hybrid_override_pattern"  # Nemotron H: a letter for each layer
# Llama 4 has chunks, which the engines' Triton kernels do not know.
_FULL = ("full_attention", "attention", "chunked_attention", "deepseek_sparse_attention")
_SLIDING = "sliding_attention"
_MAX_LAYERS = 10_000

Places = list[int]  # the numbers of layers, from 0


def count_layers(fields: Json, full_every: int) -> tuple[int, int]:
    """Return (layers without a window, layers with a window); (0, 0) if unknown.

    If no field names the kinds, one layer in `full_every` has no window. Raises
    MalformedCheckpoint.
    """
    full, sliding = place_layers(fields, full_every)
    return len(full), len(sliding)


def place_layers(fields: Json, full_every: int) -> tuple[Places, Places]:
    """Return the layers without a window, and the layers with a window; see `count_layers`."""
    types = fields.get("layer_types") or fields.get("layers_block_type")
    if isinstance(types, list):
        return _at(types, _FULL), _at(types, (_SLIDING,))
    pattern = fields.get("hybrid_layer_pattern")  # MiMo V2: 1 for a layer with a window
    if isinstance(pattern, list):
        return _at(pattern, (0,)), _at(pattern, (1,))
    pattern = fields.get(PATTERN)
    if isinstance(pattern, str):
        return _at(pattern, ("*",)), []
    if (listed := _listed(fields)) is not None:
        return listed, []
    layers = layer_total(fields)
    if period := size(fields, ("attn_layer_period",)):  # Jamba
        return list(range(count(fields, ("attn_layer_offset",)) or 0, layers, period)), []
    # Qwen3-Next, and Ling 2.5 (bailing_moe_linear.py)
    if interval := size(fields, ("full_attention_interval", "layer_group_size")):
        return list(range(interval - 1, layers, interval)), []
    every = _full_every(fields, full_every)
    if every == 1:
        return list(range(layers)), []
    full = list(range(every - 1, layers, every))
    return full, [at for at in range(layers) if (at + 1) % every]


def _full_every(fields: Json, usual: int) -> int:
    """Return the distance between layers without a window; `usual` if no field says it."""
    pattern = fields.get("sliding_window_pattern")
    if isinstance(pattern, str):  # EXAONE 4: "LLLG"
        return len(pattern) or 1
    period = count(fields, ("sliding_window_pattern",))
    return usual if period is None else period or 1  # 0: EXAONE 4 without a window


def own_attention(fields: Json) -> dict[int, Json]:
    """Return the settings of attention that layers have of their own, by a layer's number (DeciLM).

    Layers without attention are not among them. The answer is empty for other models.
    """
    blocks = fields.get("block_configs")
    listed = enumerate(blocks) if isinstance(blocks, list) else ()
    found = {at: block.get("attention") for at, block in listed if isinstance(block, Mapping)}
    return {at: x for at, x in found.items() if isinstance(x, Mapping) and not x.get("no_op")}


def _listed(fields: Json) -> Places | None:
    """Return the attention layers among layers of linear attention, if a field lists them."""
    if own := own_attention(fields):
        return [*own]
    kinds = fields.get("attn_type_list")  # MiniMax-M1: 0 for lightning attention
    if isinstance(kinds, list):
        return _at(kinds, (1,))
    listed = fields.get("full_attn_idxs")  # LFM2
    if isinstance(listed, list):
        return [at for at in listed if isinstance(at, int)]
    linear = fields.get("linear_attn_config")  # Kimi Linear, which numbers layers from 1
    listed = linear.get("full_attn_layers") if isinstance(linear, Mapping) else None
    if isinstance(listed, list):
        return [at - 1 for at in listed if isinstance(at, int) and at > 0]
    kinds = fields.get("layer_group_size")  # Ling (bailing_moe_v3.py): 1 for linear attention
    if isinstance(kinds, list):
        return [at for at, kind in enumerate(kinds) if kind != 1]
    return None


def layer_total(fields: Json) -> int:
    """Return the number of the model's layers, of all kinds; 0: unknown.

    Raises MalformedCheckpoint.
    """
    layers = size(fields, LAYERS) or 0
    if layers > _MAX_LAYERS:
        raise MalformedCheckpoint(f"{layers} layers are more than the {_MAX_LAYERS} read here")
    return layers


def _at(kinds: list[object] | str, wanted: tuple[object, ...]) -> Places:
    return [at for at, kind in enumerate(kinds) if kind in wanted]
