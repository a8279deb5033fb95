"""Words for what the API answers: devices, problems, states."""

from __future__ import annotations

_STATUSES = {
    "ok": "measured",
    "incumbent": "the engine's own",
    "out_of_resources": "does not fit",
    "wrong_result": "wrong result",
    "compile_error": "does not compile",
    "compile_timeout": "compiled too long",
    "timed_out": "ran too long",
    "not_recorded": "not in the recording",
    "untuned": "the engine's own",
    "set_aside": "set aside",
    "nothing": "nothing here",
}
_FIELDS = {"top_k": "top", "per_channel_quant": "per channel"}


def device_short(name: str) -> str:
    """A GPU's name without its vendor: H100 80GB HBM3."""
    return name.removeprefix("NVIDIA_").replace("_", " ")


def engine_words(text: str) -> str:
    """An engine and its version: sglang 0.5.16."""
    return text.replace("==", " ")


def status_words(status: str) -> str:
    """A status or state in words."""
    return _STATUSES.get(status, status.replace("_", " "))


def problem_words(text: str) -> str:
    """A problem's text, easier to read: fused moe · E 256 · N 64 · int8_w8a8."""
    kind, _, fields = text.partition(":")
    words = [_field_words(field) for field in fields.split(",") if field]
    return " · ".join([kind.replace("_", " "), *words])


def model_words(model: str, problem: str) -> str:
    """The name of what is tuned: a model's, or the problem's own if no model was named."""
    return problem_words(problem) if not model or model == problem else model


def _field_words(field: str) -> str:
    name, _, value = field.partition("=")
    if name == "dtype":
        return value
    if name in ("block", "block_shape"):
        return f"blocks {value.replace('x', '×')}"
    return f"{_FIELDS.get(name, name.replace('_', ' '))} {value}".strip()
