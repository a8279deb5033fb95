"""Find the kernel of a model that needs so many bytes of shared memory, as it is launched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from tuner.devices.table import Device
from tuner.engines.engine import Engine
from tuner.errors import BadInput, TunerError
from tuner.measure.workbench import Workbench
from tuner.models.serving import Serving
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Config, Point, Problem
from tuner.problems.registry import Family, family_of
from tuner.problems.results import MeasureKind
from tuner.targets import resolve_target
from tuner.tuning.request import Request, Source, prepare
from tuner.tuning.run import own_launches

_Failed = dict[str, str]  # why kernels could not be compiled, by the family
# Checkpoints of a model differ in these types; a server's log seldom names the type.
_OTHERS = (Dtype.FP8_W8A8, Dtype.BFLOAT16, Dtype.INT8_W8A8)


@dataclass(frozen=True)
class Needs:
    """Hold the needs of a model's kernels, compiled."""

    required: int  # bytes of shared memory, which a server's message names
    engine: Engine
    found: Sequence[str]  # sentences on the launches that need exactly these bytes
    problems: Sequence[Problem]  # of these launches
    own: bool  # they are of the checkpoint as it is described, and not of another type of it
    compiled: int  # launches
    failed: Mapping[str, str]  # why kernels of a family could not be compiled


def that_need(
    required: int, model: str, tp: int, engine: Engine, device: Device, among: Sequence[Family]
) -> Needs:
    """Compile the engine's launches for a rank of a model, and compare them with `required`.

    `model` is a preset or the path of a config.json. If no launch needs these bytes, other types of
    its weights are compiled too. Launches that cannot be compiled here are in `failed`.
    """
    serving = Serving(engine.name, engine.version, device, tp)
    failed: dict[str, str] = {}
    asked = _problems(model, serving, among, failed)
    needs = _compiled(required, asked, engine, device, failed)
    if needs.found:
        return needs
    total, seen = needs.compiled, set(asked)
    for dtype in _OTHERS:
        some = _problems(model, replace(serving, dtype=dtype), among, {})
        others = dict.fromkeys([*map(_without_blocks, some), *some])
        again = _compiled(required, [p for p in others if p not in seen], engine, device, {})
        total, seen = total + again.compiled, seen | set(others)
        if again.found:
            return replace(again, own=False, failed=failed)
    return replace(needs, compiled=total)


def _problems(
    model: str, serving: Serving, among: Sequence[Family], failed: dict[str, str]
) -> list[Problem]:
    found: list[Problem] = []
    for family in among:
        try:
            found += resolve_target(model, serving, family=family).problems
        except BadInput as error:
            failed[family.title] = str(error)
    return found


def _without_blocks(problem: Problem) -> Problem:
    """Return the problem with weights that are quantised per channel or tensor."""
    names = {one.name for one in fields(problem)}  # type: ignore[arg-type]
    if "block_shape" not in names or getattr(problem, "dtype", None) is not Dtype.FP8_W8A8:
        return problem
    return replace(problem, block_shape=None)  # type: ignore[type-var]


def _compiled(
    required: int, problems: Sequence[Problem], engine: Engine, device: Device, failed: _Failed
) -> Needs:
    found: dict[tuple[Problem, str, Config], list[Point]] = {}
    count = 0
    with Workbench() as workbench:
        for problem in problems:
            request = Request(problem, device, engine, Source(MeasureKind.GPU))
            try:
                launches = own_launches(prepare(request), workbench)
                for name, one, compiled in launches:
                    if compiled.lost:
                        failed[family_of(problem).title] = compiled.detail
                    count += not compiled.lost
                    if compiled.shared_bytes == required:
                        found.setdefault((problem, name, one.config), []).append(one.point)
            except (TunerError, ImportError) as error:  # the base installation has no NumPy
                failed[family_of(problem).title] = str(error)
    return Needs(
        required,
        engine,
        [_sentence(required, *place, points) for place, points in found.items()],
        list(dict.fromkeys(problem for problem, *_ in found)),
        own=True,
        compiled=count,
        failed=failed,
    )


def _sentence(
    required: int, problem: Problem, name: str, config: Config, points: Sequence[Point]
) -> str:
    parts = " and ".join(dict.fromkeys(point.part.value for point in points))
    first, last = min(points).size, max(points).size
    at = first if first == last else f"{first} to {last}"
    return (
        f"{family_of(problem).title}, {parts}: the engine's {name} configuration at {at} needs "
        f"exactly {required:,} bytes ({config.key}; {problem.spec()})"
    )


def in_words(needs: Needs) -> Iterator[str]:
    """Yield sentences on the compiled launches, for people."""
    as_launched = f"as {needs.engine.name} {needs.engine.version} launches them"
    if needs.found:
        if not needs.own:
            yield (
                "Nothing needs these bytes with the weights that the model's name says; with other "
                f"weights of it, compiled {as_launched}:"
            )
        yield from (f"{sentence}." for sentence in needs.found)
    elif needs.compiled:
        left = "the constants of a config file, another release, or a kernel that is not known here"
        yield (
            f"None of {needs.compiled} launches of this model's kernels, compiled {as_launched}, "
            f"needs {needs.required:,} bytes. What is left is {left}."
        )
    for title, why in needs.failed.items():
        yield f"Not compiled here: {title}, because {why}."
