"""Deliver winners to an engine's servers: files, their folders, and settings of servers."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

from tuner.devices.table import Device
from tuner.devices.target import CUDA, HIP
from tuner.engines.config_files import PROVENANCE, kept_file, read_sidecar, shipped_at
from tuner.engines.engine import Engine, engine_module, kernel_hash
from tuner.errors import ExportRefused, MalformedConfigFile, UnwritableOutput
from tuner.export.file_checks import RuntimeFacts
from tuner.export.files import write_all
from tuner.problems.points import Problem
from tuner.problems.registry import family_of
from tuner.problems.results import Status, Winner


class ExportFile(Protocol):
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
        """Return the sidecar's JSON."""
        ...

    @property
    def missing(self) -> Sequence[int]:
        """Return the batch sizes that the file lacks and must hold."""
        ...

    @property
    def statuses(self) -> Mapping[Any, Status]:
        """Return the status of each entry."""
        ...

    def text(self) -> str:
        """Return the file's content."""
        ...

    def as_json(self) -> dict[str, Any]:
        """Return the fields of `tuner export --json` that only this family's files have."""
        ...

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield an object for each entry, for a bundle's manifest."""
        ...


@dataclass(frozen=True)
class ServerFlags:
    """The server flags for the best of a problem's files."""

    problem: Problem  # of that file
    triton: str
    flags: Mapping[str, int | str]  # empty if no file is known to be the best
    reason: str

    def as_json(self) -> dict[str, Any]:
        problem, flags = self.problem.spec(), dict(self.flags)
        return {"problem": problem, "flags": flags, "reason": self.reason}

    def __str__(self) -> str:
        words = " ".join(f"{name} {value}" for name, value in self.flags.items())
        return f"{self.problem.spec()}: {words or 'none'}; {self.reason}"


class Delivery(ABC):
    """Delivers a family's winners to the servers of an engine version."""

    note: str = ""  # for operators, about such files
    # Whether only servers with this package's plugin ask for such files outside the engine's
    # package.
    by_plugin: bool = False

    @property
    def engine_root(self) -> Path | None:
        """Return the folder of the engine's package for such files; None if it has none."""
        return None

    @property
    def variable(self) -> str | None:
        """Return the variable that points servers at another root, if any."""
        return None

    @abstractmethod
    def asked(self, problem: Problem, device: Device) -> Sequence[str]:
        """Return the names of the files that servers ask for. Raises UnsupportedKernel for a
        problem that the engine has no kernel for.
        """

    def shipped_file(self, problem: Problem, device: Device) -> Path | None:
        """Return the engine's own file that its loader reads for the problem on the device."""
        return None

    def obstacle(self, *, into_engine: bool) -> str:
        """Return why servers could not load the files; empty if they can."""
        return ""

    @abstractmethod
    def files(self, winners: Sequence[Winner], device: Device, root: Path) -> Sequence[ExportFile]:
        """Return the files to write under a root. Writes nothing.

        Raises ExportRefused if winners contradict each other, or if servers could not read a file.
        """

    @abstractmethod
    def verify(self, files: Iterable[ExportFile], device: Device, root: Path) -> None:
        """Check that servers find each written entry. Raises ExportRefused if not."""

    def refusal(self, path: Path, triton: str | None) -> str | None:
        """Return why servers with the plugin refuse a file below an exported folder; "" if they
        take it, and None if this family's plugin does not look for the file.

        `triton` is the servers' Triton; None if it is not known. The GPU is not compared.
        """
        return None

    def read_at(self, file: ExportFile, device: Device, root: Path) -> tuple[Path, Path] | None:
        """Return the path and the sidecar of the file that servers read for a file's problem under
        a root, if it has the file's name; the files need not exist.
        """
        return file.path, file.sidecar

    def packaged(self) -> Iterator[tuple[Path, Path]]:
        """Yield the engine's own files that a root replaces: path under a root, and file."""
        return iter(())

    def advice(self, files: Sequence[ExportFile]) -> Sequence[ServerFlags]:
        """Return flags to start servers with, if they do not find the best file by themselves."""
        return ()


T = TypeVar("T")


def read_back(name: str, written: Path, read: Callable[[Path], T], wanted: T) -> None:
    """Check that the servers' reader takes `written` for `wanted`. Raises ExportRefused."""
    try:
        found = read(written)
    except MalformedConfigFile as error:
        raise ExportRefused(f"{name}: {str(error).removeprefix(f'{written}: ')}") from None
    if found != wanted:
        raise ExportRefused(f"{name} does not read as it was written")


def check_readable(file: ExportFile, verify: Callable[[Path], None]) -> None:
    """Verify a copy of a file to write. Raises the errors of `verify`, and UnwritableOutput if no
    temporary file can be written.
    """
    try:
        with TemporaryDirectory() as folder:
            copy = Path(folder, "file.json")
            copy.write_text(file.text(), encoding="utf-8")
            verify(copy)
    except OSError as error:
        raise UnwritableOutput(
            f"cannot write a temporary file: {error.strerror}: make room there, or set TMPDIR"
        ) from None


