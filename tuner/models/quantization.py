"""Read the format of a checkpoint's quantised weights from its quantization_config."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from tuner.errors import MalformedCheckpoint, MalformedField
from tuner.models.fields import Json, size
from tuner.problems.dtypes import Dtype

EXPERTS = (  # names of an expert's weights in classes of models
    "mlp.experts.0.gate_proj",
    "block_sparse_moe.experts.0.w1",
    "feed_forward.experts.0.gate_proj",
    "mixer.experts.0.up_proj",
    "ffn.experts.0.gate_proj",
)
_ROOTS = ("", "model.", "model.language_model.", "backbone.")  # above a module's `layers`
_MOST_REPEATS, _LONGEST = 4, 200  # of a regular expression: so that none takes long


@dataclass(frozen=True)
class Quantization:
    """The scheme of weights."""

    kind: str  # the checkpoint's name for it, for messages
    dtype: Dtype | None  # None: no Triton kernel reads the format
    block_shape: tuple[int, int] | None = None
    per_channel_quant: bool = False
    # The features by which engines choose a kernel: "static" scales of activations, "asymmetric" or
    # "reordered" weights, "groups of 128", and how auto-round packs: "gptq" or "awq".
    detail: str = ""


def read_quantization(config: Json, torch_dtype: str | None) -> Quantization:
    """Read the scheme of the experts' weights; without a scheme, their type is `torch_dtype`.

    Raises MalformedCheckpoint if a field is missing or has a wrong type. A format that no Triton
    fused-MoE kernel reads gives no error here, because the user can choose another dtype.
    """
    quant = quantization_fields(config)
    if algo := quant.get("moe_quant_algo"):  # DeepSeek V4 by ModelOpt
        return _algorithm(str(algo))
    # DeepSeek V4 and V4.1, which names it elsewhere: fp4 experts beside fp8 layers.
    if "fp4" in (config.get("expert_dtype"), quant.get("expert_dtype")):
        return Quantization("mxfp4", None)
    if mixed := _mixed(quant):
        return _of_layers(mixed, torch_dtype, experts=True)
    quant = _with_settings_of_experts(quant, config)
    return _read(quant, torch_dtype, lambda groups: _expert_group(groups, config))


def read_layer_quantization(config: Json, torch_dtype: str | None) -> Quantization:
    """Read the scheme of the layers other than routed experts; see `read_quantization`."""
    quant = quantization_fields(config)
    if mixed := _mixed(quant):
        return _of_layers(mixed, torch_dtype, experts=False)
    groups = quant.get("config_groups")
    if not isinstance(groups, Mapping) or not groups or "quant_algo" in quant:
        return _read(quant, torch_dtype, lambda found: next(iter(found.values()), None))
    schemes = [_compressed_tensors(one) for one in groups.values() if not _experts_alone(one)]
    if len({*schemes}) > 1:  # which layer has which is not read here
        kinds = dict.fromkeys(one.kind for one in schemes)
        return Quantization(" and ".join(kinds), None)
    return schemes[0] if schemes else unquantised(torch_dtype)


def _read(quant: Json, torch_dtype: str | None, choose: Callable[[Json], object]) -> Quantization:
    if not quant:
        return unquantised(torch_dtype)
    method = str(quant.get("quant_method", "")).lower().replace("_", "-")
    if method.startswith("modelopt") or (not method and "quant_algo" in quant):
        return _algorithm(str(quant.get("quant_algo") or method))
    if "config_groups" in quant:
        groups = quant["config_groups"]
        return _compressed_tensors(choose(groups) if isinstance(groups, Mapping) else None)
    if not method and {"group_size", "bits"} <= quant.keys():
        return Quantization("MLX's format, for Apple's machines (engines want the original)", None)
    read = _METHODS.get(method)
    return read(quant) if read else Quantization(method or "an unnamed format", None)


def quantization_fields(config: Json) -> Json:
    """Return the quantization_config; empty without one. Raises MalformedCheckpoint."""
    quant = config.get("quantization_config") or config.get("compression_config") or {}
    if not isinstance(quant, Mapping):
        raise MalformedField("quantization_config is not an object")
    method = quant.get("quant_method")
    if method is not None and not isinstance(method, str):
        raise MalformedField(f"quant_method should be a name, not {method!r:.60}")
    return quant


def unquantised(torch_dtype: str | None) -> Quantization:
    """Return the scheme of weights that are stored as `torch_dtype`."""
    return Quantization("none", Dtype.FLOAT16 if torch_dtype == "float16" else Dtype.BFLOAT16)


def _fp8(quant: Json) -> Quantization:
    block = quant.get("weight_block_size")
    shape = None if block is None else _block(block)
    if shape and shape[0] == 1:
        return Quantization("mxfp8", None)
    static = "static" if quant.get("activation_scheme") == "static" else ""
    return Quantization("fp8", Dtype.FP8_W8A8, shape, detail=static)


def _blockwise_int8(quant: Json) -> Quantization:
    return Quantization("blockwise_int8", Dtype.INT8_W8A8, _block(quant.get("weight_block_size")))


def _packed(quant: Json) -> Quantization:
    """Read gptq, awq and similar formats: groups along k."""
    bits = quant.get("bits", quant.get("w_bit", 4))
    group = quant.get("group_size", quant.get("q_group_size", 128))
    name, packing = str(quant["quant_method"]), str(quant.get("packing_format", "gptq"))
    details = {
        "awq" if "awq" in packing else "gptq": name == "auto-round",
        f"groups of {group}": True,
        "reordered": quant.get("desc_act"),
    }
    return replace(_groups(name, bits, group), detail=_true_of(details))


def _algorithm(name: str) -> Quantization:
    """Read ModelOpt's name of an algorithm; vLLM's QUANT_ALGOS in quantization/modelopt.py."""
    algo = name.lower()
    dtype = Dtype.FP8_W8A8 if algo.startswith("fp8") else None
    block = (128, 128) if algo == "fp8_pb_wo" else None
    static = "static" if algo == "fp8" else ""
    channel = algo == "fp8_per_channel_per_token"
    return Quantization(f"modelopt {algo}", dtype, block, channel, static)


def is_mixed(quant: Json) -> bool:
    """Say whether a ModelOpt checkpoint has several algorithms."""
    return str(quant.get("quant_algo", "")).upper() == "MIXED_PRECISION"


def _mixed(quant: Json) -> Json | None:
    """Return the layers of a ModelOpt checkpoint with several algorithms, by name; None
    for others.
    """
    if not is_mixed(quant):
        return None
    layers = quant.get("quantized_layers")
    if layers is None:
        layers = {name: {"quant_algo": algo} for name, algo in _named_in_groups(quant)} or None
    if layers is None:
        return None
    if not isinstance(layers, Mapping) or not all(isinstance(x, Mapping) for x in layers.values()):
        raise MalformedField("quantized_layers is not an object of objects")
    return layers


def _of_layers(layers: Json, torch_dtype: str | None, *, experts: bool) -> Quantization:
    found = {
        str(row.get("quant_algo")).lower()
        for name, row in layers.items()
        if (".experts" in name) is experts
    }
    if not found:
        return unquantised(torch_dtype)
    if len(found) > 1:
        return Quantization(f"modelopt {' and '.join(sorted(found))}", None)
    return _algorithm(found.pop())


def _named_in_groups(quant: Json) -> Iterator[tuple[str, str]]:
    """Yield the layers that groups of a ModelOpt checkpoint name, with FP8 or another algorithm."""
    groups = quant.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            kind = f"{weights.get('type')}{weights.get('num_bits')}"
            plain = kind == "float8" and not weights.get("group_size")
            yield from ((name, "FP8" if plain else kind) for name in targets_of(group))


def targets_of(group: object) -> list[str]:
    """Return the modules that a group is for: classes, names, or patterns after "re:"."""
    targets = group.get("targets") if isinstance(group, Mapping) else None
    return [str(one) for one in targets] if isinstance(targets, list) else []


def _experts_alone(group: object) -> bool:
    """Say whether a group is of routed experts and of nothing else."""
    targets = targets_of(group)
    return bool(targets) and all(_aims([one], *_AT_EXPERTS) for one in targets)


_AT_EXPERTS = ("FusedMoE", ".experts", "_experts")


def _aims(targets: list[str], *words: str) -> bool:
    return any(word in text.replace("\\", "") for text in targets for word in words)


def _expert_group(groups: Json, config: Json) -> object:
    """Return the group of the experts.

    It is the first group with a pattern that matches the middle layer's experts, as experts of
    layers for drafts may have a group of their own; else the first that names experts, else the
    group of all linear layers. vLLM's CompressedTensorsMoEMethod.get_moe_method; sglang's is like
    it.
    """
    listed = [group for group in groups.values() if isinstance(group, Mapping)]
    middle = _middle_experts(config)
    for group in listed if len(listed) > 1 else ():
        if any(_reaches(one, middle) for one in targets_of(group)):
            return group
    naming = [group for group in listed if _aims(targets_of(group), *_AT_EXPERTS)]
    if naming:
        return naming[0]
    linear = (group for group in listed if _aims(targets_of(group), "Linear"))
    return next(linear, next(iter(listed), None))


def _reaches(target: str, names: list[str]) -> bool:
    """Say whether a target is a pattern that matches one of the modules.

    Raises MalformedCheckpoint for a pattern that speaks of experts and cannot be read.
    """
    if not target.startswith("re:"):
        return False
    try:
        pattern = safe_pattern(target[3:])
    except MalformedCheckpoint:
        if _aims([target], *_AT_EXPERTS):
            raise
        return False
    return any(matches(pattern, name) for name in names)


def _middle_experts(config: Json) -> list[str]:
    total = config.get("num_hidden_layers")
    return [f"layers.{total // 2}.{name}" for name in EXPERTS] if isinstance(total, int) else []


def matches(pattern: re.Pattern[str], path: str) -> bool:
    """Say whether a pattern matches a module from the beginning of its name."""
    return any(pattern.match(root + path) for root in _ROOTS)


def safe_pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression of a config.json. Anybody may write it, so it must not take
    long.
    """
    repeats = len(re.findall(r"[*+{]", text))
    if repeats > _MOST_REPEATS or len(text) > _LONGEST or re.search(r"\)[*+{?]", text):
        raise MalformedCheckpoint(f"the pattern {text!r:.60} is too complicated to be read here")
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise MalformedCheckpoint(f"the pattern {text!r:.60} is not valid ({error})") from None


