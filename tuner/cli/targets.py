"""What a command line names -> the problems to tune. Imports late, so that --help is quick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.devices.table import Device
    from tuner.families.attention.models import ResolvedAttention
    from tuner.families.attention.workloads import Workload
    from tuner.families.fused_moe.problem import Dtype
    from tuner.problems.text import Problem

BOTH_GEMMS = "up,down"  # what --gemm is where it is not given


@dataclass(frozen=True)
class Given:
    """What every target is read with."""

    target: str
    device: Device
    engine_version: str | None
    tp: int
    dtype: Dtype | None


@dataclass(frozen=True)
class Work:
    """Problems to tune, each with its workload where it is attention, and notes for the user."""

    work: Sequence[tuple[Problem, Workload | None]]
    notes: Sequence[str]


def moe_work(
    given: Given,
    ep: int,
    block_shape: tuple[int, int] | None = None,
    hidden_size: int | None = None,
    top_k: int | None = None,
    fuse_shared: bool | None = None,
) -> Work:
    """The fused-MoE layer that a target names; raises as `resolve` does."""
    from tuner.families.fused_moe.models import resolve

    resolved = resolve(
        given.target,
        tp=given.tp,
        ep=ep,
        dtype=given.dtype,
        block_shape=block_shape,
        engine_version=given.engine_version,
        device=given.device,
        hidden_size=hidden_size,
        top_k=top_k,
        fuse_shared=fuse_shared,
    )
    return Work([(resolved.problem, None)], resolved.notes)


def attention_work(
    given: Given, workload: str | None = None, page_size: int = 1, kv_splits: int | None = None
) -> Work:
    """The attention problems that a target names, each phase with its points.

    Raises BadInput for an option that does not apply to the target, and as `resolve_attention`.
    """
    from tuner.families.attention.models import resolve_attention
    from tuner.families.attention.workloads import parse_workload

    _refuse_options_of_models(given, page_size, kv_splits)
    resolved = resolve_attention(
        given.target,
        tp=given.tp,
        dtype=given.dtype,
        engine_version=given.engine_version,
        device=given.device,
        page_size=page_size,
        kv_splits=kv_splits,
    )
    points = {p.phase: parse_workload(workload, p.phase) for p in resolved.problems if workload}
    return Work([(p, points.get(p.phase)) for p in resolved.problems], resolved.notes)


def problems_to_ship(
    specs: Sequence[str], model: Given | None, ep: int = 1, fuse_shared: bool | None = None
) -> list[Problem]:
    """The problems of `--problem` and `--model`: a model has a fused-MoE layer, attention, or both.

    Raises as `resolve` does where the model has neither, or tp does not divide it.
    """
    from tuner.errors import BadInput, IndivisibleShape
    from tuner.problems.text import parse_problem

    found = [parse_problem(spec) for spec in specs]
    if model is None:
        return found
    refusals: list[BadInput] = []
    try:
        found += [problem for problem, _ in moe_work(model, ep, fuse_shared=fuse_shared).work]
    except IndivisibleShape:
        raise
    except BadInput as error:
        refusals.append(error)
    try:
        # A layer's quantisation says nothing of its attention's dtype.
        found += [problem for problem, _ in attention_work(replace(model, dtype=None)).work]
    except BadInput as error:
        refusals.append(error)
    if len(refusals) == 2:
        raise refusals[0]
    return found


def refuse_attention_options(workload: str | None, page_size: int, kv_splits: int | None) -> None:
    """Raises BadInput where an option of attention's is given without attention."""
    from tuner.errors import BadInput

    given = {
        "--workload": workload is not None,
        "--page-size": page_size != 1,
        "--kv-splits": kv_splits is not None,
    }
    for option, is_given in given.items():
        if is_given:
            raise BadInput(f"{option} is for attention: add --attention, or leave it out")


def refuse_layer_options(
    ep: int,
    block_shape: str | None,
    fuse_shared: bool | None,
    hidden_size: int | None,
    top_k: int | None,
    batch_sizes: str | None,
    gemm: str,
    wide: bool | None,
) -> None:
    """Raises BadInput where an option of a fused-MoE layer is given for attention."""
    from tuner.errors import BadInput

    given = {
        "--ep": ep != 1,
        "--block-shape": block_shape is not None,
        "--fuse-shared" if fuse_shared else "--no-fuse-shared": fuse_shared is not None,
        "--hidden-size": hidden_size is not None,
        "--top-k": top_k is not None,
        "--batch-sizes": batch_sizes is not None,
        "--gemm": gemm != BOTH_GEMMS,
        "--wide" if wide else "--grid": wide is not None,
    }
    for option, is_given in given.items():
        if is_given:
            raise BadInput(f"{option} is for a fused-MoE layer, not for attention: leave it out")


def _refuse_options_of_models(given: Given, page_size: int, kv_splits: int | None) -> None:
    """Raises BadInput where an attention problem, which says all itself, is given more."""
    from tuner.errors import BadInput
    from tuner.problems.text import names_attention

    if not names_attention(given.target):
        return
    more = {
        "--tp": given.tp != 1,
        "--dtype": given.dtype is not None,
        "--page-size": page_size != 1,
        "--kv-splits": kv_splits is not None,
    }
    for option, is_given in more.items():
        if is_given:
            raise BadInput(f"{option} is for a model: an attention problem says all itself")


def attention_to_check(
    given: Given, others: Sequence[str], hidden_size: int | None, top_k: int | None
) -> ResolvedAttention:
    """The attention of the one model that `check --attention` takes; raises BadInput."""
    from tuner.errors import BadInput
    from tuner.families.attention.models import resolve_attention

    if others:
        raise BadInput(f"--attention takes one model: leave {others[0]!r} out")
    if hidden_size is not None or top_k is not None:
        raise BadInput("--hidden-size and --top-k are for config files: leave --attention out")
    _refuse_options_of_models(given, page_size=1, kv_splits=None)
    return resolve_attention(
        given.target, tp=given.tp, engine_version=given.engine_version, device=given.device
    )


def refuse_tp(tp: int) -> None:
    """Raises BadInput where --tp is given for config files, whose names say what they are for."""
    from tuner.errors import BadInput

    if tp != 1:
        raise BadInput("--tp is for a model's attention: add --attention, or leave it out")
