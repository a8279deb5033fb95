"""A model's config.json -> its gated delta nets (Qwen3-Next, Qwen3.5), as sglang's model classes
read it (qwen3_next.py and qwen3_5.py of 0.5.12 to 0.5.23).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from tuner.errors import BadProblem, IndivisibleShape, LacksLayers, MalformedCheckpoint
from tuner.models.attention_json import attention_shape
from tuner.models.fields import Json, architecture_of, language_fields, parse, size, torch_dtype
from tuner.models.folder import read_with
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
    by_column: bool = False  # a gate for each column of a head: Kimi delta attention

    def divided(self, tp: int) -> tuple[int, int]:
        """The key and value heads of a rank.

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


@dataclass(frozen=True)
class _Kind:
    """What messages call such layers and their problem, and how the names of classes begin that
    may have them, in the models of sglang 0.5.23 and vLLM 0.33.0.
    """

    layers: str
    problem: str
    classes: tuple[str, ...]


_GATED = _Kind(
    "gated delta nets", "gated_delta:key_heads=..", ("Qwen3Next", "Qwen3_5", "OlmoHybrid")
)
_KIMI = _Kind(
    "layers of Kimi delta attention",
    "kda:heads=..",
    ("KimiLinear", "KimiK3", "Glm5Next", "BailingMoeV3"),
)


def read_delta(path: Path, *, by_column: bool) -> DeltaShape:
    """Read the config.json at `path`, or in the folder `path`; see `parse_delta_json`."""
    return read_with(path, partial(parse_delta_json, by_column=by_column))


def refuse_delta(name: str, architecture: str, *, by_column: bool, preset: bool) -> NoReturn:
    """Refuse a model in which no such layers are known.

    Raises LacksLayers, or MalformedCheckpoint for a class that may have such layers.
    """
    kind = _KIMI if by_column else _GATED
    error = MalformedCheckpoint if architecture.startswith(kind.classes) else LacksLayers
    by_hand = "give the folder of its config.json, or" if preset else "name"
    raise error(
        f"no {kind.layers} are known of {name}: {by_hand} the problem itself, {kind.problem}"
    )


def parse_delta_json(data: bytes, name: str, *, by_column: bool) -> DeltaShape:
    """Read the layers of Kimi delta attention (`by_column`) or the gated delta nets of a
    config.json's bytes. Raises MalformedCheckpoint, and LacksLayers; see `refuse_delta`.
    """
    config = parse(data)
    architecture, fields = architecture_of(config), language_fields(config)
    kimi = _kimi_delta(fields) if by_column else None
    heads = kimi[0] if kimi else None if by_column else delta_net(fields)
    if heads is None:
        refuse_delta(name, architecture, by_column=by_column, preset=False)
    whole = layer_total(fields), attention_shape(config)
    places = kimi[1] if kimi else delta_places(fields, *whole)
    state = fields.get("mamba_ssm_dtype")
    return DeltaShape(
        name=name,
        architecture=architecture,
        heads=heads,
        dtype=Dtype.FLOAT16 if torch_dtype(fields) == "float16" else Dtype.BFLOAT16,
        layers=len(places),
        mamba_ssm_dtype=state if isinstance(state, str) else None,
        by_column=by_column,
    )


def _kimi_delta(fields: Json) -> tuple[LinearAttention, Sequence[int]] | None:
    """The heads and places of Kimi delta attention; None without such layers.

    Raises MalformedCheckpoint, also for gates with a lower bound (Kimi-K3): other kernels run them.
    """
    found = fields.get("linear_attn_config")
    if not isinstance(found, dict) or not (places := found.get("kda_layers")):
        return None
    if found.get("gate_lower_bound") is not None:
        raise MalformedCheckpoint("KDA with a lower bound of its gates is not known here")
    heads, width = size(found, ("num_heads",)), size(found, ("head_dim",))
    if not heads or not width:
        raise MalformedCheckpoint("its linear_attn_config lacks num_heads or head_dim")
    return LinearAttention(heads, heads, width, width), places
