from __future__ import annotations

from typing import Any

from pydantic import Field

from tuner.problems.fields import BatchSize

FIELDS: dict[str, tuple[Any, Any]] = {
    "rows": (list[BatchSize] | None, Field(None, description="Rows; default: 1, 16 and 256.")),
}
