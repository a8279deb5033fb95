"""Find the fused-MoE layer of a rank, from a model or from an engine's line about a config file.

If quantisation blocks do not divide a rank's columns, the checks and their messages are the
engines' own: sglang's srt/layers/quantization/fp8.py (Fp8MoEMethod.create_weights),
blockwise_int8.py and moe_wna16.py; vLLM's validate_fp8_block_shape_moe in
model_executor/layers/quantization/utils/fp8_utils.py, and moe_wna16.py.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

from tuner.devices.table import Device
from tuner.devices.target import Target, cuda_target
from tuner.engines.engine import engine_module, engine_names, supports
from tuner.errors import BadProblem, IndivisibleShape, LacksLayers, PaddedShape
from tuner.families.fused_moe.engine import NOT_FUSED, Fusion, FusionCase
from tuner.families.fused_moe.problem import FusedMoe
from tuner.families.fused_moe.warning_line import resolve_missing
from tuner.models.model import Model
from tuner.models.serving import Note, Resolved, Serving
from tuner.models.table import sibling
from tuner.problems.dtypes import Dtype

SMALLEST_GROUP = 32

Block = tuple[int, int]


@dataclass(frozen=True)
class Cut:
    """The experts of a rank, whose weights have quantisation blocks."""

    N: int  # columns of an expert's gate on this rank
    K: int  # hidden size
    ranks: int  # how many share an expert
    block: Block  # (n, k); (0, g) = groups along k
    quantization: str  # the checkpoint's name of its format


def exact_block(cut: Cut) -> Block:
    """Return the checkpoint's block. Raises BadProblem, as engines say it, unless it divides N."""
    n, k = cut.block
    if n and cut.N % n:
        raise BadProblem(
            f"the output_size of gate's and up's weight = {cut.N} is not divisible by weight "
            f"quantization block_n = {n}"
        )
    if (cut.ranks > 1 or not n) and cut.N % k:
        what = "block_k" if n else "group_size"
        raise BadProblem(
            f"the input_size of down's weight = {cut.N} is not divisible by weight quantization "
            f"{what} = {k}"
        )
    return cut.block


def exact_cut(cut: Cut) -> Cut:
    """Return the experts as they are. Raises BadProblem: see `exact_block`."""
    return replace(cut, block=exact_block(cut))


def fitted_block(cut: Cut) -> Block:
    """Return the checkpoint's block, with groups of gptq and awq weights halved until they divide.

    moe_wna16.py of both engines (create_weights) halves them down to 32, and repeats the scales.
    compressed-tensors' classes do not. Raises BadProblem.
    """
    if cut.block[0] or cut.quantization.startswith("compressed-tensors"):
        return exact_block(cut)
    group = cut.block[1]
    while cut.N % group or cut.K % group:
        group //= 2
        if group < SMALLEST_GROUP:
            raise BadProblem(
                f"no group size from {cut.block[1]} halved down to {SMALLEST_GROUP} divides both "
                f"N={cut.N} and K={cut.K}"
            )
    return 0, group


_EP_NOTE = (
    "each rank gets all tokens and computes its own experts; an all-to-all backend (DeepEP and "
    "others) sends a rank only its own tokens, which is another load and is not tuned here"
)
_UNGATED = "NemotronH"  # how their classes' names begin


def reads(text: str, engine: str = "") -> bool:
    """Say whether a line or path names a fused-MoE file, by `engine`'s rules or any engine's."""
    asked = (name for name in _engines() if engine in ("", name))
    return any(_rules(name).parse_config_name(text) is not None for name in asked)


def of_line(text: str, serving: Serving) -> Resolved | None:
    """Return the problem of an engine's warning line or config file name; None for others.

    It has the sizes of a rank, so tp, ep and fuse_shared do not apply. Raises BadProblem.
    """
    # Engines give some files the same name, so the asked engine reads the name first.
    for name in sorted(_engines(), key=lambda name: name != serving.engine):
        rules = _rules(name)
        if missing := rules.parse_config_name(text):
            return resolve_missing(missing, serving, rules.fusions)
    return None


