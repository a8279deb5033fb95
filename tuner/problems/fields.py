"""Types of what request bodies hold. Needs Pydantic, from the api extra."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from tuner.errors import did_you_mean


def refuse_words(value: object) -> object:
    """Raises ValueError for "8" and true, which Pydantic would read as numbers."""
    # Pydantic's strict numbers would also refuse 8.0, which is a whole number in JSON.
    if isinstance(value, str | bool):
        raise ValueError("should be a number")
    return value


# The bounds come first: after a validator they would be missing from the schema.
Count = Annotated[int, Field(ge=1, le=4096), BeforeValidator(refuse_words)]
Size = Annotated[int, Field(ge=1, le=1 << 24), BeforeValidator(refuse_words)]
BatchSize = Annotated[int, Field(ge=1, lt=1 << 20), BeforeValidator(refuse_words)]
Groups = Annotated[int, Field(ge=0, lt=1 << 20), BeforeValidator(refuse_words)]
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
