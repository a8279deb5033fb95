"""Read the flags of vLLM's server that change its kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tuner.engines.engine import Engine
from tuner.engines.settings import ServingFlags, number_of, other_sizes
from tuner.problems.dtypes import Dtype

# VLLM_TUNED_CONFIG_FOLDER is in vllm/envs.py of 0.10.1's wheel, and not in 0.10.0's (PR 22791).
CONFIG_FOLDER_SINCE = "0.10.1"
UNFUSING_FLAG = ""
_QUANTIZATION = ("--quantization-config", "--quantization", "-q")
_PREFILL_RANKS = ("--prefill-context-parallel-size", "-pcp")
# --eplb-config '{"num_redundant_experts": 32}' or --eplb-config.num_redundant_experts=32, and
# --num-redundant-experts of older releases
_REDUNDANT = re.compile(r"num[_-]redundant[_-]experts\W+[1-9]")


def read_flags(flags: Mapping[str, str]) -> ServingFlags:
    """See `tuner.engines.settings.read_flags`."""
    word = next((flags[name] for name in _QUANTIZATION if name in flags), "")
    dtype = Dtype.FP8_W8A8 if word in ("fp8", "fp8_per_tensor") else None
    tp = number_of(flags, ("--tensor-parallel-size", "-tp"))
    spreads = bool({"--enable-expert-parallel", "-ep"} & flags.keys())
    replicas = number_of(flags, ("--data-parallel-size", "-dp"))
    unread = (
        "with --data-parallel-size the ranks of all replicas share the experts: leave the flag "
        f"out; for the experts, --tp is the number of all ranks ({replicas} times tp), and with "
        "--enable-expert-parallel --ep is that too"
    )
    others = [name for name in _PREFILL_RANKS if number_of(flags, (name,)) > 1]
    others += [name for name, value in flags.items() if _REDUNDANT.search(f"{name}={value}")]
    unread = unread if replicas > 1 else other_sizes(next(iter(others), ""))
    return ServingFlags(dtype, {}, tp, spreads, unread, "" if dtype else word)


def experts_flags(ep: int) -> dict[str, str]:
    """See `tuner.engines.settings.with_experts`: vLLM divides experts among all ranks."""
    return {"--enable-expert-parallel": "1"}


def unknown_flags(engine: Engine, words: Sequence[str]) -> list[str]:
    """Return nothing: the flags of vLLM's releases were not read."""
    return []
