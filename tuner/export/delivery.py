"""How winners reach an engine's servers: files, their folders, and what servers must be told."""

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
    """A file to write for servers, with the sidecar that says where its entries are from."""

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
        """The file's content."""
        ...

    def as_json(self) -> dict[str, Any]:
        """The fields of `tuner export --json` that only this family's files have."""
        ...

    def rows(self) -> Iterator[dict[str, Any]]:
        """An object for each entry, for a bundle's manifest."""
        ...


class ServerAdvice(Protocol):
    """Advice on how to start servers. `str()` gives it as a sentence."""

    def as_json(self) -> dict[str, Any]: ...


class Delivery(Protocol):
    """How one family's winners reach the servers of one engine version."""

    @property
    def note(self) -> str:
        """What an operator should know about such files; empty where there is nothing."""
        ...

    @property
    def engine_root(self) -> Path | None:
        """The folder of the engine's package for such files; None where it has none."""
        ...

    @property
    def variable(self) -> str | None:
        """The environment variable that points servers at another root; None if there is none."""
        ...

    @property
    def by_plugin(self) -> bool:
        """Whether only servers with this package's plugin ask for such files outside the engine's
        package.
        """
        ...

    def asked(self, problem: Problem, device: Device) -> Sequence[str]:
        """The names of the files that servers ask for. Raises UnsupportedKernel for a problem
        that the engine has no kernel for.
        """
        ...

    def ships(self, problem: Problem, device: Device) -> bool:
        """Whether the engine's package has a file for the problem on the device."""
        ...

    def obstacle(self, *, into_engine: bool) -> str:
        """Why servers could not load the files; empty where they can."""
        ...

    def plan(self, winners: Sequence[Winner], device: Device, root: Path) -> Sequence[PlannedFile]:
        """The files to write under a root. Writes nothing.

        Raises ExportRefused where winners contradict each other, or servers could not read a file.
        """
        ...

    def verify(self, files: Iterable[PlannedFile], device: Device, root: Path) -> None:
        """Raises ExportRefused where servers would not find a written entry."""
        ...

    def packaged(self) -> Iterator[tuple[Path, Path]]:
        """The engine's own files that a root replaces: the path under a root, and the file."""
        ...

    def advice(self, files: Sequence[PlannedFile]) -> Sequence[ServerAdvice]:
        """How to start servers, where they do not find out by themselves."""
        ...


def delivery_of(engine: Engine, family: str) -> Delivery:
    """The family's delivery to the engine. Raises UnsupportedFamily where it has none."""
    found: Delivery = engine_module(engine.name, family).open_delivery(engine)
    return found