def _compressed_tensors(group: object) -> Quantization:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping) or not isinstance(group, Mapping):
        raise MalformedCheckpoint("quantization_config has no weights in its config group")
    inputs = group.get("input_activations")
    input_bits = inputs.get("num_bits") if isinstance(inputs, Mapping) else 16
    bits, kind = weights.get("num_bits"), str(weights.get("type", "int"))
    name = f"compressed-tensors {kind}{bits}"
    if input_bits != 16:
        dtype = {"int8": Dtype.INT8_W8A8, "float8": Dtype.FP8_W8A8}.get(f"{kind}{bits}")
        if dtype is None or input_bits != 8:
            return Quantization(f"{name} with {input_bits}-bit activations", None)
        static = "static" if isinstance(inputs, Mapping) and inputs.get("dynamic") is False else ""
        return replace(_weights_and_activations(name, dtype, weights), detail=static)
    if kind != "int":
        return Quantization(f"{name} with 16-bit activations", None)
    details = {
        "asymmetric": weights.get("symmetric") is False,
        "reordered": weights.get("actorder"),
    }
    return replace(_groups(name, bits, weights.get("group_size")), detail=_true_of(details))


def _weights_and_activations(name: str, dtype: Dtype, weights: Json) -> Quantization:
    # compressed-tensors' default for a missing strategy: groups if their size is given.
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "tensor")
    if strategy == "block":
        return Quantization(name, dtype, _block(weights.get("block_structure")))
    # The engines' compressed_tensors.py takes no other strategies for experts.
    known = ("channel",) if dtype is Dtype.INT8_W8A8 else ("channel", "tensor")
    if strategy not in known:
        return Quantization(f"{name} per {strategy}", None)
    return Quantization(name, dtype, per_channel_quant=strategy == "channel")


