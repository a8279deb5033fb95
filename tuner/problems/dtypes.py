"""Read the number formats of weights and activations."""

from __future__ import annotations

from enum import Enum

from tuner.errors import BadProblem, did_you_mean, one_of


class Dtype(str, Enum):
    """Weight and activation types named as the engines name them."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FP8_W8A8 = "fp8_w8a8"
    INT8_W8A8 = "int8_w8a8"
    INT8_W8A16 = "int8_w8a16"
    INT4_W4A16 = "int4_w4a16"

    @property
    def weight_bits(self) -> int:
        return {"bfloat16": 16, "float16": 16, "int4_w4a16": 4}.get(self.value, 8)

    @property
    def activation_bits(self) -> int:
        return 8 if self.value.endswith("w8a8") else 16


# Names in the engines' options and checkpoints. sglang: --quantization; vLLM: --dtype.
_ALIASES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "auto": "bfloat16",
    "fp8": "fp8_w8a8",
    "w8a8_fp8": "fp8_w8a8",
    "int8": "int8_w8a8",
    "w8a8_int8": "int8_w8a8",
    "blockwise_int8": "int8_w8a8",
    "w8a16": "int8_w8a16",
    "int4": "int4_w4a16",
    "w4a16": "int4_w4a16",
    "awq": "int4_w4a16",
    "gptq": "int4_w4a16",
}


def parse_dtype(text: str) -> Dtype:
    """Read a dtype, or an engine's word for a dtype, like "bf16" or sglang's "w8a8_int8".

    Raises BadProblem, which names the nearest.
    """
    try:
        return Dtype(_ALIASES.get(text.casefold(), text))
    except ValueError:
        near = one_of(text, [d.value for d in Dtype])
        if text.casefold() == "float8":
            near = ": vLLM of 2024 called fp8_w8a8 so; later releases look for dtype=fp8_w8a8"
        raise BadProblem(f"unknown dtype {text!r}{near}") from None


# Types of the states that an engine keeps for the sequences of Mamba-2 layers.
STATE_DTYPES = ("float32", "bfloat16", "float16")


def check_state_dtype(text: str) -> str:
    """Return the type of states as it is. Raises BadProblem, which names the nearest."""
    if text not in STATE_DTYPES:
        near = did_you_mean(text, STATE_DTYPES) or f": write {' or '.join(STATE_DTYPES)}"
        raise BadProblem(f"states are not kept in {text[:50]!r}{near}")
    return text
