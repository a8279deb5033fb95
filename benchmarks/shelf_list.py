"""The fused-MoE problems that the shelf measures, those of the most used models first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.devices.table import Device
from tuner.engines.dispatch import what_runs
from tuner.engines.engine import Engine, names_model
from tuner.engines.settings import of_model, settings_to_keep, with_experts
from tuner.errors import BadInput
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.models import experts_bytes, problems
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.models.model import Model
from tuner.models.serving import Serving
from tuner.models.table import presets
from tuner.problems.points import ServerSettings

# How names of models begin, the most used first.
KNOWN = (
    *("deepseek-r1", "deepseek-v3", "kimi-k2", "qwen3-235b", "qwen3-30b", "qwen3-coder"),
    *("qwen3-next", "qwen3.5", "qwen3.6", "qwen3-vl", "glm-4", "glm-5", "minimax", "mixtral"),
    *("llama-4", "ernie", "mimo", "step", "deepseek-v2", "deepseek-v4", "hunyuan", "ling"),
    *("deepseek-r1-channel", "deepseek-r1-block"),
)
LAYERS = 40  # of a model whose number of layers is not known
NODE = 8  # cards of a node
CROWDED = 0.75  # the share of a card that experts may take where one node is enough


@dataclass(frozen=True)
class Wanted:
    """Name a problem to measure, and the models that have it."""

    problem: FusedMoe
    models: tuple[str, ...]  # as "deepseek-r1 tp 8"
    server: ServerSettings  # of the first model's servers


@dataclass(frozen=True)
class _Use:
    """Describe one way of serving a model that runs a problem."""

    problem: FusedMoe
    name: str
    server: ServerSettings
    order: tuple[int, int, int]


def wanted_problems(engine: Engine, card: Device) -> list[Wanted]:
    """Return the problems to measure. If several have files of one name, the most used counts."""
    by_problem: dict[FusedMoe, list[_Use]] = {}
    for use in sorted(_uses(engine, card), key=lambda use: use.order):
        by_problem.setdefault(use.problem, []).append(use)
    sorted_uses = sorted(by_problem.values(), key=lambda uses: (uses[0].order[:2], -len(uses)))
    moe, found = moe_engine(engine), dict[str, Wanted]()
    for uses in sorted_uses:
        problem = uses[0].problem
        wanted = Wanted(problem, tuple(use.name for use in uses), uses[0].server)
        found.setdefault(moe.file_name(problem, card, Gemm.UP), wanted)
    return list(found.values())


def _uses(engine: Engine, card: Device) -> Iterator[_Use]:
    for model in presets():
        if not model.E or not names_model(engine.name, engine.version, model.architecture):
            continue
        fitting = [tp for tp in (1, 2, 4, 8, 16, 32) if _fits(model, engine, card, tp)]
        usual = [tp for tp in fitting if tp <= NODE]
        if len(usual) < len(fitting) and not _fits(model, engine, card, NODE, CROWDED):
            usual = fitting[: len(usual) + 1]
        for at, tp in enumerate(usual):
            for ep in dict.fromkeys((1, tp)):
                odd = 2 if ep > 1 else int(0 < at < len(usual) - 1)
                yield from _served(model, engine, card, tp, ep, odd)


def _fits(model: Model, engine: Engine, card: Device, tp: int, share: float = 1.0) -> bool:
    """Tell whether the experts of one rank fit that share of a card, if tp divides the model."""
    problem = _resolved(model, engine, card, tp, 1) or _resolved(model, engine, card, tp, tp)
    if problem is None:
        return False
    layer_bytes = problem.E * 3 * problem.N * problem.K * problem.dtype.weight_bits / 8
    needed = experts_bytes(model, problem) or LAYERS * layer_bytes
    return needed <= share * card.memory_bytes


def _resolved(model: Model, engine: Engine, card: Device, tp: int, ep: int) -> FusedMoe | None:
    serving = Serving(engine.name, engine.version, card, tp, options={"ep": ep})
    try:
        problem = problems(model, serving).problems[0]
    except BadInput:
        return None
    assert isinstance(problem, FusedMoe)
    return problem


def _served(
    model: Model, engine: Engine, card: Device, tp: int, ep: int, odd: int
) -> Iterator[_Use]:
    """Yield the use, unless servers surely run another kernel than Triton's."""
    problem = _resolved(model, engine, card, tp, ep)
    if problem is None:
        return
    flags = with_experts(engine.name, of_model({}, model.name), ep)
    runs = what_runs(engine.name, engine.version, problem, card, flags)
    if runs is not None and not any(kernel.triton for kernel in runs.kernels):
        return
    known = max((name for name in KNOWN if model.name.startswith(name)), key=len, default="")
    rank = KNOWN.index(known) if known else len(KNOWN)
    yield _Use(
        problem,
        f"{model.name} tp {tp}" + (f" ep {ep}" if ep > 1 else ""),
        settings_to_keep(engine.name, problem, flags),
        (odd, rank, -tp),
    )