# A folder may have many files, and kernels take long to lift.
_FACTS: dict[tuple[Path, str, str | None], RuntimeFacts] = {}


def server_facts(engine: Engine, family: str, triton: str | None) -> RuntimeFacts:
    """Return the facts with which servers of a release on any GPU compare a file of a family."""

    def hashes() -> list[str]:
        return [kernel_hash(engine, family, platform) for platform in (CUDA, HIP)]

    facts = RuntimeFacts(engine.name, engine.version, None, triton, hashes)
    return _FACTS.setdefault((engine.root, family, triton), facts)


def is_plugin_file(path: Path, folder: str) -> bool:
    """Say whether the plugin looks for a file at a path: FOLDER/triton_X_Y_Z/NAME.json.

    Sidecars lie alike, below their own folder.
    """
    root, kind, version = ("", "", "", *path.absolute().parts)[-4:-1]
    below = kind == folder and root != PROVENANCE
    return below and version.startswith("triton_") and path.suffix == ".json"


def delivery_of(engine: Engine, family: str) -> Delivery:
    """Return the family's delivery to the engine. Raises UnsupportedFamily if there is none."""
    found: Delivery = engine_module(engine.name, family).open_delivery(engine)
    return found


def cards_to_serve(delivery: Delivery, problem: Problem, device: Device) -> list[Device]:
    """Return the card under each name that drivers give it, if servers ask for a file by it.

    A further name has none if servers ask for the same file, or read a file of the engine's, with
    which winners were not compared.
    """
    names = delivery.asked(problem, device)
    found = [device]
    for card in device.under_each_name[1:]:
        read = delivery.shipped_file(problem, card)
        if delivery.asked(problem, card) != names and not (read and shipped_at(read)):
            found.append(card)
    return found


def files_by_card(
    delivery: Delivery, winners: Sequence[Winner], device: Device, root: Path
) -> Iterator[tuple[Device, Sequence[ExportFile]]]:
    """Yield the files to write for each name of a card, with the card under that name.

    Raises ExportRefused as `Delivery.files` does.
    """
    yield device, delivery.files(winners, device, root)
    for card in device.under_each_name[1:]:
        mine = [
            replace(one, environment=replace(one.environment, device=card.name))
            for one in winners
            if card in cards_to_serve(delivery, one.problem, device)
        ]
        if mine:
            yield card, delivery.files(mine, card, root)


def take_back(
    winners: Sequence[Winner], engine: Engine, device: Device, out: Path | None
) -> list[Path]:
    """Remove the files that an earlier export wrote for the problems of some winners: under `out`,
    or in the engine's package if None.

    A server would go on reading them, or fall back to those for another Triton. If the engine ships
    a file of that name, it takes the place. Files that were changed since, files of other problems,
    and measured files for winners that are only predicted, stay. Return the removed files. Raises
    UnwritableOutput if a file cannot be removed.
    """
    removed = []
    packaged: dict[str, dict[Path, Path]] = {}  # the engine's files, by family and place
    for problem, path, sidecar in _earlier(winners, engine, device, out):
        family = family_of(problem).name
        if out and family not in packaged:
            own = delivery_of(engine, family).packaged()
            packaged[family] = {out / place: path for place, path in own}
        kept = kept_file(sidecar)
        shipped = kept if kept.exists() else packaged[family].get(path) if out else None
        try:
            if shipped:
                write_all(path.parent, {path: shipped.read_bytes()})
            else:
                path.unlink(missing_ok=True)  # another export may be faster
            sidecar.unlink(missing_ok=True)
            kept.unlink(missing_ok=True)
        except OSError as error:
            raise UnwritableOutput(
                f"cannot remove {path}, which an earlier export wrote and servers should no "
                f"longer read: {error.strerror}: choose a folder that you may write to"
            ) from None
        removed.append(path)
    return removed


def _earlier(
    winners: Sequence[Winner], engine: Engine, device: Device, out: Path | None
) -> Iterator[tuple[Problem, Path, Path]]:
    """Yield the problem, the path and the sidecar of each file that servers would read, once the
    files before it are removed.
    """
    for problem in dict.fromkeys(winner.problem for winner in winners):
        mine = [winner for winner in winners if winner.problem == problem]
        delivery = delivery_of(engine, family_of(problem).name)
        root = out or delivery.engine_root
        assert root is not None  # `loadable` left out families without a folder there
        predicted = any(winner.status is Status.PREDICTED for winner in mine)
        with contextlib.suppress(ExportRefused):  # such a file was never written
            found = files_by_card(delivery, mine, device, root)
            for card, file in ((card, file) for card, some in found for file in some):
                if predicted and Status.OK in file.statuses.values():
                    continue
                while (place := delivery.read_at(file, card, root)) and (
                    (read_sidecar(*place) or {}).get("problem") == problem.spec()
                    and not (predicted and place[0] != file.path)
                ):
                    yield problem, *place
