"""The options that families of kernels add to commands: each family lists its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer

from tuner.problems.registry import Family, Option, families

R = TypeVar("R")


@dataclass(frozen=True)
class FamilyChoice:
    """What a command line says of families."""

    family: Family | None  # asked for by its flag
    values: Mapping[str, Any]  # by the name of an option's field; only those that were given

    def of(self, options: tuple[Option, ...]) -> dict[str, Any]:
        """The values of some options, as the fields of a request hold them."""
        return {o.name: o.parse(self.values[o.name]) for o in options if o.name in self.values}


def with_family_options(command: Callable[..., R]) -> Callable[..., R]:
    """Replace a command's parameter `choice: FamilyChoice` with an option for each that a family
    lists, and a flag for each family that is to be asked for.
    """
    return _with_options(command, {o.name: o for family in families() for o in family.options})


def with_model_options(command: Callable[..., R]) -> Callable[..., R]:
    """The same with those alone that say how a model becomes problems."""
    return _with_options(command, {o.name: o for family in families() for o in family.shaping})


def _with_options(command: Callable[..., R], options: Mapping[str, Option]) -> Callable[..., R]:
    flags = {family.name: family for family in families() if family.flag}

    @wraps(command)
    def wrapper(**values: Any) -> R:  # noqa: ANN401  # as Typer calls it
        asked = [family for name, family in flags.items() if values.pop(name)]
        taken = {name: values.pop(name) for name in options}
        given = {name: value for name, value in taken.items() if value is not None}
        return command(choice=FamilyChoice(asked[0] if asked else None, given), **values)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if parameter.name != "choice":
            # Typer passes all by name, and an option has no place among the arguments.
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        parameters += [_flag(name, family) for name, family in flags.items()]
        parameters += [_parameter(option) for option in options.values()]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
    return wrapper


def _flag(name: str, family: Family) -> inspect.Parameter:
    help_text = f"Tune {family.title} of the model, not a fused-MoE layer."
    annotation = Annotated[bool, typer.Option(family.flag, help=help_text)]
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
