"""Proofs in a live engine: what is asked and what is answered."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from api.schemas_out import Next
from api.schemas_query import Page
from api.text import DeviceName, Name


class ServedProofPage(Page):
    """Which proofs to list."""

    device: DeviceName | None = None
    model: Name | None = Field(None, description="As `tuner prove` was given it.")
    limit: int = Field(20, ge=1, le=100)


class ServedProofOut(BaseModel):
    """A proof: an engine's server under load, without and with the exported files."""

    id: int
    model: str
    device: str
    engine: str
    engine_version: str
    files: str = Field(description="The SHA-256 of the tuned files.")
    proven: bool = Field(
        description="The files were used, outputs stayed and nothing became slower."
    )
    report: dict[str, Any] = Field(description="As `tuner prove --server --json` prints it.")
    created_at: datetime


class ServedProofsOut(BaseModel):
    """A page of proofs, the newest first."""

    proofs: list[ServedProofOut]
    next: Next
