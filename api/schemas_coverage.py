"""The fields of answers about what is stored and what is watched."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from api.matrix import CellState
from api.schemas_out import Next
from api.schemas_results import EnvironmentOut


class HeldOut(BaseModel):
    """What is stored for a problem in an environment."""

    device: str
    problem: str
    environment: EnvironmentOut
    standing: str = Field(description="tuned, or stale: the device has a newer environment.")
    why: str
    points: dict[str, int] = Field(description="Numbers of points by their winners' status.")
    speedup: float | None = Field(
        description="How many times as fast as what `over` names: the geometric mean over the "
        "sizes; null where nothing is timed."
    )
    over: str | None = Field(
        description='"what runs without us": what servers run by default. "Triton\'s own '
        'configuration": what they run by default was not measured, or is not known.'
    )
    oldest: datetime
    newest: datetime


class HeldPageOut(BaseModel):
    """A page of what is stored."""

    stored: list[HeldOut]
    next: Next


class CellOut(BaseModel):
    """What there is for a problem on a device."""

    device: str
    state: CellState = Field(
        description="untuned: only the engine's own choices are stored. missing: it is watched, "
        "and nothing is stored."
    )
    why: str = Field(description="Why it is stale or missing.")
    speedup: float | None = Field(description="As in GET /v1/coverage.")
    over: str | None = Field(description="As in GET /v1/coverage.")
    points: dict[str, int]
    engine_version: str
    newest: datetime | None


class MatrixRowOut(BaseModel):
    """A problem in an engine, and its cells; devices without any are left out."""

    problem: str
    engine: str
    family: str
    models: list[str] = Field(description="Well-known models that have the problem.")
    cells: list[CellOut]


class MatrixOut(BaseModel):
    """A page of problems by device."""

    devices: list[str] = Field(description="All devices with a cell.")
    counts: dict[CellState, int] = Field(
        description="Numbers of cells, of all devices. nothing: of the cells that are left out."
    )
    total: int = Field(description="The number of rows on all pages.")
    rows: list[MatrixRowOut]
    next: Next


class WatchedOut(BaseModel):
    """A watched model on a device, and whether it is tuned."""

    model: str
    problem: str
    device: str
    engine: str
    measure: str
    standing: str = Field(description="tuned, stale, missing, or error: no job can be made of it.")
    why: str
    tuned_at: datetime | None
    watch_id: int | None = Field(description="Of the watch; null for one of a nightly.toml.")


class WatchedPageOut(BaseModel):
    """A page of what is watched."""

    watched: list[WatchedOut]
    next: Next


class WatchOut(BaseModel):
    """A watch that was added over the API."""

    id: int
    watch: dict[str, Any]
    client: str
    created_at: datetime


class WatchesOut(BaseModel):
    """The watches that were added over the API; a nightly.toml may have more."""

    watches: list[WatchOut]
