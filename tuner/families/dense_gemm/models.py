"""Find the quantised dense GEMMs of a rank, from a model or from an engine's line about a file."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from tuner.engines.engine import engine_module, engine_names, supports
from tuner.errors import BadProblem
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.models.model import Model
from tuner.models.quantization import Quantization
from tuner.models.rank_linears import RankLinear, Ranks, known_linears, linear_layers
from tuner.models.serving import Resolved, Serving
from tuner.problems.dtypes import Dtype


def reads(text: str, engine: str = "") -> bool:
    """Say whether an engine's log line or path names a dense GEMM's config file.

    `engine`: ask only this engine's rules.
    """
    asked = (name for name in _engines() if engine in ("", name))
    return any(_rules(name).parse_warning(text) is not None for name in asked)


def of_line(text: str, serving: Serving) -> Resolved | None:
    """Return the problem of an engine's warning line or config file name; None if the text names no
    such file.

    The problem has the sizes of a rank, so tp and dp do not apply to it. Raises BadProblem.
    """
    for name in _engines():
        found: Resolved | None = _rules(name).resolve_warning(text, serving)
        if found is not None:
            return found
    return None


def problems(model: Model, serving: Serving) -> Resolved:
    """Return the problems of a rank of a model, each shape once, in the order of a forward pass.

    Raises MalformedCheckpoint, IndivisibleShape, or BadProblem for a model without a GEMM that a
    Triton kernel runs.
    """
    model.refuse_unread("linears")  # before the engine may refuse the family
    options, rules = serving.options, _rules(serving.engine)
    shape = known_linears(model)
    ranks = Ranks(
        tp=serving.tp,
        dp=options.get("dp") or 1,
        dense_tp=options.get("moe_dense_tp"),
        shared_tp=1 if options.get("all_to_all") else None,
        fuse_qkv_a=rules.fuses_qkv_a(serving.engine_version),
        fuse_shared=rules.fuses_shared_experts(model, serving),
    )
    scheme = _asked_scheme(serving.dtype, [layer.scheme for layer in shape.layers])
    layers = linear_layers(model, ranks, scheme=scheme)
    read = [layer for layer in layers if layer.dtype is not None]
    if not read:
        reasons = dict.fromkeys(layer.why for layer in layers)
        raise BadProblem(
            f"no Triton GEMM reads the linear layers of {model.name}: {', '.join(reasons)}; "
            "if the engine quantises the weights itself, name their type, e.g. ",
            cli="--dtype fp8_w8a8",
            api="dtype=fp8_w8a8",
        )
    found = dict.fromkeys(_problem(layer, shape.out) for layer in read)
    notes = _notes(layers, len(found))
    if scheme:
        notes.append(_asked_words(model.name, scheme, [layer.scheme for layer in shape.layers]))
    return Resolved(tuple(found), tuple(notes))


def _asked_scheme(dtype: Dtype | None, stored: Sequence[Quantization]) -> Quantization | None:
    """Return the quantisation that replaces the checkpoint's; None: the checkpoint's own stays.

    An engine that quantises weights itself gives each column a scale.
    """
    if dtype is None or any(one.dtype is dtype for one in stored):
        return None
    if dtype not in (Dtype.FP8_W8A8, Dtype.INT8_W8A8):
        raise BadProblem(f"a quantised dense GEMM is fp8_w8a8 or int8_w8a8, not {dtype.value}")
    return Quantization(dtype.value, dtype, per_channel_quant=True)


def _asked_words(name: str, asked: Quantization, stored: Sequence[Quantization]) -> str:
    """Return a note about weights of another type than the checkpoint's."""
    kinds = dict.fromkeys(
        f"{one.kind} in blocks of {'x'.join(map(str, one.block_shape))}"
        if one.block_shape and one.block_shape[0]
        else ("not quantised" if one.kind == "none" else one.kind)
        for one in stored
    )
    return (
        f"the linear layers of {name}'s checkpoint are {' and '.join(kinds)}; {asked.kind} is "
        "tuned with a scale for each channel and no blocks, as an engine quantises weights itself; "
        "for a checkpoint with blocks give its config.json"
    )


def _problem(layer: RankLinear, out: Dtype) -> DenseGemm:
    assert layer.dtype is not None  # the caller leaves other layers out
    return DenseGemm(layer.N, layer.K, layer.dtype, layer.block, out)


def _notes(layers: Sequence[RankLinear], shapes: int) -> list[str]:
    """Return notes: which layers have problems, and which have none."""
    read = [layer for layer in layers if layer.dtype is not None]
    names = ", ".join(dict.fromkeys(layer.name for layer in read))
    notes = [f"the linear layers of a rank have {shapes} shapes: {names}"]
    for why in dict.fromkeys(layer.why for layer in layers if layer.why):
        left = ", ".join(dict.fromkeys(layer.name for layer in layers if layer.why == why))
        notes.append(f"left out ({why}): {left}")
    return notes


def _engines() -> list[str]:
    return [name for name in engine_names() if supports(name, "dense_gemm")]


def _rules(engine: str) -> ModuleType:
    """Return the engine's rules for dense GEMMs: `bindings/<engine>/dense_gemm`."""
    return engine_module(engine, "dense_gemm")
