"""Types of the numbers and flags in request bodies. Needs Pydantic, from the api extra."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field


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
