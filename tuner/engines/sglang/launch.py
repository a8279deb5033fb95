"""Read the flags of sglang's server that change its kernels.

Source: `ServerArgs` in srt/server_args.py and srt/arg_groups of releases 0.4.4 to 0.5.23.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tuner.engines.settings import ServingFlags, number_of, other_sizes
from tuner.engines.sglang.package import SGLang
from tuner.errors import did_you_mean
from tuner.problems.dtypes import Dtype

# Older releases are asked on disk: `fused_moe/files.py` looks for the variable's name.
CONFIG_FOLDER_SINCE = ""

# The words of --quantization for formats that the Triton kernels read. Words for a checkpoint's
# own format, such as compressed-tensors, change nothing; others convert 16-bit weights.
_QUANTISED = {"fp8": Dtype.FP8_W8A8, "w8a8_fp8": Dtype.FP8_W8A8, "w8a8_int8": Dtype.INT8_W8A8}
UNFUSING_FLAG = "--disable-shared-experts-fusion"
_FUSION = {UNFUSING_FLAG: False, "--enforce-shared-experts-fusion": True}
_TP = ("--tp-size", "--tp", "--tensor-parallel-size")
_DP = ("--dp-size", "--dp", "--data-parallel-size")
# These flags of 0.5.23 replace --enable-dp-attention with --dp-size.
_ATTENTION_DP = ("--attn-dp-size", "--attention-data-parallel-size")
# Flags that give ranks sizes which are not read here, and the largest number that does not.
_PREFILLS = ("", "nsa-", "dsa-")
_OTHER_SIZES = {
    **dict.fromkeys(("--ep-num-redundant-experts", "--enable-waterfill", "--enable-prefill-cp"), 0),
    **dict.fromkeys((f"--enable-{kind}prefill-context-parallel" for kind in _PREFILLS), 0),
    **dict.fromkeys(("--moe-dp-size", "--moe-data-parallel-size"), 1),
    **dict.fromkeys(("--attn-cp-size", "--attention-context-parallel-size"), 1),
}
_NUMBERS = {
    "page_size": ("--page-size",),
    "moe_dense_tp": ("--moe-dense-tp-size",),
    "ep": ("--ep-size", "--ep", "--expert-parallel-size"),
}
_FLAG = re.compile(r"[\"'](--[a-z0-9][a-z0-9-]*)[\"']")
_FIELD = re.compile(r"^ +([a-z][a-z0-9_]*): ", re.MULTILINE)


def read_flags(flags: Mapping[str, str]) -> ServingFlags:
    """See `tuner.engines.settings.read_flags`."""
    options: dict[str, object] = {}
    for flag, fuse in _FUSION.items():
        if flag in flags:
            options["fuse_shared"] = fuse
    for option, names in _NUMBERS.items():
        if number := number_of(flags, names):
            options[option] = number
    old = number_of(flags, _DP) if "--enable-dp-attention" in flags else 0
    if dp := number_of(flags, _ATTENTION_DP) or old:
        options["dp"] = dp
    if (all_to_all := flags.get("--moe-a2a-backend", "none")) != "none":
        options["all_to_all"] = all_to_all
    spreads = "--enable-ep-moe" in flags or "all_to_all" in options
    word = flags.get("--quantization", "")
    dtype = _QUANTISED.get(word)
    others = (name for name, most in _OTHER_SIZES.items() if number_of(flags, (name,)) > most)
    unread = other_sizes(next(others, ""))
    converts = "" if dtype or word == "unquant" else word
    return ServingFlags(dtype, options, number_of(flags, _TP), spreads, unread, converts)


def experts_flags(ep: int) -> dict[str, str]:
    """See `tuner.engines.settings.with_experts`."""
    return {"--ep-size": str(ep)}


def unknown_flags(engine: SGLang, words: Sequence[str]) -> list[str]:
    """See `tuner.engines.settings.unknown_flags`. A flag may be shortened, as argparse allows."""
    known = _known_flags(engine)
    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    absent = [flag for flag in given if not any(one.startswith(flag) for one in known)]
    return [f"{flag}{did_you_mean(flag, sorted(known))}" for flag in absent] if known else []


def _known_flags(engine: SGLang) -> set[str]:
    """Return the flags in the engine's source: as text, and as fields that become flags."""
    srt = engine.root / "srt"
    files = [srt / "server_args.py", *sorted((srt / "arg_groups").rglob("*.py"))]
    texts = [path.read_text(encoding="utf-8") for path in files if path.is_file()]
    named = {flag for text in texts for flag in _FLAG.findall(text)}
    return named | {
        f"--{name.replace('_', '-')}" for text in texts for name in _FIELD.findall(text)
    }
