"""Types of the numbers and flags in request bodies. Needs Pydantic, which the api extra brings."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field


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
