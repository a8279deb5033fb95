"""Why a pair of configurations was chosen, in words."""

from __future__ import annotations

from tuner.families.fused_moe.pairs import Choice, SizeTrials


def gain(field: SizeTrials, choice: Choice) -> str:
    """How much faster than what the engine runs a pair is, in words."""
    name, incumbent = field.incumbent()
    choice_us = field.total_us(choice)
    incumbent_us = field.total_us(incumbent) if incumbent else None
    assert choice_us is not None  # a chosen pair is timed
    if incumbent_us is None:
        return _why_replaced(field, name) if incumbent else "fastest"
    text = f"{incumbent_us / choice_us:.3f}x as fast as the {name} configuration"
    return f"predicted {text}" if field.predicted else text


def why_nothing_fits(field: SizeTrials) -> str:
    """Why no pair can run at a batch size."""
    why = f"no configuration compiles and fits at batch size {field.batch_size}"
    if field.block is None:
        return why
    return f"{why} with the other gemm's BLOCK_SIZE_M={field.block}: tune both gemms together"


def _why_replaced(field: SizeTrials, name: str) -> str:
    pair = field.incumbents[name].values()
    if field.block is not None and any(c["BLOCK_SIZE_M"] != field.block for c in pair):
        return f"fastest with BLOCK_SIZE_M={field.block}, which the other gemm has"
    return f"the {name} configuration cannot run here"


def kept(name: str, predicted: bool) -> str:
    """Why the incumbent of that name stays."""
    if predicted:
        return f"nothing is predicted to be clearly faster than the {name} configuration"
    return f"the {name} configuration is as fast, within the noise"
