"""The fields of Mamba-2 state updates in a request body. This module needs Pydantic."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tuner.problems.fields import BatchSize

# By field name: the type, and Pydantic's Field with the default.
FIELDS: dict[str, tuple[Any, Any]] = {
    "mamba_ssm_cache_dtype": (
        Literal["float32", "bfloat16", "float16"] | None,
        Field(None, description="Type of Mamba states; default: as the engine does."),
    ),
    "batch_sizes": (
        list[BatchSize] | None,
        Field(
            None,
            min_length=1,
            max_length=64,
            description="Tokens per batch; default: the engine's sizes.",
        ),
    ),
}