def problems(model: Model, serving: Serving) -> Resolved:
    """Return the problems of a rank of a model; few models have more than one.

    Raises MalformedCheckpoint, IndivisibleShape or BadProblem.
    """
    _require_experts(model)
    model = _as_converted(model, serving)
    options = serving.options
    case = FusionCase(
        model,
        serving.engine_version,
        _target(serving),
        tp=serving.tp,
        ep=options.get("ep", 1),
        dtype=serving.dtype,
        all_to_all=options.get("all_to_all", ""),
        force=options.get("fuse_shared"),
    )
    fusion: Fusion = _rules(serving.engine).shared_expert_fusion(case)
    found = [_served(model, serving, fusion)]
    notes = [fusion.why] if model.n_shared_experts else []
    notes += _scheme_notes(model, found[0], serving)
    if width := model.image_intermediate:
        found.append(_served(replace(model, intermediate=width), serving, fusion))
        notes.append(f"experts for text are {model.intermediate} wide, experts for images {width}")
    if found[0].ep > 1:
        notes.append(_EP_NOTE)
    return Resolved(tuple(found), (*notes, *_class_notes(model.architecture)))


# The least share of a model's layers that have experts. The first layers are often dense, and every
# second layer of Llama 4 Maverick is.
_LEAST_SHARE = dict.fromkeys(("Llama4ForConditionalGeneration", "Llama4ForCausalLM"), 0.5)


def too_large(model: Model, problem: FusedMoe, device: Device) -> str:
    """Return a sentence if a rank's experts exceed a card's memory; "" if that is not known."""
    needed = experts_bytes(model, problem)
    if needed is None or needed <= device.memory_bytes:
        return ""
    return (
        f"{model.name} does not fit: its experts alone take at least about {needed / 2**30:.0f} "
        f"GiB of each rank, and {device.name} has {device.memory_bytes / 2**30:.0f} GiB"
    )


def _target(serving: Serving) -> Target:
    return serving.device.target if serving.device else cuda_target(9, 0)


def experts_bytes(model: Model, problem: FusedMoe) -> float | None:
    """Return about the least bytes of a rank's experts; None if they are not known.

    The number of layers is unknown for some models, and for models with Mamba layers, whose
    attention layers have no experts.
    """
    kinds = model.attention.layers if model.attention and not model.mamba else ()
    layers = sum(kind.count for kind in kinds)
    if not layers:
        return None
    layers += model.delta.layers if model.delta else 0
    layer_bytes = problem.E * 3 * problem.N * problem.K * problem.dtype.weight_bits / 8
    return layer_bytes * layers * _LEAST_SHARE.get(model.architecture, 0.9)


def _served(model: Model, serving: Serving, fusion: Fusion) -> FusedMoe:
    rules, target = _rules(serving.engine), _target(serving)
    return moe_problem(
        model,
        serving.tp,
        serving.options.get("ep", 1),
        dtype=serving.dtype,
        block_shape=serving.options.get("block_shape"),
        fusion=fusion,
        rule=lambda cut: rules.rank_cut(cut, serving.engine_version, target),
        release=f"{serving.engine} {serving.engine_version}" if serving.engine_version else "",
    )


def _class_notes(name: str) -> list[str]:
    ungated = name.startswith(_UNGATED)
    return [f"{name}'s experts have no gate; they are timed with a gate"] if ungated else []


