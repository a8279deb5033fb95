"""Read the Mamba-2 layers of a config.json as vLLM's model classes do (0.24.0 and 0.33.0).

Mamba-1 layers (Jamba) and gated delta nets (Qwen3-Next) are other kernels, and not read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from tuner.errors import BadProblem, IndivisibleShape, LacksLayers, MalformedCheckpoint
from tuner.models.fields import (
    Json,
    architecture_of,
    language_fields,
    size,
    torch_dtype,
)
from tuner.models.layer_counts import PATTERN
from tuner.problems.dtypes import Dtype


@dataclass(frozen=True)
class MambaShape:
    """A model's Mamba-2 layers, before they are divided over ranks."""

    name: str
    architecture: str
    heads: int
    head_dim: int
    state_size: int
    groups: int
    layers: int  # how many there are; 0: unknown
    dtype: Dtype = Dtype.BFLOAT16  # of activations
    cache_dtype: str | None = None  # of states, if config.json names it
    chunk_size: int = 256  # tokens, of a prompt's scan
    # Of states, as sglang's own field of config.json says it.
    sglang_state_dtype: str | None = None

    def heads_of_rank(self, tp: int) -> int:
        """Return the heads of a rank.

        Groups are divided too, or the only group is copied to each rank. Raises IndivisibleShape,
        which names the nearest size that works, or BadProblem.
        """
        if tp < 1:
            raise BadProblem(f"tensor-parallel sizes start at 1, not tp={tp}")
        if self._divides(tp):
            return self.heads // tp
        sizes = [n for n in range(1, self.heads + 1) if self._divides(n)]
        near = min(sizes, key=lambda n: (abs(n - tp), n))
        raise IndivisibleShape(
            f"{self.name}: tp={tp} does not divide {self.heads} Mamba heads in {self.groups} "
            f"groups; the nearest that works is tp={near}"
        )

    def _divides(self, tp: int) -> bool:
        return self.heads % tp == 0 and (self.groups % tp == 0 or self.groups == 1)


@dataclass(frozen=True)
class _Names:
    """The names of a class's fields for the sizes of its Mamba-2 layers."""

    heads: str
    head_dim: str
    state_size: str
    groups: str


_NEMOTRON = _Names("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups")
_GRANITE = _Names("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups")
_NAMES = {
    "NemotronHForCausalLM": _NEMOTRON,
    "NemotronHPuzzleForCausalLM": _NEMOTRON,
    "NemotronH_Nano_VL_V2": _NEMOTRON,
    "GraniteMoeHybridForCausalLM": _GRANITE,
    "FalconH1ForCausalLM": _GRANITE,
    "Zamba2ForCausalLM": _Names("n_mamba_heads", "mamba_headdim", "mamba_d_state", "mamba_ngroups"),
    "Mamba2ForCausalLM": _Names("num_heads", "head_dim", "state_size", "n_groups"),
}
_LISTS = ("layer_types", "layers_block_type")  # a word for each layer


def refuse_preset(name: str, architecture: str) -> NoReturn:
    """Refuse a preset without Mamba-2 layers. Raises LacksLayers for a class that has none."""
    kind = MalformedCheckpoint if architecture in _NAMES else LacksLayers
    raise kind(
        f"no Mamba-2 layers are known of {name}: give the folder of its config.json, or the "
        "problem itself, chunk_scan:heads=.."
    )


def mamba_shape(config: Json, name: str) -> MambaShape:
    """Return the Mamba-2 layers of a config.json.

    Raises MalformedCheckpoint, also without such layers.
    """
    architecture, fields = architecture_of(config), language_fields(config)
    names = _NAMES.get(architecture)
    layers = _count(fields)
    if names is None or layers == 0:
        by_hand = ": name the problem itself, chunk_scan:heads=.."
        if "linear_num_value_heads" in fields:  # of gated delta nets, which are other kernels
            by_hand = ""
        raise LacksLayers(f"{architecture} has no Mamba-2 layers that are known here{by_hand}")
    heads = _required(fields, names.heads)
    cache = _text(fields, "mamba_ssm_cache_dtype")
    return MambaShape(
        name=name,
        architecture=architecture,
        heads=heads,
        head_dim=_head_dim(fields, names, heads),
        state_size=_required(fields, names.state_size),
        groups=_required(fields, names.groups),
        dtype=Dtype.FLOAT16 if torch_dtype(fields) == "float16" else Dtype.BFLOAT16,
        cache_dtype=cache if cache != "auto" else None,
        layers=layers or 0,
        chunk_size=size(fields, ("mamba_chunk_size", "chunk_size")) or 256,
        sglang_state_dtype=_text(fields, "mamba_ssm_dtype"),
    )


def _head_dim(fields: Json, names: _Names, heads: int) -> int:
    """Read the field; if it is missing or "auto", divide the expanded width by the heads."""
    if fields.get(names.head_dim) not in (None, "auto"):
        return _required(fields, names.head_dim)
    width = (size(fields, ("mamba_expand", "expand")) or 2) * _required(fields, "hidden_size")
    if width % heads:
        raise MalformedCheckpoint(f"{heads} Mamba heads do not divide their width {width}")
    return width // heads


def _count(fields: Mapping[str, object]) -> int | None:
    """Return how many layers are Mamba-2 layers; None if nothing says it."""
    for name in _LISTS:
        listed = fields.get(name)
        if isinstance(listed, list):
            return sum(kind in ("mamba", "hybrid") for kind in listed)
    pattern = fields.get(PATTERN)  # M is a Mamba-2 layer
    return pattern.count("M") if isinstance(pattern, str) else None


def _text(fields: Json, name: str) -> str | None:
    found = fields.get(name)
    return found if isinstance(found, str) else None


def _required(fields: Json, name: str) -> int:
    found = size(fields, (name,))
    if found is None:
        raise MalformedCheckpoint(f"its Mamba-2 layers have no {name}")
    return found
