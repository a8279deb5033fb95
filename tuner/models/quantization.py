"""Read the format of a checkpoint's quantised weights from its quantization_config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.errors import MalformedCheckpoint
from tuner.problems.dtypes import Dtype

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Quantization:
    """The scheme of weights."""

    kind: str  # the checkpoint's name for it, for messages
    dtype: Dtype | None  # None: no Triton kernel reads the format
    block_shape: tuple[int, int] | None = None
    per_channel_quant: bool = False


def read_quantization(config: Json, torch_dtype: str | None) -> Quantization:
    """Read the scheme of the experts' weights; without one, their type is `torch_dtype`.

    Raises MalformedCheckpoint where a field is missing or has a wrong type. A format that no Triton
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
    return _read(quant, torch_dtype, _expert_group)


def read_layer_quantization(config: Json, torch_dtype: str | None) -> Quantization:
    """Read the scheme of the layers that are not routed experts; see `read_quantization`."""
    quant = quantization_fields(config)
    if mixed := _mixed(quant):
        return _of_layers(mixed, torch_dtype, experts=False)
    return _read(quant, torch_dtype, lambda groups: next(iter(groups.values()), None))


def _read(quant: Json, torch_dtype: str | None, choose: Callable[[Json], object]) -> Quantization:
    if not quant:
        return unquantised(torch_dtype)
    method = str(quant.get("quant_method", "")).lower().replace("_", "-")
    if method.startswith("modelopt") or (not method and "quant_algo" in quant):
        return _algorithm(str(quant.get("quant_algo") or method))
    if "config_groups" in quant:
        groups = quant["config_groups"]
        return _compressed_tensors(choose(groups) if isinstance(groups, Mapping) else None)
    read = _METHODS.get(method)
    return read(quant) if read else Quantization(method or "an unnamed format", None)


def quantization_fields(config: Json) -> Json:
    """The quantization_config; empty without one. Raises MalformedCheckpoint."""
    quant = config.get("quantization_config") or config.get("compression_config") or {}
    if not isinstance(quant, Mapping):
        raise MalformedCheckpoint("quantization_config is not an object")
    return quant


def unquantised(torch_dtype: str | None) -> Quantization:
    """The scheme of weights that are stored as `torch_dtype`."""
    return Quantization("none", Dtype.FLOAT16 if torch_dtype == "float16" else Dtype.BFLOAT16)


def _fp8(quant: Json) -> Quantization:
    block = quant.get("weight_block_size")
    shape = _block(block) if block else None
    if shape and shape[0] == 1:
        return Quantization("mxfp8", None)
    return Quantization("fp8", Dtype.FP8_W8A8, shape)


def _blockwise_int8(quant: Json) -> Quantization:
    return Quantization("blockwise_int8", Dtype.INT8_W8A8, _block(quant.get("weight_block_size")))


def _packed(quant: Json) -> Quantization:
    """gptq, awq and similar formats: groups along k."""
    bits = quant.get("bits", quant.get("w_bit", 4))
    group = quant.get("group_size", quant.get("q_group_size", 128))
    return _groups(str(quant["quant_method"]), bits, group)


def _algorithm(name: str) -> Quantization:
    """ModelOpt's name of an algorithm; vLLM's QUANT_ALGOS in quantization/modelopt.py."""
    algo = name.lower()
    dtype = Dtype.FP8_W8A8 if algo.startswith("fp8") else None
    block = (128, 128) if algo == "fp8_pb_wo" else None
    return Quantization(f"modelopt {algo}", dtype, block, algo == "fp8_per_channel_per_token")


def is_mixed(quant: Json) -> bool:
    """Say whether a ModelOpt checkpoint has several algorithms."""
    return str(quant.get("quant_algo", "")).upper() == "MIXED_PRECISION"


def _mixed(quant: Json) -> Json | None:
    """The layers of a ModelOpt checkpoint with several algorithms, by name; None for others."""
    layers = quant.get("quantized_layers")
    if layers is None or not is_mixed(quant):
        return None
    if not isinstance(layers, Mapping) or not all(isinstance(x, Mapping) for x in layers.values()):
        raise MalformedCheckpoint("quantized_layers is not an object of objects")
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


def _expert_group(groups: Json) -> object:
    """The group of the experts: the one that names them, else the one for all linear layers.

    vLLM's CompressedTensorsMoEMethod.get_moe_method; sglang's is like it.
    """
    listed = [group for group in groups.values() if isinstance(group, Mapping)]

    def aims(group: Json, *words: str) -> bool:
        targets = group.get("targets")
        texts = [str(one) for one in targets] if isinstance(targets, list) else []
        return any(word in text for text in texts for word in words)

    for words in (("FusedMoE", ".experts", "_experts"), ("Linear",)):
        for group in listed:
            if aims(group, *words):
                return group
    return next(iter(listed), None)


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
        return _weights_and_activations(name, dtype, weights)
    if kind != "int":
        return Quantization(f"{name} with 16-bit activations", None)
    return _groups(name, bits, weights.get("group_size"))


def _weights_and_activations(name: str, dtype: Dtype, weights: Json) -> Quantization:
    strategy = weights.get("strategy")
    if strategy == "block":
        return Quantization(name, dtype, _block(weights.get("block_structure")))
    if strategy == "tensor" and dtype is Dtype.INT8_W8A8:
        return Quantization(f"{name} per tensor", None)
    return Quantization(name, dtype, per_channel_quant=strategy == "channel")


def _groups(name: str, bits: object, group: object) -> Quantization:
    dtype = {4: Dtype.INT4_W4A16, 8: Dtype.INT8_W8A16}.get(bits if isinstance(bits, int) else 0)
    if isinstance(group, int) and group > 0:
        return Quantization(name, dtype, (0, group) if dtype else None)
    # One group along all of k: the kernel supports int4 only with smaller groups.
    return Quantization(name, dtype if dtype is Dtype.INT8_W8A16 else None)


def _block(value: object) -> tuple[int, int]:
    if isinstance(value, str):  # compressed-tensors may write "128x128"
        value = [int(part) if part.isdecimal() else part for part in value[:20].split("x")]
    match value:
        case [int() as n, int() as k] if n > 0 and k > 0 and max(n, k) < 1 << 20:
            return n, k
    raise MalformedCheckpoint(f"a quantisation block is two positive numbers, not {value!r:.60}")


_METHODS = {
    "fp8": _fp8,
    "blockwise-int8": _blockwise_int8,
    "w8a8-int8": lambda _: Quantization("w8a8_int8", Dtype.INT8_W8A8, per_channel_quant=True),
    "w8a8-fp8": lambda _: Quantization("w8a8_fp8", Dtype.FP8_W8A8, per_channel_quant=True),
    **dict.fromkeys(
        ("gptq", "gptq-marlin", "awq", "awq-marlin", "auto-round", "moe-wna16"), _packed
    ),
}