def moe_problem(
    model: Model,
    tp: int = 1,
    ep: int = 1,
    *,
    dtype: Dtype | None = None,
    block_shape: tuple[int, int] | None = None,
    fusion: Fusion = NOT_FUSED,
    rule: Callable[[Cut], Cut] = exact_cut,
    release: str = "",
) -> FusedMoe:
    """Return the problem of one of `tp` ranks. Groups of tp / ep ranks share each expert.

    `dtype` replaces the checkpoint's dtype and drops its quantisation block; int8_w8a8 is then per
    channel unless `block_shape` is given. `rule` is the engine's rule for blocks, and `release`
    names the engine's release with this rule.

    Raises IndivisibleShape, naming the nearest parallel size that works, and BadProblem.
    """
    _require_experts(model)
    scheme = _scheme(model, dtype, block_shape)
    stored = scheme[1] == model.block_shape and scheme[0] is model.dtype

    def cut(ranks: int) -> Cut:
        kind = model.quantization if stored else "asked"
        even = Cut(model.intermediate // ranks, model.hidden, ranks, scheme[1] or (0, 0), kind)
        return rule(even) if scheme[1] else even

    rank = _divide(model, tp, ep, cut, release if scheme[1] else "")
    return FusedMoe(
        E=model.E // ep + fusion.experts,
        N=rank.N,
        K=rank.K,
        top_k=model.top_k + fusion.top_k,
        dtype=scheme[0],
        block_shape=rank.block if scheme[1] else None,
        per_channel_quant=scheme[2],
        ep=ep,
        # Before sglang 0.4.7 a token went to one of several copies, drawn like a routed expert.
        shared_experts=fusion.experts if fusion.experts == fusion.top_k else 0,
    )


def _scheme_notes(model: Model, problem: FusedMoe, serving: Serving) -> list[str]:
    """Return notes on the source of the problem's quantisation, if it is not plain."""
    notes: list[str] = []
    if serving.dtype is None and model.doubt:
        notes.append(
            Note(
                f"{model.doubt}: {model.name} is taken as {problem.dtype.value}; if servers run "
                "another type, name it, e.g. ",
                cli="--dtype fp8_w8a8",
                api="dtype=fp8_w8a8",
            )
        )
    if serving.dtype and serving.dtype is not model.dtype and problem.dtype.weight_bits == 8:
        notes.append(_asked_words(model, problem, serving))
    wanted = serving.options.get("block_shape") or model.block_shape
    engine = f"{serving.engine} {serving.engine_version or ''}".strip()
    even = (model.intermediate * problem.ep // serving.tp, model.hidden)
    if problem.block_shape and (padded := _sizes_changed(problem, even)):
        block = _block_words(problem.block_shape)
        notes.append(f"{engine} pads experts to whole blocks of {block}: {padded}")
    if problem.block_shape and wanted and problem.block_shape != wanted:
        what = "groups" if problem.grouped else "quantisation blocks"
        sizes = [_block_words(block) for block in (wanted, problem.block_shape)]
        old = "" if problem.grouped else _rules(serving.engine).BLOCKS_REFUSED
        stops = f"; {serving.engine} {old} and older stop at this shape" if old else ""
        notes.append(
            f"{engine} makes the {what} of {sizes[0]} smaller, {sizes[1]}: N={problem.N}{stops}"
        )
    return notes


def _sizes_changed(problem: FusedMoe, even: tuple[int, int]) -> str:
    """Say which sizes of a rank are not the model's, divided by the ranks: "N=256 for 192"."""
    sizes = zip("NK", (problem.N, problem.K), even, strict=True)
    return " and ".join(f"{name}={has} for {was}" for name, has, was in sizes if has != was)


def _asked_words(model: Model, problem: FusedMoe, serving: Serving) -> str:
    """Return a note on weights of another type than the checkpoint's, with alternatives."""
    has = model.dtype.value if model.dtype else model.quantization
    if model.block_shape:
        has += f" in {'groups' if not model.block_shape[0] else 'blocks'} of {_sized(model)}"
    as_asked = f"{model.name}'s checkpoint is {has}; {problem.dtype.value} is tuned with "
    weight_only = problem.dtype.activation_bits == 16  # its kernel reads a scale for each column
    kind = "groups" if weight_only else "blocks"
    if problem.block_shape:
        return f"{as_asked}{kind} of {_block_words(problem.block_shape)}, as asked"
    each = "channel" if weight_only or problem.per_channel_quant else "tensor"
    other, stored = "", sibling(model, problem.dtype)
    if stored and stored.block_shape:
        other = f"; {stored.name} has {kind} of {_sized(stored)}: name that preset"
    elif stored:
        other = f"; {stored.name} has a scale for each channel: name that preset"
        other = f", like {stored.name}" if problem.per_channel_quant else other
    rows = 0 if weight_only else 128
    return Note(
        f"{as_asked}a scale for each {each} and no {kind}{other}; "
        f"for a checkpoint with {kind} add ",
        cli=f"--block-shape {rows}x128, or give its config.json",
        api=f"block_shape=[{rows}, 128], or post its config.json",
    )


def _sized(model: Model) -> str:
    return _block_words(model.block_shape or (0, 0))


def _block_words(block: Block) -> str:
    rows, columns = block
    return f"{rows}x{columns}" if rows else str(columns)


def _require_experts(model: Model) -> None:
    model.refuse_unread("experts")
    if not model.E:
        raise LacksLayers(
            f"{model.name} ({model.architecture}) has no experts: not a mixture-of-experts model"
        )


def _as_converted(model: Model, serving: Serving) -> Model:
    """Return the model with the weights that servers make of 16-bit weights as they load.

    Raises BadProblem if neither the engine's rules nor the user say what servers make.
    """
    if not serving.converts or model.quantization != "none":
        return model
    made = _rules(serving.engine).converted(serving.converts, serving.engine_version)
    if made and serving.dtype in (None, made.dtype):
        return replace(
            model,
            quantization=made.kind,
            dtype=made.dtype,
            block_shape=made.block_shape,
            per_channel_quant=made.per_channel_quant,
        )
    if serving.dtype is None:
        assert model.dtype is not None
        raise BadProblem(
            f"with --quantization {serving.converts} servers do not run {model.name}'s weights as "
            f"{model.dtype.value}, and which type they run is not read here: if it is tuned here, "
            "name it, e.g. ",
            cli="--dtype int8_w8a16",
            api="dtype=int8_w8a16",
        )
    return model


def _scheme(
    model: Model, dtype: Dtype | None, block_shape: tuple[int, int] | None
) -> tuple[Dtype, tuple[int, int] | None, bool]:
    """Return (dtype, quantisation block, whether each channel has a scale). Raises BadProblem."""
    if dtype is None and model.dtype is None:
        raise BadProblem(
            f"{model.name} is stored as {model.quantization}, which the Triton fused-MoE kernel "
            "cannot read: engines run other kernels for it, which read no tuned files, or stop. If "
            "servers convert the experts to another type at start, name that, e.g. ",
            cli="--dtype bfloat16 or --dtype fp8_w8a8",
            api="dtype=bfloat16 or dtype=fp8_w8a8",
        )
    dtype = dtype or model.dtype
    assert dtype is not None
    if block_shape is not None:
        return dtype, block_shape, False
    if dtype is model.dtype:
        return dtype, model.block_shape, model.per_channel_quant
    return dtype, None, dtype is Dtype.INT8_W8A8


def _divide(model: Model, tp: int, ep: int, cut: Callable[[int], Cut], release: str) -> Cut:
    """Return the experts of a rank, as `cut` gives them for the ranks of an expert.

    Other releases than `release` may cut a block elsewhere, so errors name it. Raises
    IndivisibleShape, or BadProblem for sizes below 1.
    """
    if tp < 1 or ep < 1:
        raise BadProblem(f"tensor- and expert-parallel sizes start at 1, not tp={tp}, ep={ep}")
    if tp % ep or model.E % ep:
        both = math.gcd(tp, model.E)
        near = _nearest(ep, [n for n in range(1, both + 1) if both % n == 0])
        raise IndivisibleShape(
            f"ep={ep} does not divide tp={tp} and the {model.E} experts of {model.name}; "
            f"the nearest that does is ep={near}"
        )
    N, rest = divmod(model.intermediate, tp // ep)
    if rest:
        what = f"tp={tp} / ep={ep} does not divide the intermediate size {model.intermediate}"
    else:
        try:
            return cut(tp // ep)
        except PaddedShape as error:
            raise PaddedShape(f"{model.name}: tp={tp} leaves N={N}: {error}") from None
        except BadProblem as error:
            what = f"tp={tp} leaves N={N}, which the engine refuses: {error}"
    near_tp = _nearest(tp, [ep * n for n in _tensor_parallel_sizes(model.intermediate, cut)])
    of_it = f" with {release}" if release else ""
    if near_tp:
        advice = f"the nearest that works{of_it} is tp={near_tp}"
    else:
        advice = f"no tp works with this block{of_it}"
    raise IndivisibleShape(f"{model.name}: {what}; {advice}", **_whole_experts(model, tp, cut))


def _whole_experts(model: Model, tp: int, cut: Callable[[int], Cut]) -> dict[str, str]:
    """Return the words that name expert parallelism at this tp, if ranks may hold whole experts."""
    if model.E % tp or 1 not in _tensor_parallel_sizes(model.intermediate, cut):
        return {}
    flags = f"sglang's --ep-size {tp} or vLLM's --enable-expert-parallel a rank holds whole experts"
    return {"cli": f"; with {flags}: add --ep {tp}", "api": f"; with {flags}: ep={tp}"}


def _tensor_parallel_sizes(intermediate: int, cut: Callable[[int], Cut]) -> list[int]:
    """Return how many ranks may share an expert: powers of two, because heads divide so."""
    found = []
    for n in (1 << exponent for exponent in range(intermediate.bit_length())):
        if intermediate % n == 0:
            with contextlib.suppress(BadProblem):
                cut(n)
                found.append(n)
    return found


def _nearest(wanted: int, choices: list[int]) -> int | None:
    return min(choices, key=lambda n: (abs(n - wanted), n), default=None)


def _engines() -> list[str]:
    return [name for name in engine_names() if supports(name, "fused_moe")]


def _rules(engine: str) -> ModuleType:
    """Return the engine's rules for fused-MoE layers: `bindings/<engine>/fused_moe`."""
    return engine_module(engine, "fused_moe")
