"""Add the options that each family of kernels lists to commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tuner.cli import complete
from tuner.cli.options import Families
from tuner.errors import BadInput, MalformedBenchmark, MalformedWorkload, UnreadableLog
from tuner.problems.options import EP, Option
from tuner.problems.registry import Family, families

if TYPE_CHECKING:
    from tuner.engines.logs.workload import WeightedBatch
    from tuner.problems.points import Problem
    from tuner.targets import FamilyNames


FIELD = "workload"  # of requests for attention


def is_observed(text: object) -> bool:
    """Return whether the value of --workload names a log or results, and not a use or a TOML file.

    The name of a use has neither dot nor slash, so a folder of that name is not taken for it.
    """
    if not isinstance(text, str) or text.endswith(".toml") or not {".", "/"} & set(text):
        return False
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def observed_fields(path: Path, family: Family, problem: Problem) -> dict[str, Any]:
    """Return the fields of a request of a family that select the batches.

    Raises MalformedWorkload if the source says too little.
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
    """Read the batches of a server's log, or of the results of a benchmark."""
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

    names: FamilyNames  # of --family
    values: Mapping[str, Any]  # given options only, by the name of the field
    observed: Path | None = None  # what shows the batches of a server, for any family

    @property
    def family(self) -> Family | None:
        """Return the family that is named alone; None for none, several and `all`."""
        from tuner.targets import families_named

        return families_named(self.names)[0] if len(self.names) == 1 else None

    @property
    def several(self) -> bool:
        """Return whether several families are named, or all."""
        return len(self.names) > 1

    def of(self, options: tuple[Option, ...]) -> dict[str, Any]:
        """Return the values of some options, parsed for a request. Raises BadInput."""
        return {o.name: o.parse(self.values[o.name]) for o in options if o.name in self.values}


def with_family_options(command: Callable[..., R]) -> Callable[..., R]:
    """Replace the parameter `choice: FamilyChoice` of a command with --family, and with all options
    of all families.
    """
    return _with_options(command, _by_name(o for family in families() for o in family.options))


def with_model_options(command: Callable[..., R]) -> Callable[..., R]:
    """Do as `with_family_options`, with only the options that turn a model into problems."""
    return _with_options(command, _by_name(o for family in families() for o in family.shaping))


def _by_name(options: Iterable[Option]) -> dict[str, Option]:
    """Return the options that commands have, by name. Several families may have the same option;
    the first of them describes it.
    """
    found: dict[str, Option] = {}
    for option in options:
        if option.offered:
            found.setdefault(option.name, option)
    return found


def _with_options(command: Callable[..., R], options: Mapping[str, Option]) -> Callable[..., R]:
    @wraps(command)
    def wrapper(family: str, help_family: None, **values: Any) -> R:  # noqa: ANN401  # of Typer
        from tuner.targets import read_family_names

        taken = {name: values.pop(name) for name in options}
        given = {name: value for name, value in taken.items() if value is not None}
        observed = Path(given.pop(FIELD)) if is_observed(given.get(FIELD)) else None
        choice = FamilyChoice(read_family_names(family), given, observed)
        return command(choice=choice, **values)

    own = inspect.signature(command, eval_str=True).parameters.values()
    # Typer passes parameters by name, and options have no order among arguments.
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters: list[inspect.Parameter] = []
    for one in own:
        if one.name == "choice":
            parameters += [_keyword("family", Families, default="")]
            parameters += [_keyword("help_family", HelpFamily, default=None)]
        else:
            parameters.append(one.replace(kind=kind))
        if one.name == "tp":
            parameters.append(_parameter(EP))
    parameters += [_parameter(option) for option in options.values() if option is not EP]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
    return wrapper


def _parameter(option: Option) -> inspect.Parameter:
    """Make an option of a command. The help of a family shows it; the command's, only --ep."""
    declared = typer.Option(option.flag, help=option.help, hidden=option is not EP)
    return _keyword(option.name, Annotated[option.kind | None, declared], default=None)


def _keyword(name: str, annotation: object, *, default: object) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _show_family(context: typer.Context, name: str | None) -> None:
    """Print the options of a family that the command has, and end it."""
    from tuner.targets import families_named

    if name is None or context.resilient_parsing:
        return
    try:
        (family,) = families_named([name])
    except BadInput as error:
        raise typer.BadParameter(str(error)) from None
    names = {option.name for option in family.options}
    records = []
    for parameter in context.command.params:
        if parameter.name in names:
            shown = copy(parameter)
            shown.hidden = False  # type: ignore[attr-defined]
            records.append(shown.get_help_record(context))
    formatter = context.make_formatter()
    formatter.write(f"A problem: {family.example}\n")
    with formatter.section(f"Options for {family.title}"):
        formatter.write_dl(list(filter(None, records)) or [("none", "for this command")])
    typer.echo(formatter.getvalue(), nl=False)
    raise typer.Exit


HelpFamily = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=complete.families,
        callback=_show_family,
        is_eager=True,
        help="Show a family's problem and the options for its sizes, and exit.",
    ),
]
