"""Define the interface of engines whose attention can be tuned."""

from __future__ import annotations

import difflib
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.devices.table import Device
from tuner.devices.target import CUDA, Target
from tuner.engines.engine import Engine, engine_module
from tuner.families.attention.kernels import AttentionKernels
from tuner.families.attention.problem import Attention, AttentionPhase
from tuner.families.attention.splits import with_splits
from tuner.problems.points import Config, Point


@dataclass(frozen=True)
class Remedy:
    """The steps that help an operator if an engine's own extend launch does not fit a GPU."""

    root: Path  # the folder that holds the engine's package: where `patch -p1` is run
    file: Path
    lines: tuple[int, int]  # the first and last line that choose the constants, from 1
    fits_since: str  # the first known release whose constants fit; "": unknown
    flags: tuple[str, ...]  # of the server: with any of them another kernel runs
    notes: tuple[str, ...]  # sentences
    patched: str  # the file's text with constants that fit; "": its layout is unknown

    def as_json(self) -> dict[str, Any]:
        return {
            "file": str(self.file),
            "lines": list(self.lines),
            "fits_since": self.fits_since or None,
            "flags": list(self.flags),
            "notes": list(self.notes),
            "patch": self.patch() or None,
        }

    def patch(self) -> str:
        """Return a unified diff for `patch -p1` in `root`; empty if no patch is known."""
        if not self.patched:
            return ""
        name = self.file.relative_to(self.root).as_posix()
        before, after = self.file.read_bytes().decode("utf-8"), self.patched
        old, new = (io.StringIO(text, newline="\n").readlines() for text in (before, after))
        return "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))


@dataclass(frozen=True)
class AttentionEngine(ABC):
    """The attention of an engine version on disk."""

    engine: Engine

    @abstractmethod
    def lift(
        self, platform: str = CUDA, sources: Mapping[AttentionPhase, Path] | None = None
    ) -> AttentionKernels:
        """Return the kernels for a platform, "cuda" or "hip". Using them may raise
        UnsupportedKernel.

        `sources` has files to read instead of the engine's own, such as a patched copy.
        """

    @abstractmethod
    def remedy(self, device: Device) -> Remedy | None:
        """Return the remedy if the engine's extend launch does not fit; None if no remedy is
        known.
        """

    @abstractmethod
    def file_name(self, problem: Attention, device_name: str) -> str:
        """Return the name of the file for a problem's tuned constants."""

    @abstractmethod
    def most_splits(self, problem: Attention, sm_count: int) -> int:
        """Return the most KV splits that the engine's own rule makes at decode."""

    @property
    def takes_splits(self) -> bool:
        """Say whether a running engine accepts other numbers of KV splits than its own."""
        return self.engine.loads_plugins()


def attention_engine(engine: Engine) -> AttentionEngine:
    """Return the attention of an engine. Raises UnsupportedFamily if it cannot be tuned."""
    found: AttentionEngine = engine_module(engine.name, "attention").open_family(engine)
    return found


def engine_config(
    kernels: AttentionKernels, problem: Attention, point: Point, target: Target, room: int
) -> Config:
    """Return the engine's own constants at a point, with its own rule if the problem chooses
    splits.

    `room`: the engine's `most_splits`.
    """
    if not problem.chooses_splits:
        return kernels.default_config(problem, point, target)
    constants = kernels.default_config(problem.with_room(room), point, target)
    return with_splits(constants, 0, room)
