"""Problems as text, `family:name=value,...`, as command lines, stores and file names hold them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from tuner.errors import BadProblem, did_you_mean
from tuner.families.attention.problem import Attention, Phase
from tuner.families.fused_moe.problem import FusedMoe, parse_dtype

Problem = FusedMoe | Attention
FAMILIES = (FusedMoe.family, *(f"{phase.value}_attention" for phase in Phase))
_MOE_FIELDS = ("E", "N", "K", "top_k", "dtype", "block_shape", "per_channel_quant")
_ATTENTION_FIELDS = (
    *("q_heads", "kv_heads", "Lq", "Lv", "dtype"),
    *("page_size", "kv_splits", "window", "sinks", "logit_cap"),
)


@lru_cache(maxsize=1024)  # a store has many rows of each
def parse_problem(text: str) -> Problem:
    """Read `fused_moe:E=256,N=64,K=7168,top_k=8,dtype=int8_w8a8,per_channel_quant`, or
    `decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16,kv_splits=8`.

    Raises BadProblem and names the nearest field for a name it does not know.
    """
    family = text.partition(":")[0]
    if family not in FAMILIES:
        raise BadProblem(f"unknown kind of problem {family!r}{did_you_mean(family, FAMILIES)}")
    return parse_fused_moe(text) if family == FusedMoe.family else parse_attention(text)


def names_attention(text: str) -> bool:
    """Whether `text` is an attention problem's.

    Raises BadProblem, which names the nearest, for a problem of no known kind.
    """
    family = text.partition(":")[0]
    if family not in FAMILIES and re.fullmatch(r"\w+:\w+=\S*", text):
        parse_problem(text)
    return family in FAMILIES and family != FusedMoe.family


def parse_fused_moe(text: str) -> FusedMoe:
    fields = _fields(text, _MOE_FIELDS, required=5)
    return FusedMoe(
        **{name: _whole(name, fields[name]) for name in ("E", "N", "K", "top_k")},
        dtype=parse_dtype(fields["dtype"]),
        block_shape=parse_block_shape(fields["block_shape"]) if "block_shape" in fields else None,
        per_channel_quant=_flag("per_channel_quant", fields.get("per_channel_quant", "false")),
    )


def parse_attention(text: str) -> Attention:
    fields = _fields(text, _ATTENTION_FIELDS, required=5)
    optional = [n for n in ("page_size", "kv_splits", "window") if n in fields]
    return Attention(
        phase=Phase(text.partition("_")[0]),
        **{n: _whole(n, fields[n]) for n in ("q_heads", "kv_heads", "Lq", "Lv", *optional)},
        dtype=parse_dtype(fields["dtype"]),
        sinks=_flag("sinks", fields.get("sinks", "false")),
        logit_cap=_number("logit_cap", fields.get("logit_cap", "0")),
    )


def _fields(text: str, known: Sequence[str], required: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in filter(None, text.partition(":")[2].split(",")):
        name, _, value = part.partition("=")
        if name not in known:
            raise BadProblem(f"unknown field {name!r} in {text!r}{did_you_mean(name, known)}")
        fields[name] = value
    missing = [name for name in known[:required] if name not in fields]
    if missing:
        raise BadProblem(f"{text!r} lacks {', '.join(missing)}")
    return fields


def parse_block_shape(text: str) -> tuple[int, int]:
    n, _, k = text.partition("x")
    return _whole("block_shape", n), _whole("block_shape", k)


def _whole(name: str, text: str) -> int:
    # int() also reads "1_0" and non-ASCII digits, which the engine's file names never hold.
    if not _digits(text):
        raise BadProblem(f"{name} must be a whole number, not {text!r}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("", "true", "false"):
        raise BadProblem(f"{name} must be true or false, not {text!r}")
    return text.lower() != "false"


def _number(name: str, text: str) -> float:
    whole, _, fraction = text.partition(".")
    if not (_digits(whole) and (not fraction or _digits(fraction))):
        raise BadProblem(f"{name} must be a number, not {text!r}")
    return float(text)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
