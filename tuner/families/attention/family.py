"""Attention's entry in the registry; importing it loads no heavy module."""

from __future__ import annotations

from tuner.families.attention.problem import ATTENTION_PROBLEMS, Stage, parse_attention, same_shape
from tuner.families.attention.selection import parse_workload_option, read_selection
from tuner.problems.registry import Family, Option

FAMILY = Family(
    name="attention",
    title="attention",
    flag="--attention",
    problems=ATTENTION_PROBLEMS,
    example="decode_attention:q_heads=..,kv_heads=..,Lq=..,Lv=..,dtype=..",
    parse=parse_attention,
    parts=Stage,
    shaping=(
        Option(
            "dp",
            "--dp",
            int,
            "Data-parallel size of attention (--enable-dp-attention); default: 1.",
        ),
        Option("page_size", "--page-size", int, "Tokens a page of the KV cache; default: 1."),
        Option(
            "kv_splits",
            "--kv-splits",
            int,
            "Decode: most parts that a cache is split into; default: as the engine runs.",
        ),
    ),
    selecting=(
        Option(
            "workload",
            "--workload",
            str,
            "chat, long-context, offline, or a TOML file of points; for any family a server's log, "
            "a trace or results of a benchmark; default: chat.",
            parse_workload_option,
        ),
    ),
    searching=(),
    read_selection=read_selection,
    package="tuner.families.attention",
    alike=same_shape,
)
