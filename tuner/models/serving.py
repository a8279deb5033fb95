"""Define how a model is served, and the problems that one of its ranks runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.devices.table import Device
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Problem


@dataclass(frozen=True)
class Serving:
    """The settings that turn a model into the problems of one rank."""

    engine: str = "sglang"
    engine_version: str | None = None  # None: unknown; the newest known version is assumed
    device: Device | None = None  # None: unknown; a recent GPU is assumed
    tp: int = 1  # tensor-parallel size
    dtype: Dtype | None = None  # None: the checkpoint's dtype
    options: Mapping[str, Any] = field(default_factory=dict)  # values of `Family.shaping`
    # Of a server whose missing file is resolved: its model's name, and the least and most ranks.
    model: str = ""
    ranks: tuple[int, int] | None = None
    converts: str = ""  # the word of --quantization for a type of weights that is not read


class Note(str):
    """A sentence for the user that ends in the command line's words; `api` has the API's."""

    api: str

    def __new__(cls, text: str, *, cli: str, api: str) -> Note:
        note = super().__new__(cls, text + cli)
        note.api = text + api
        return note


@dataclass(frozen=True)
class Resolved:
    """Problems, and the assumptions that led to them."""

    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()  # sentences for the user
    device_name: str | None = None  # the GPU named in a warning line, in the engine's spelling
    older_than: str | None = None  # the release before which a warning line's engine was made
    assumed: str = ""  # the presets that fit a warning line, whose server names no model
