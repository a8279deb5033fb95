"""How a model is served, and the problems that a rank of it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.devices.table import Device
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Problem


@dataclass(frozen=True)
class Serving:
    """What turns a model into the problems of one rank."""

    engine: str = "sglang"
    engine_version: str | None = None  # None: not known here; the newest that was looked at
    device: Device | None = None  # None: a GPU whose engine does as newer ones' do
    tp: int = 1  # tensor-parallel size
    dtype: Dtype | None = None  # None: the checkpoint's own
    options: Mapping[str, Any] = field(default_factory=dict)  # of the family: `Family.shaping`


class Note(str):
    """A sentence for the user that ends in the command line's words; `api` has the API's."""

    api: str

    def __new__(cls, text: str, *, cli: str, api: str) -> Note:
        note = super().__new__(cls, text + cli)
        note.api = text + api
        return note


@dataclass(frozen=True)
class Resolved:
    """Problems, and what was assumed on the way to them."""

    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()  # sentences for the user
    device_name: str | None = None  # the GPU that a warning line names, in the engine's spelling
