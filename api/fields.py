"""Types of the fields of requests, with their bounds, for schemas and for handlers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from types import GenericAlias
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Path
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from api.examples import JOB_ID
from tuner.devices.table import find_device
from tuner.engines.engine import engine_names, parse_spec
from tuner.errors import BadInput, did_you_mean
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
    WholeNumber,
    Word,
    WordOrRecords,
)
from tuner.tuning.request import parse_source


def refuse_words(value: object) -> object:
    """Raise ValueError for "8" and true, which Pydantic would read as numbers."""
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
    """Return the type of an option's field in a posted body, and Pydantic's Field."""
    found = _annotation(option.takes)
    default = list(option.default) if isinstance(option.default, tuple) else option.default
    field = Field(default, description=option.description or option.help)
    return found | None if option.default is None else found, field


def _annotation(takes: Type) -> Any:  # noqa: ANN401  # a type
    match takes:
        case WholeNumber():
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
    """Return the type of a list that is not empty."""
    return Annotated[list[each], Field(min_length=1, max_length=most)]


def _number(number: type, bounds: WholeNumber | Number) -> Any:  # noqa: ANN401  # a type
    given = {name: value for name, value in asdict(bounds).items() if value is not None}
    return Annotated[number, Field(**given), BeforeValidator(refuse_words)]


@cache
def _model(record: Record) -> type[Strict]:
    """Return the model of an object with the record's fields."""
    fields: dict[str, Any] = {}
    for field in record.fields:
        number = _number(int if isinstance(field.type, WholeNumber) else float, field.type)
        fields[field.name] = (
            number,
            Field(
                ... if field.default is None else field.default,
                description=field.description or None,
            ),
        )
    return create_model(record.name, __base__=Strict, __doc__=record.description, **fields)


# Before the class of the BadInput, as the type of an error of Pydantic: for a name that no table
# has, and for a text that the schema does not allow either.
REFUSED = "refused:"
MALFORMED = "malformed:"
T = TypeVar("T")
_RECORDING = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
NAME_OF_KEY = r"^[A-Za-z0-9_-]+$"
SCOPES = r"^[a-z, ]+$"
ENDS = r"^[0-9d-]+$"
_DEVICE = r"^[A-Za-z0-9][A-Za-z0-9 _-]*$"
_ENGINE = r"^[A-Za-z0-9_-]+(==[A-Za-z0-9.+!_-]+)?$"
_ENGINE_NAME = r"^[a-z0-9_-]+$"
_MEASURE = r"^[A-Za-z0-9:._/-]+$"
# No NUL, which PostgreSQL cannot hold, no line breaks, and nothing that steers a terminal or turns
# the direction of the text around it: names are printed in lists.
PLAIN = r"^[^\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]*$"
# The mistake of a text that does not match, for people.
IN_WORDS = {
    PLAIN: "should be one line, without control characters",
    NAME_OF_KEY: "should be letters, digits, - and _, without spaces",
    SCOPES: "should be read, submit or admin, with a comma between several",
    ENDS: "should be a number of days such as 90d, or a date such as 2027-01-31",
    _DEVICE: "should be the name of a GPU: letters, digits, spaces, - and _",
    _ENGINE: "should be an engine, or one version of it, such as sglang==0.5.16",
    _ENGINE_NAME: "should be an engine's name in small letters, such as sglang",
    _MEASURE: "should be gpu, predict, or replay: and the name of a recording",
}


def refusing(check: Callable[[Any], object], kind: str = REFUSED) -> AfterValidator:
    """Return a validator that turns the BadInput of `check` into an error of Pydantic.

    So an answer names the mistakes of all fields, each at its place.
    """

    def checked(text: T) -> T:
        try:
            if isinstance(text, str | list):
                check(text)
        except BadInput as error:
            said = {"words": error.in_api_words(), "on_page": error.in_page_words()}
            raise PydanticCustomError(kind + type(error).__name__, "{words}", said) from None
        return text

    return AfterValidator(checked)


Name = Annotated[str, Field(min_length=1, max_length=200, pattern=PLAIN)]
DeviceName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=60,
        pattern=_DEVICE,
        description="Any name of a GPU of GET /v1/devices.",
        examples=["L40S", "NVIDIA_H200"],
    ),
]
KnownDevice = Annotated[DeviceName, refusing(find_device)]
JobId = Annotated[
    str,
    Path(
        min_length=26,
        max_length=26,
        pattern=r"^[0-9a-hjkmnp-tv-z]*$",
        description="The id in the answer to the job's submission.",
        examples=[JOB_ID],
    ),
]
Cursor = Annotated[
    str,
    Field(
        min_length=1,
        max_length=400,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="The `next` of the page before.",
    ),
]


def _measure(text: str) -> None:
    source = parse_source(text)
    # A name, not a path: clients must not learn which files a server has.
    if source.recording is not None and not _RECORDING.fullmatch(text.partition(":")[2]):
        raise BadInput(f"a recording is named, without a folder: not {text[:100]!r}")


EngineSpec = Annotated[
    str,
    refusing(parse_spec, MALFORMED),
    Field(max_length=60, pattern=_ENGINE),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": rf"^({'|'.join(engine_names())})(==[0-9][A-Za-z0-9.+]{{0,30}})?$",
            "description": "An engine, or an exact version of it.",
            "examples": ["sglang", "sglang==0.5.16"],
        }
    ),
]
EngineName = Annotated[
    str,
    Field(max_length=60, pattern=_ENGINE_NAME, description="An engine, without a version."),
]
Measure = Annotated[
    str,
    refusing(_measure, MALFORMED),
    Field(max_length=120, pattern=_MEASURE),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^(gpu|predict|replay:[A-Za-z0-9_][A-Za-z0-9._-]{0,99})$",
            "description": "gpu, predict, or replay:NAME of a recording that the workers have.",
            "examples": ["gpu", "predict"],
        }
    ),
]
