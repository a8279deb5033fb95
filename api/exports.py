"""Exports as archives: each is made once for what is stored, one at a time, and kept."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
from starlette.concurrency import run_in_threadpool

from tuner.deploy.bundle.archive import File, plain_tar
from tuner.devices.table import Device
from tuner.engines.engine import Engine, find_engine
from tuner.errors import ExportRefused, UnwritableOutput
from tuner.export import choose, export, package_folders, packaged_files
from tuner.problems.points import Problem
from tuner.store import Store

KEPT_BYTES = 64 << 20  # some 35 archives of sglang's 1.8 MB: more than a fleet asks for
_REFUSAL_BYTES = 1 << 10
_TAG = re.compile(r'(?:W/)?("[^"]*")')


@dataclass(frozen=True)
class Wanted:
    """Which export to make."""

    device: Device
    engine: str  # as `find_engine` takes it
    problem: Problem | None
    allow_predicted: bool


@dataclass(frozen=True)
class Archive:
    """An export as a tar."""

    name: str  # of its one folder
    data: bytes
    etag: str
    left_out: int  # problems


@dataclass(frozen=True)
class _State:
    """What an archive depends on, apart from the request."""

    engine: Engine
    package: str
    winners: str


class Exports:
    """Makes and keeps archives.

    At most one request looks at the store and the engine's files at once, and at most one makes an
    archive: Python's lock lets one thread run at a time, and all other requests need it too.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looking, self._making = anyio.Lock(), anyio.Lock()
        # The least recently used first. Only the event loop changes it.
        self._kept: OrderedDict[Wanted, tuple[_State, Archive | ExportRefused]] = OrderedDict()
        self._folders: dict[tuple[str, str, Path], list[Path]] = {}

    async def get(self, wanted: Wanted) -> Archive:
        """The archive for what is stored now.

        Raises UnknownEngine, ExportRefused, UnusableStore, and UnwritableOutput where there is no
        room for temporary files.
        """
        async with self._looking:
            state = await run_in_threadpool(self._look, wanted)
        found = self._find(wanted, state)
        if found is None:
            async with self._making:
                found = self._find(wanted, state)  # another request may have asked for the same
                if found is None:
                    found = await run_in_threadpool(_make, self._store, wanted, state.engine)
                    self._keep(wanted, state, found)
        if isinstance(found, ExportRefused):
            raise ExportRefused(found.message, cli=found.cli, api=found.api)
        return found

    def _look(self, wanted: Wanted) -> _State:
        engine = find_engine(wanted.engine)
        place = (engine.name, engine.version, engine.root)
        if place not in self._folders:
            self._folders[place] = package_folders(engine)
        winners = self._store.winners_state(
            device=wanted.device.name, engine=engine.name, engine_version=engine.version
        )
        return _State(engine, _files_state(self._folders[place]), winners)

    def _find(self, wanted: Wanted, state: _State) -> Archive | ExportRefused | None:
        kept_state, found = self._kept.get(wanted, (None, None))
        if kept_state != state:
            return None
        self._kept.move_to_end(wanted)
        return found

    def _keep(self, wanted: Wanted, state: _State, found: Archive | ExportRefused) -> None:
        self._kept[wanted] = state, found
        self._kept.move_to_end(wanted)
        while sum(_size(one) for _, one in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)


def is_named(etag: str, if_none_match: Iterable[str]) -> bool:
    """Whether an If-None-Match names a tag, by RFC 9110's weak comparison."""
    named = ",".join(if_none_match)
    return named.strip() == "*" or etag in _TAG.findall(named)


def _size(found: Archive | ExportRefused) -> int:
    return len(found.data) if isinstance(found, Archive) else _REFUSAL_BYTES


def _make(store: Store, wanted: Wanted, engine: Engine) -> Archive | ExportRefused:
    problems = [wanted.problem] if wanted.problem is not None else []
    name = f"{wanted.device.name}-{engine.name}-{engine.version}"
    try:
        chosen = choose(
            store,
            wanted.device,
            engine,
            allow_predicted=wanted.allow_predicted,
            wanted=problems,
            named=problems,
        )
        with tempfile.TemporaryDirectory(prefix="tuner-export-") as folder:
            root = Path(folder)
            export(chosen.winners, engine, wanted.device, root, chosen.left_out)
            # The engine's packaged files are added without copying them into the folder.
            files = {path.as_posix(): file for path, file in packaged_files(engine)}
            files |= {p.relative_to(root).as_posix(): p for p in root.rglob("*") if p.is_file()}
            data = plain_tar(name, {path: File(file.read_bytes()) for path, file in files.items()})
    except ExportRefused as refusal:
        return refusal
    except OSError as error:
        raise UnwritableOutput(f"cannot write a temporary folder: {error.strerror}") from None
    return Archive(name, data, f'"{hashlib.sha256(data).hexdigest()}"', len(chosen.left_out))


def _files_state(folders: Iterable[Path]) -> str:
    """A text that changes when a file below the folders does."""
    digest = hashlib.sha256()
    for folder in folders:
        # Not sorted: a folder lists its files in the same order until it changes.
        for path, about in _files_below(str(folder)):
            digest.update(f"{path} {about.st_size} {about.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _files_below(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files_below(entry.path)
            else:
                yield entry.path, entry.stat()
