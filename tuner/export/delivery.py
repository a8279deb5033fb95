"""How winners reach an engine's servers: files, where they lie, and what servers must be told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tuner.devices.table import Device
from tuner.engines.engine import Engine, engine_module
from tuner.problems.points import Problem
from tuner.problems.records import Winner
from tuner.problems.results import Status


class PlannedFile(Protocol):
    """One file to write for servers, with the sidecar that says where its entries are from."""

    @property
    def path(self) -> Path: ...
    @property
    def sidecar(self) -> Path: ...
    @property
    def problem(self) -> Problem: ...
    @property
    def triton(self) -> str: ...
    @property
    def provenance(self) -> Mapping[str, Any]:
        """The sidecar's JSON."""
        ...

    @property
    def statuses(self) -> Mapping[Any, Status]:
        """The status of each entry."""
        ...

    def text(self) -> str:
        """What the file holds."""
        ...

    def as_json(self) -> dict[str, Any]:
        """What `tuner export --json` says of this family's files alone."""
        ...

    def rows(self) -> Iterator[dict[str, Any]]:
        """What a bundle's manifest says of each entry."""
        ...


class ServerAdvice(Protocol):
    """Advice on how to start servers; `str()` puts it in words."""

    def as_json(self) -> dict[str, Any]: ...


class Delivery(Protocol):
    """How one family's winners reach the servers of one engine version."""

    @property
    def note(self) -> str:
        """What an operator should know of such files; empty where nothing need be said."""
        ...

    @property
    def engine_root(self) -> Path | None:
        """The folder in the engine's own package that takes files; None where it takes none."""
        ...

    @property
    def variable(self) -> str | None:
        """The variable that points servers at another root; None where they know of none."""
        ...

    def obstacle(self, *, into_engine: bool) -> str:
        """Why servers could not load the files from there; empty where they can."""
        ...

    def plan(self, winners: Sequence[Winner], device: Device, root: Path) -> Sequence[PlannedFile]:
        """The files to write under a root; nothing is written.

        Raises ExportRefused where winners contradict each other, or servers could not read a file.
        """
        ...

    def verify(self, files: Iterable[PlannedFile], device: Device, root: Path) -> None:
        """Raises ExportRefused where servers would not find what was written."""
        ...

    def packaged(self) -> Iterator[tuple[Path, Path]]:
        """The engine's own files that a root replaces: the path under a root, and the file."""
        ...

    def advice(self, files: Sequence[PlannedFile]) -> Sequence[ServerAdvice]:
        """How to start servers, where that is not theirs to know."""
        ...


def delivery_of(engine: Engine, family: str) -> Delivery:
    """Raises UnsupportedFamily where the engine has nothing for the family."""
    found: Delivery = engine_module(engine.name, family).open_delivery(engine)
    return found
