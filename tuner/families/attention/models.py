"""Find the attention problems of a rank of a model."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from tuner.engines.engine import engine_module
from tuner.errors import BadProblem
from tuner.families.attention.problem import ENGINE_KV_SPLITS, Attention, AttentionPhase
from tuner.models.attention import AttentionShape, Layers, check_division, sharing_ranks
from tuner.models.model import Model
from tuner.models.serving import Resolved, Serving
from tuner.problems.dtypes import Dtype


def reads(text: str, engine: str = "") -> bool:
    """Say whether an engine's log line or path names an attention file. Engines have no such
    files.
    """
    return False


def problems(model: Model, serving: Serving) -> Resolved:
    """Return the problems of a rank. Raises MalformedCheckpoint, IndivisibleShape or BadProblem."""
    model.refuse_unread("attention")  # before the engine may refuse the family
    tp = sharing_ranks(model.name, serving.tp, serving.options.get("dp", 1))
    rules, shape = _rules(serving.engine), known_attention(model)
    found = attention_problems(
        model,
        tp,
        dtype=serving.dtype,
        page_size=serving.options.get("page_size", 1),
        kv_splits=serving.options.get("kv_splits"),
        engine=serving.engine,
        engine_version=serving.engine_version,
    )
    rules.refuse_ranks(model, shape, tp, serving.engine_version)
    notes = rules.serving_notes(model, shape, tp)
    return Resolved(tuple(found), tuple(notes))


def _rules(engine: str) -> ModuleType:
    """Return the engine's rules for attention: `bindings/<engine>/attention`."""
    return engine_module(engine, "attention")


def attention_problems(
    model: Model,
    tp: int = 1,
    *,
    dtype: Dtype | None = None,
    page_size: int = 1,
    kv_splits: int | None = None,
    engine: str = "sglang",
    engine_version: str | None = None,
) -> list[Attention]:
    """Return the problems of one of `tp` ranks that share the attention: extend, then decode.

    `tp` is --tp-size divided by --dp-size if attention runs data-parallel. Without `kv_splits`,
    decode's number of splits is chosen, or is the flag's default for engine versions that accept no
    other. Raises IndivisibleShape, which names the nearest tp that works, and BadProblem.
    """
    shape = known_attention(model)
    check_division(model.name, shape, tp)
    splits = kv_splits
    if splits is None and not _rules(engine).takes_kv_splits(engine_version):
        splits = ENGINE_KV_SPLITS
    problems = [
        Attention(
            phase,
            q_heads=kind.q_heads,
            kv_heads=kind.kv_heads,
            Lq=kind.head_dim,
            Lv=kind.v_head_dim,
            dtype=dtype or shape.dtype,
            page_size=page_size,
            logit_cap=shape.logit_cap,
            sinks=kind.sinks,
            # Decode gets only the indices of the window's tokens, so its kernel has no window.
            **(
                {"kv_splits": splits} if phase is AttentionPhase.DECODE else {"window": kind.window}
            ),
        )
        for phase, kind in _phases(shape, tp)
    ]
    return list(dict.fromkeys(problems))


def known_attention(model: Model) -> AttentionShape:
    """Return the model's attention. Raises MalformedCheckpoint or BadProblem if it is not known."""
    if model.attention is None:
        model.refuse_unread("attention")
        raise BadProblem(
            f"the attention of {model.name} ({model.architecture}) is not known: give the folder "
            "of its config.json, or the problem itself, extend_attention:q_heads=.."
        )
    return model.attention


def _phases(shape: AttentionShape, tp: int) -> list[tuple[AttentionPhase, Layers]]:
    """Return each phase with a rank's layers. Ranks that share a key head hold a copy each."""
    extend = decode = [
        replace(kind, q_heads=kind.q_heads // tp, kv_heads=max(1, kind.kv_heads // tp))
        for kind in shape.layers
    ]
    if rank := shape.kv_lora_rank:
        decode = [Layers(extend[0].q_heads, 1, rank + shape.qk_rope_head_dim, rank)]
        extend = [*decode, extend[0]]
    return [
        *((AttentionPhase.EXTEND, kind) for kind in extend),
        *((AttentionPhase.DECODE, kind) for kind in decode),
    ]
