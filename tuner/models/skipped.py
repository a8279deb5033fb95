"""Which modules a checkpoint's quantization_config leaves unquantised."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from tuner.errors import MalformedCheckpoint
from tuner.models.fields import Json
from tuner.models.quantization import quantization_fields

# A merged layer has the parts' names in the checkpoint: sglang's srt/layers/quantization/utils.py,
# _FALLBACK_FUSED_SHARDS, and packed_modules_mapping of the model classes.
_PARTS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
_EXPERTS = (  # names of an expert's weights in classes of models
    "mlp.experts.0.gate_proj",
    "block_sparse_moe.experts.0.w1",
    "feed_forward.experts.0.gate_proj",
    "mixer.experts.0.up_proj",
)
_EXPERTS_OF = {  # classes with a dense MLP beside the experts
    "Gemma4ForConditionalGeneration": ("experts.0.gate_proj",),
    "Gemma4ForCausalLM": ("experts.0.gate_proj",),
}
_LISTS = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
_PREFIXES = re.compile(r"^(?:(?:model|language_model)\.)+")
_MOST_REPEATS, _LONGEST = 4, 200  # of a regular expression: so that none takes long


def skipped_modules(config: Json) -> Callable[[str, int], bool]:
    """A function of (layer's name, number of its layer): whether its weights are not quantised.

    The name is the engine's, e.g. "self_attn.qkv_proj". Raises MalformedCheckpoint, also later: for
    a merged layer of which some parts are listed and some are not, as the engine does.
    """
    quant = quantization_fields(config)
    listed = [entry for name in _LISTS for entry in _strings(quant.get(name))]
    if not listed:
        return lambda name, at: False
    method = str(quant.get("quant_method", ""))
    contains = "config_groups" in quant or method.startswith(("w8a8_int8", "modelopt", "awq"))
    matches = _Contained(listed) if contains else _Paths(listed)

    def skips(name: str, at: int) -> bool:
        whole = f"layers.{at}.{name}"
        if matches(whole):
            return True
        stem, _, last = whole.rpartition(".")
        found = {matches(f"{stem}.{part}") for part in _PARTS.get(last, ())}
        if len(found) == 2:
            raise MalformedCheckpoint(f"some parts of {whole} are quantised and some are not")
        return found == {True}

    return skips


def unquantised_experts(config: Json, architecture: str, layers: Sequence[int]) -> list[int]:
    """Those of the layers whose routed experts are not quantised. Raises MalformedCheckpoint."""
    skips = skipped_modules(config)
    names = _EXPERTS_OF.get(architecture, _EXPERTS)
    return [at for at in layers if any(skips(name, at) for name in names)]


class _Paths:
    """Entries that name a module or one above it: `_module_path_match` in sglang's utils.py."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._paths = {_PREFIXES.sub("", entry.rstrip(".")) for entry in entries}

    def __call__(self, path: str) -> bool:
        words = path.split(".")
        spans = ((i, j) for i in range(len(words)) for j in range(i + 1, len(words) + 1))
        return any(".".join(words[i:j]) in self._paths for i, j in spans)


class _Contained:
    """Entries that are part of a module's name, or regular expressions after "re:".

    `check_equal_or_regex_match` in sglang's srt/layers/quantization/compressed_tensors/utils.py.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        plain: set[str] = set()
        self._patterns: list[re.Pattern[str]] = []
        for entry in entries:
            if entry.startswith("re:"):
                self._patterns.append(_pattern(entry[3:]))
            else:
                plain.add(_PREFIXES.sub("", entry.strip("*")).lower())
        # Only entries that may be part of a layer's name: some lists have thousands of others.
        self._exact = {entry.rstrip(".") for entry in plain if entry.startswith("layers.")}
        self._parts = {entry for entry in plain if not entry.startswith("layers.")}

    def __call__(self, path: str) -> bool:
        low = path.lower()
        words = low.split(".")
        if any(".".join(words[:end]) in self._exact for end in range(2, len(words) + 1)):
            return True
        names = (path, f"model.{path}", f"model.language_model.{path}")
        return any(part in low for part in self._parts) or any(
            pattern.match(name) for pattern in self._patterns for name in names
        )


def _pattern(text: str) -> re.Pattern[str]:
    """A regular expression of a config.json. It comes from anybody, so it must not take long."""
    repeats = len(re.findall(r"[*+{]", text))
    if repeats > _MOST_REPEATS or len(text) > _LONGEST or re.search(r"\)[*+{?]", text):
        raise MalformedCheckpoint(f"the pattern {text!r:.60} is too complicated to be read here")
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise MalformedCheckpoint(f"the pattern {text!r:.60} is not valid ({error})") from None


def _strings(value: object) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise MalformedCheckpoint("a list of modules to skip holds something that is not a name")
    return [entry for entry in value if entry]
