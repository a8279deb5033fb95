"""Number formats of weights and activations."""

from __future__ import annotations

from enum import Enum

from tuner.errors import BadProblem, did_you_mean


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


def parse_dtype(text: str) -> Dtype:
    """Read a dtype or an alias like "bf16". Raises BadProblem, which names the nearest."""
    aliases = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "auto": "bfloat16"}
    try:
        return Dtype(aliases.get(text, text))
    except ValueError:
        near = did_you_mean(text, [d.value for d in Dtype])
        raise BadProblem(f"unknown dtype {text!r}{near}") from None
