"""Count a model's attention layers with and without a window, from its config.json.

Layers of other kinds (Mamba, linear attention, convolutions) are not counted.
"""

from __future__ import annotations

from tuner.models.fields import Json, size

LAYERS = ("num_hidden_layers", "n_layers", "num_layers")
_FULL = ("full_attention", "attention")
_SLIDING = "sliding_attention"


def count_layers(fields: Json, full_every: int) -> tuple[int, int]:
    """(layers without a window, layers with a window); (0, 0) where unknown.

    Where no field names the kinds, one layer in `full_every` has no window. Raises
    MalformedCheckpoint.
    """
    types = fields.get("layer_types") or fields.get("layers_block_type")
    if isinstance(types, list):
        return sum(types.count(kind) for kind in _FULL), types.count(_SLIDING)
    pattern = fields.get("hybrid_layer_pattern")  # MiMo V2: 1 for a layer with a window
    if isinstance(pattern, list):
        return pattern.count(0), pattern.count(1)
    pattern = fields.get("hybrid_override_pattern")  # Nemotron H: * for attention
    if isinstance(pattern, str):
        return pattern.count("*"), 0
    listed = fields.get("full_attn_idxs")  # LFM2
    if isinstance(listed, list):
        return len(listed), 0
    layers = size(fields, LAYERS) or 0
    if period := size(fields, ("attn_layer_period",)):  # Jamba
        return len(range(size(fields, ("attn_layer_offset",)) or 0, layers, period)), 0
    if interval := size(fields, ("full_attention_interval",)):  # Qwen3-Next
        return layers // interval, 0
    every = size(fields, ("sliding_window_pattern",)) or full_every
    full = layers // every if full_every > 1 else layers
    return full, layers - full
