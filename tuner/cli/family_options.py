"""Add the options that each family of kernels lists to commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tuner.cli.help import OF_FAMILIES
from tuner.errors import BadInput, MalformedBenchmark, MalformedWorkload, UnreadableLog
from tuner.problems.options import Option
from tuner.problems.registry import Family, families

if TYPE_CHECKING:
    from tuner.engines.logs.workload import WeightedBatch
    from tuner.problems.points import Problem
    from tuner.problems.registry import Family


FIELD = "workload"  # of requests for attention


def is_observed(text: object) -> bool:
    """Whether the value of --workload names what a server did, and not a use or a TOML file.

    The name of a use has neither dot nor slash, so a folder of that name is not taken for it.
    """
    if not isinstance(text, str) or text.endswith(".toml") or not {".", "/"} & set(text):
        return False
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def observed_fields(path: Path, family: Family, problem: Problem) -> dict[str, Any]:
    """The fields of a request of a family that select the batches.

    Raises MalformedWorkload where the source says too little.
    """
    from tuner.engines.logs.workload import points, sizes

    batches = _batches(path)
    names = {option.name for option in family.selecting}
    if FIELD not in names:
        usual = family.read_selection(problem, {}).points(problem)
        found = sizes(batches, sorted({point.batch_size for point in usual}))
        return {"batch_sizes": found}
    chosen = points(batches)
    if not chosen:
        raise MalformedWorkload(
            f"{path} does not say how many tokens are cached: give the server's log, or a benchmark"
        )
    return {
        FIELD: [
            {
                "batch_size": batch.sequences,
                "new_tokens": batch.new_tokens,
                "cached_tokens": batch.cached_tokens,
                "weight": batch.weight,
            }
            for batch in chosen
        ]
    }


@cache
def _batches(path: Path) -> tuple[WeightedBatch, ...]:
    """The batches of a server's log, or of the results of a benchmark."""
    return tuple(_of_log(path) or _of_benchmark(path))


def _of_log(path: Path) -> list[WeightedBatch]:
    from tuner.engines.logs.workload import batches_of_log

    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return batches_of_log(lines)
    except OSError as error:
        raise UnreadableLog(f"{path} cannot be read: {error.strerror}") from None


def _of_benchmark(path: Path) -> list[WeightedBatch]:
    from tuner.deploy.bench_report import read_samples
    from tuner.engines.logs.workload import batches_of_load, merged

    try:
        keys = {sample.key: None for sample in read_samples(path)}
    except MalformedBenchmark:
        raise BadInput(
            f"{path} names no batch: give a server's log with `Decode batch` lines, or results "
            "of a benchmark"
        ) from None
    loads = [batches_of_load(k.concurrency, k.input_len, k.output_len) for k in keys]
    return merged(batch for load in loads for batch in load if batch.sequences)


R = TypeVar("R")


@dataclass(frozen=True)
class FamilyChoice:
    """The family and the family options that a command line gives."""

    family: Family | None  # selected by its flag
    values: Mapping[str, Any]  # given options only, by the name of the field
    observed: Path | None = None  # what shows the batches of a server, for any family

    def of(self, options: tuple[Option, ...]) -> dict[str, Any]:
        """The values of some options, parsed for a request. Raises BadInput."""
        return {o.name: o.parse(self.values[o.name]) for o in options if o.name in self.values}


def with_family_options(command: Callable[..., R]) -> Callable[..., R]:
    """Replace the parameter `choice: FamilyChoice` of a command with all options of all families,
    and with the flags that select families.
    """
    options = _by_name(o for family in families() for o in family.options)
    return _with_options(command, options, "Tune {} of the model, not a fused-MoE layer.")


def with_model_options(command: Callable[..., R]) -> Callable[..., R]:
    """Like `with_family_options`, with only the options that turn a model into problems."""
    options = _by_name(o for family in families() for o in family.shaping)
    return _with_options(command, options, "Of a model, {} alone.")


def _by_name(options: Iterable[Option]) -> dict[str, Option]:
    """The options by name. Several families may have one; the first of them describes it."""
    found: dict[str, Option] = {}
    for option in options:
        found.setdefault(option.name, option)
    return found


def _with_options(
    command: Callable[..., R], options: Mapping[str, Option], flag_help: str
) -> Callable[..., R]:
    flags = {family.name: family for family in families() if family.flag}

    @wraps(command)
    def wrapper(**values: Any) -> R:  # noqa: ANN401  # as Typer calls it
        asked = [family for name, family in flags.items() if values.pop(name)]
        taken = {name: values.pop(name) for name in options}
        given = {name: value for name, value in taken.items() if value is not None}
        observed = Path(given.pop(FIELD)) if is_observed(given.get(FIELD)) else None
        choice = FamilyChoice(asked[0] if asked else None, given, observed)
        return command(choice=choice, **values)

    own = inspect.signature(command, eval_str=True).parameters.values()
    # Typer passes parameters by name, and options have no order among arguments.
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [one.replace(kind=kind) for one in own if one.name != "choice"]
    parameters += [_flag(name, family, flag_help) for name, family in flags.items()]
    parameters += [_parameter(option) for option in options.values()]
    setattr(wrapper, OF_FAMILIES, frozenset({*flags, *options}))
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
    return wrapper


def _flag(name: str, family: Family, help_text: str) -> inspect.Parameter:
    annotation = Annotated[bool, typer.Option(family.flag, help=help_text.format(family.title))]
    return _keyword(name, annotation, default=False)


def _parameter(option: Option) -> inspect.Parameter:
    return _keyword(
        option.name,
        Annotated[option.kind | None, typer.Option(option.flag, help=option.help)],
        default=None,
    )


def _keyword(name: str, annotation: object, *, default: object) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
