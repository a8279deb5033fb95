"""Write notes for operators on how sglang runs a model's attention."""

from __future__ import annotations

from tuner.engines.dispatch_table import dispatch_table
from tuner.engines.engine import release_of
from tuner.errors import IndivisibleShape
from tuner.models.attention import AttentionShape
from tuner.models.model import Model

_SPARSE = (
    "sglang runs {} with its sparse attention if no --attention-backend is given; "
    "these problems are for --attention-backend triton"
)
_NOTES = {
    "DeepseekV32ForCausalLM": _SPARSE,
    "GlmMoeDsaForCausalLM": _SPARSE,
    "Grok1ForCausalLM": "{} may scale logits by position as well (attn_temperature_len), "
    "which is not timed",
}


# Since then, ranks may divide the parts of merged weights; before, each has a part. The checks are
# beside "requires effective attention TP size" in srt/server_args.py of 0.5.12, 0.5.16 and 0.5.17,
# and in srt/arg_groups/model_hook.py of 0.5.19, 0.5.21, 0.5.22 and 0.5.23.
SHARES_SINCE = (0, 5, 17)


def refuse_ranks(model: Model, shape: AttentionShape, tp: int, engine_version: str | None) -> None:
    """Refuse ranks at which servers stop, because of the checkpoint's layout.

    `tp` ranks share the attention. Without a version, this is the newest release's rule. Raises
    IndivisibleShape.
    """
    made_for = shape.laid_out_for
    shares = engine_version is None or release_of(engine_version) >= SHARES_SINCE
    if not made_for or tp == made_for or (shares and made_for % tp == 0):
        return
    sglang = f"sglang {engine_version}" if engine_version else "sglang"
    raise IndivisibleShape(
        f"{model.name}: {sglang} stops if {tp} ranks share the attention, because the checkpoint "
        f"merges queries, keys and values for {made_for}: give --tp {made_for}, or a --dp with "
        f"which {made_for} ranks share it"
    )


def serving_notes(model: Model, shape: AttentionShape, tp: int) -> list[str]:
    """Return facts about a rank's work that the model's problems do not express."""
    notes = []
    first = shape.layers[0]
    if shape.kv_lora_rank:
        notes.append(
            f"sglang runs the absorbed form ({shape.kv_lora_rank + shape.qk_rope_head_dim} columns)"
            f" if a prefix is cached, and heads of {first.head_dim}/{first.v_head_dim} if not"
        )
    for kind in shape.layers:
        if kind.window:
            which = f"{kind.count} of its layers" if kind.count else "some layers"
            notes.append(f"{which} look back at most {kind.window} tokens (a sliding window)")
        if not shape.kv_lora_rank and tp > kind.kv_heads:
            notes.append(
                f"{tp} ranks share {kind.kv_heads} key heads: {tp // kind.kv_heads} ranks have "
                "copies of each head"
            )
    if note := _NOTES.get(model.architecture):
        notes.append(note.format(model.architecture))
    table = dispatch_table("sglang")
    for one in table.refusals if table else ():
        refusing = [name for name, classes in one.classes.items() if model.architecture in classes]
        if refusing:
            others = [name for name in one.classes if name not in refusing]
            notes.append(
                f"sglang {' and '.join(refusing)} cannot run {model.architecture} with its triton "
                f"attention backend{f', and {others[0]} can' if others else ''}"
            )
    return notes
