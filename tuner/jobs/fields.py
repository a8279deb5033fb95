"""Types of what request bodies hold. Needs Pydantic, which the api extra brings."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tuner.errors import did_you_mean


def refuse_words(value: object) -> object:
    """Raises ValueError for what Pydantic would take for a number: "8" and true."""
    # Its strict numbers would do, but refuse 8.0, which JSON calls whole.
    if isinstance(value, str | bool):
        raise ValueError("should be a number")
    return value


# The bounds come first: behind a validator of ours they would not show in the schema.
Count = Annotated[int, Field(ge=1, le=4096), BeforeValidator(refuse_words)]
Size = Annotated[int, Field(ge=1, le=1 << 24), BeforeValidator(refuse_words)]
BatchSize = Annotated[int, Field(ge=1, lt=1 << 20), BeforeValidator(refuse_words)]
Groups = Annotated[int, Field(ge=0, lt=1 << 20), BeforeValidator(refuse_words)]
# Up to where every JSON reader has whole numbers exactly.
Seed = Annotated[int, Field(ge=0, lt=1 << 53), BeforeValidator(refuse_words)]
Flag = Annotated[bool, Field(strict=True)]


class Strict(BaseModel):
    """A table of known fields."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_fields(cls, values: object) -> object:
        if isinstance(values, dict):
            for name in values:
                if name not in cls.model_fields:
                    near = did_you_mean(str(name)[:100], cls.model_fields)
                    raise ValueError(f"unknown field {str(name)[:100]!r}{near}")
        return values