def _quark(quant: Json) -> Quantization:
    """Read AMD's Quark: fp8 of weights and activations, if no layer has a setting of its own."""
    whole = quant.get("global_quant_config")
    parts = [whole.get(name) if isinstance(whole, Mapping) else None for name in _QUARK_PARTS]
    kinds = {part.get("dtype") if isinstance(part, Mapping) else None for part in parts}
    schemes = {part.get("qscheme") for part in parts if isinstance(part, Mapping)}
    if kinds != {"fp8_e4m3"} or quant.get("layer_quant_config"):
        return Quantization("quark", None)
    if not schemes <= {"per_tensor", "per_channel"}:
        return Quantization("quark fp8 in groups", None)
    weights, inputs = (part if isinstance(part, Mapping) else {} for part in parts)
    channel = weights.get("qscheme") == "per_channel"
    static = "" if inputs.get("is_dynamic") else "static"
    return Quantization("quark fp8", Dtype.FP8_W8A8, per_channel_quant=channel, detail=static)


_QUARK_PARTS = ("weight", "input_tensors")


def _with_settings_of_experts(quant: Json, config: Json) -> Json:
    """Replace the settings of all layers in Quark's fields by the settings of experts.

    `_find_matched_config` of both engines: the first pattern that matches all experts' name counts.
    """
    own = quant.get("layer_quant_config")
    if quant.get("quant_method") != "quark" or not isinstance(own, Mapping):
        return quant
    modules = [name.partition(".0.")[0] for name in _middle_experts(config)]
    for pattern, settings in own.items():
        if any(fnmatchcase(root + name, pattern) for root in _ROOTS for name in modules):
            return {**quant, "global_quant_config": settings, "layer_quant_config": {}}
        if "experts" in pattern:  # of some of them: which is not read here
            return quant
    return {**quant, "layer_quant_config": {}}


