"""Read the gated delta nets of a config.json (Qwen3-Next, Qwen3.5) as sglang does.

Source: the model classes of qwen3_next.py and qwen3_5.py of 0.5.12 to 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from tuner.errors import BadProblem, IndivisibleShape, LacksLayers, MalformedCheckpoint
from tuner.models.attention_json import attention_shape
from tuner.models.fields import Json, architecture_of, language_fields, torch_dtype
from tuner.models.layer_counts import layer_total
from tuner.models.linear_parts import LinearAttention
from tuner.models.linears_json import delta_net, delta_places
from tuner.problems.dtypes import Dtype


@dataclass(frozen=True)
class DeltaShape:
    """A model's gated delta nets, before they are divided over ranks."""

    name: str
    architecture: str
    heads: LinearAttention
    dtype: Dtype  # of activations
    layers: int
    mamba_ssm_dtype: str | None = None  # of states, as config.json says it

    def divided(self, tp: int) -> tuple[int, int]:
        """Return the key and value heads of a rank.

        Raises IndivisibleShape, which names the nearest size that works, or BadProblem.
        """
        if tp < 1:
            raise BadProblem(f"tensor-parallel sizes start at 1, not tp={tp}")
        keys, values = self.heads.key_heads, self.heads.value_heads
        sizes = [n for n in range(1, keys + 1) if keys % n == values % n == 0]
        if tp in sizes:
            return keys // tp, values // tp
        near = min(sizes, key=lambda n: (abs(n - tp), n))
        raise IndivisibleShape(
            f"{self.name}: tp={tp} does not divide {keys} key heads and {values} value heads; the "
            f"nearest that works is tp={near}"
        )


# How the names of classes begin that may have such layers, in sglang 0.5.23 and vLLM 0.33.0.
_CLASSES = ("Qwen3Next", "Qwen3_5", "OlmoHybrid")


def refuse_delta(name: str, architecture: str, *, preset: bool) -> NoReturn:
    """Refuse a model in which no gated delta nets are known.

    Raises LacksLayers, or MalformedCheckpoint for a class that may have such layers.
    """
    error = MalformedCheckpoint if architecture.startswith(_CLASSES) else LacksLayers
    by_hand = "give the folder of its config.json, or" if preset else "name"
    raise error(
        f"no gated delta nets are known of {name}: {by_hand} the problem itself, "
        "gated_delta:key_heads=.."
    )


def delta_shape(config: Json, name: str) -> DeltaShape:
    """Return the gated delta nets of a config.json. Raises as `refuse_delta` does without such
    layers.
    """
    architecture, fields = architecture_of(config), language_fields(config)
    heads = delta_net(fields)
    if heads is None:
        refuse_delta(name, architecture, preset=False)
    whole = layer_total(fields), attention_shape(config)
    places = delta_places(fields, *whole)
    state = fields.get("mamba_ssm_dtype")
    return DeltaShape(
        name=name,
        architecture=architecture,
        heads=heads,
        dtype=Dtype.FLOAT16 if torch_dtype(fields) == "float16" else Dtype.BFLOAT16,
        layers=len(places),
        mamba_ssm_dtype=state if isinstance(state, str) else None,
    )
