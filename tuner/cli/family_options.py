"""Add the options that each family of kernels lists to commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from tuner.cli.help import OF_FAMILIES
from tuner.cli.workload import FIELD, is_observed
from tuner.problems.options import Option
from tuner.problems.registry import Family, families

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
