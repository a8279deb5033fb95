"""Types of the fields of request bodies, and the field of an option. Needs Pydantic (api extra)."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from types import GenericAlias
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from tuner.errors import did_you_mean
from tuner.problems.options import (
    BATCH_SIZE,
    COUNT,
    BatchSizes,
    Block,
    Names,
    Number,
    Option,
    Record,
    Switch,
    Type,
    Whole,
    Word,
    WordOrRecords,
)


def refuse_words(value: object) -> object:
    """Raises ValueError for "8" and true, which Pydantic would read as numbers."""
    # Pydantic's strict numbers would also refuse 8.0, which is a whole number in JSON.
    if isinstance(value, str | bool):
        raise ValueError("should be a number")
    return value


# The bounds come first: after a validator they would be missing from the schema.
Count = Annotated[int, Field(ge=COUNT.ge, le=COUNT.le), BeforeValidator(refuse_words)]
BatchSize = Annotated[int, Field(ge=BATCH_SIZE.ge, lt=BATCH_SIZE.lt), BeforeValidator(refuse_words)]
# Beyond this, some JSON readers do not keep whole numbers exact.
Seed = Annotated[int, Field(ge=0, lt=1 << 53), BeforeValidator(refuse_words)]
Flag = Annotated[bool, Field(strict=True)]


UNKNOWN_FIELD = "unknown_field"  # the type of the error, whose context has the field's `name`


class Strict(BaseModel):
    """A model that refuses unknown fields by name."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_fields(cls, values: object) -> object:
        if isinstance(values, dict):
            for name in values:
                if name not in cls.model_fields:
                    short = str(name)[:100]
                    context = {"name": short, "near": did_you_mean(short, cls.model_fields)}
                    raise PydanticCustomError(UNKNOWN_FIELD, "unknown field{near}", context)
        return values


def body_field(option: Option) -> tuple[Any, Any]:
    """The type of an option's field in a posted body, and Pydantic's Field."""
    found = _annotation(option.takes)
    default = list(option.default) if isinstance(option.default, tuple) else option.default
    field = Field(default, description=option.description or option.help)
    return found | None if option.default is None else found, field


def _annotation(takes: Type) -> Any:  # noqa: ANN401  # a type
    match takes:
        case Whole():
            return _number(int, takes)
        case Switch():
            return Flag
        case Word():
            return Literal[takes.words]
        case Block():
            return GenericAlias(tuple, (_number(int, takes.rows), _number(int, takes.columns)))
        case Names():
            return _several(takes.of, len(takes.of))
        case BatchSizes():
            return _several(_number(int, takes.each), takes.most)
        case WordOrRecords():
            return Literal[takes.words] | _several(_model(takes.each), takes.most)


def _several(each: Any, most: int | None) -> Any:  # noqa: ANN401  # types
    """The type of a list that is not empty."""
    return Annotated[list[each], Field(min_length=1, max_length=most)]


def _number(number: type, bounds: Whole | Number) -> Any:  # noqa: ANN401  # a type
    given = {name: value for name, value in asdict(bounds).items() if value is not None}
    return Annotated[number, Field(**given), BeforeValidator(refuse_words)]


@cache
def _model(record: Record) -> type[Strict]:
    """The model of an object with the record's fields."""
    fields: dict[str, Any] = {}
    for field in record.fields:
        number = _number(int if isinstance(field.type, Whole) else float, field.type)
        fields[field.name] = (
            number,
            Field(
                ... if field.default is None else field.default,
                description=field.description or None,
            ),
        )
    return create_model(record.name, __base__=Strict, __doc__=record.description, **fields)
