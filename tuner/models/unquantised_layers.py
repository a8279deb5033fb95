"""Find the modules that a checkpoint's quantization_config leaves unquantised."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from tuner.errors import MalformedCheckpoint, MalformedField
from tuner.models.fields import Json
from tuner.models.quantization import (
    EXPERTS,
    matches,
    quantization_fields,
    safe_pattern,
    targets_of,
)

# A merged layer has the parts' names in the checkpoint: sglang's srt/layers/quantization/utils.py,
# _FALLBACK_FUSED_SHARDS, and packed_modules_mapping of the model classes.
_PARTS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj_with_mqa": ("q_a_proj", "kv_a_proj_with_mqa"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
_EXPERTS_OF = {  # classes with a dense MLP beside the experts
    "Gemma4ForConditionalGeneration": ("experts.0.gate_proj",),
    "Gemma4ForCausalLM": ("experts.0.gate_proj",),
}
_LISTS = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
_PREFIXES = re.compile(r"^(?:(?:model|language_model)\.)+")


def skipped_modules(config: Json) -> Callable[[str, int], bool]:
    """Return a function that says whether the weights of (layer's name, its number) are
    unquantised.

    The name is the engine's, e.g. "self_attn.qkv_proj". Raises MalformedCheckpoint, also later: for
    a merged layer of which some parts are listed and some are not, as the engine does.
    """
    quant = quantization_fields(config)
    listed = [entry for name in _LISTS for entry in _strings(quant.get(name))]
    rules = [f"re:{rule[2:]}" for rule, _ in dynamic_rules(quant) if rule.startswith("-:")]
    if not listed and not rules:
        return lambda name, at: False
    method = str(quant.get("quant_method", ""))
    contains = "config_groups" in quant or method.startswith(("w8a8_int8", "modelopt", "awq"))
    in_list = _Contained(listed) if contains else _Paths(listed)
    in_rules = _Contained(rules)

    def leaves(path: str) -> bool:
        return in_list(path) or in_rules(path)

    def skips(name: str, at: int) -> bool:
        whole = f"layers.{at}.{name}"
        if leaves(whole):
            return True
        stem, _, last = whole.rpartition(".")
        found = {leaves(f"{stem}.{part}") for part in _PARTS.get(last, ())}
        if len(found) == 2:
            raise MalformedCheckpoint(f"some parts of {whole} are quantised and some are not")
        return found == {True}

    return skips


def outside_groups(config: Json) -> Callable[[str, int], bool]:
    """Return a function like `skipped_modules`: whether no group of compressed-tensors is for a
    layer.

    It applies if groups name their layers as the engine does. Raises MalformedCheckpoint.
    """
    quant = quantization_fields(config)
    groups = quant.get("config_groups")
    named = groups.values() if isinstance(groups, Mapping) and "quant_algo" not in quant else ()
    targets = [one for group in named for one in targets_of(group)]
    classes = any(not one.startswith("re:") and "." not in one for one in targets)
    inside = _Contained([] if classes else targets)

    def has(name: str, at: int) -> bool:
        stem, _, last = f"layers.{at}.{name}".rpartition(".")
        return any(inside(f"{stem}.{part}") for part in (last, *_PARTS.get(last, ())))

    if not any(has(name, at) for name in _USUAL for at in range(_PERIOD)):
        return lambda name, at: False
    return lambda name, at: not has(name, at)


# Layers of most models; in hybrid models each kind is among the first few.
_USUAL = ("self_attn.qkv_proj", "self_attn.o_proj", "linear_attn.out_proj", "mlp.down_proj")
_PERIOD = 8


def unquantised_experts(config: Json, architecture: str, layers: Sequence[int]) -> list[int]:
    """Return the layers whose routed experts are not quantised. Raises MalformedCheckpoint."""
    skips = skipped_modules(config)
    names = _EXPERTS_OF.get(architecture, EXPERTS)
    return [at for at in layers if any(skips(name, at) for name in names)]


def dynamic_rules(quant: Json) -> list[tuple[str, object]]:
    """Return GPTQModel's rules for modules, by pattern.

    "-:" leaves a module as it is, any other pattern gives it its own settings. vLLM's
    quantization/utils/gptq_utils.py, get_dynamic_override.
    """
    rules = quant.get("dynamic")
    return [*rules.items()] if isinstance(rules, Mapping) else []


def otherwise_quantised(config: Json, architecture: str, layers: Sequence[int]) -> list[int]:
    """Return the layers whose experts have other bits by a dynamic rule."""
    quant = quantization_fields(config)
    bits = quant.get("bits")
    patterns = [
        safe_pattern(rule.removeprefix("+:"))
        for rule, settings in dynamic_rules(quant)
        if not rule.startswith("-:")
        and isinstance(settings, Mapping)
        and settings.get("bits", bits) != bits
    ]
    names = _EXPERTS_OF.get(architecture, EXPERTS)
    return [
        at
        for at in layers
        if any(matches(one, f"layers.{at}.{name}") for one in patterns for name in names)
    ]


class _Paths:
    """Entries that name a module or its parent: `_module_path_match` in sglang's utils.py."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._paths = {_PREFIXES.sub("", entry.rstrip(".")) for entry in entries}

    def __call__(self, path: str) -> bool:
        words = path.split(".")
        spans = ((i, j) for i in range(len(words)) for j in range(i + 1, len(words) + 1))
        return any(".".join(words[i:j]) in self._paths for i, j in spans)


class _Contained:
    """Entries that are part of a module's name, or regular expressions after "re:".

    `check_equal_or_regex_match` in sglang's srt/layers/quantization/compressed_tensors/utils.py.
    Engines ask for all experts at once ("mlp.experts"), so "gate" is no part of "gate_proj" there:
    `is_layer_skipped_awq` and ModelOpt's `is_layer_excluded` of both.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        plain: set[str] = set()
        self._patterns: list[re.Pattern[str]] = []
        for entry in entries:
            if entry.startswith("re:"):
                self._patterns.append(safe_pattern(entry[3:]))
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
        asked = low.partition(".experts.")[0]
        return any(part in (low if "experts" in part else asked) for part in self._parts) or any(
            matches(pattern, path) for pattern in self._patterns
        )


def _strings(value: object) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise MalformedField("a list of modules to skip holds something that is not a name")
    return [entry for entry in value if entry]