def _true_of(details: Mapping[str, object]) -> str:
    return " ".join(name for name, true in details.items() if true)


def _groups(name: str, bits: object, group: object) -> Quantization:
    dtype = {4: Dtype.INT4_W4A16, 8: Dtype.INT8_W8A16}.get(bits if isinstance(bits, int) else 0)
    if isinstance(group, list):  # blocks, which the kernels for groups do not read
        return Quantization(name, None)
    along_k = None if group == -1 else size({"group_size": group}, ("group_size",))
    if along_k:
        return Quantization(name, dtype, (0, along_k) if dtype else None)
    # One group along all of k: the kernel supports int4 only with smaller groups.
    return Quantization(name, dtype if dtype is Dtype.INT8_W8A16 else None)


def _block(value: object) -> tuple[int, int]:
    if isinstance(value, str):  # compressed-tensors may write "128x128"
        value = [int(part) if part.isdecimal() else part for part in value[:20].split("x")]
    match value:
        case [int() as n, int() as k] if n > 0 and k > 0 and max(n, k) < 1 << 20:
            return n, k
    raise MalformedField(f"a quantisation block is two positive numbers, not {value!r:.60}")


_METHODS = {
    "fp8": _fp8,
    "quark": _quark,
    "blockwise-int8": _blockwise_int8,
    "w8a8-int8": lambda _: Quantization("w8a8_int8", Dtype.INT8_W8A8, per_channel_quant=True),
    "w8a8-fp8": lambda _: Quantization("w8a8_fp8", Dtype.FP8_W8A8, per_channel_quant=True),
    **dict.fromkeys(
        ("gptq", "gptq-marlin", "awq", "awq-marlin", "auto-round", "moe-wna16"), _packed
    ),
}
