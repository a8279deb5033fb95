"""Make archives of winners one at a time, and keep the newest within a bound of memory."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import checkpoint

from api.limits import Question
from tuner.deploy.bundle.archive import BundleFile, plain_tar
from tuner.devices.table import Device
from tuner.engines.engine import Engine, find_engine
from tuner.engines.settings import server_settings
from tuner.errors import ExportRefused, UnwritableOutput
from tuner.export.choice import choose
from tuner.export.delivery import ServerFlags
from tuner.export.export import deliveries_for, export, package_folders, packaged_files, way_to
from tuner.export.summary import shelf_notes
from tuner.problems.points import Problem
from tuner.shell import export_line, unset_line
from tuner.store.results import ResultStore

KEPT_BYTES = 8 << 20  # of packed archives; sglang's have 0.3 MB each
_BESIDES = 1 << 12  # bytes that are kept with an archive, or in place of it
_PIECE = 1 << 16  # bytes of a tar that an answer has at a time, at most
_TAG = re.compile(r'(?:W/)?("[^"]*")')


@dataclass(frozen=True)
class ExportRequest:
    """The export to make."""

    device: Device
    engine: str  # as `find_engine` takes it
    problem: Problem | None
    allow_predicted: bool
    server_args: str = ""  # the flags and variables that the servers are started with


@dataclass(frozen=True)
class Archive:
    """An export as a tar."""

    name: str  # of its one folder
    packed: bytes
    size: int  # bytes of the tar
    etag: str
    left_out: int  # problems
    flags: Sequence[str] = ()  # to start servers with, besides `server_args`
    use: Sequence[str] = ()  # how servers are pointed at the folder: a line of a shell, or a note

    def pieces(self) -> Iterator[bytes]:
        """Yield the tar in pieces of at most _PIECE bytes."""
        unpacker, left = zlib.decompressobj(), self.packed
        while not unpacker.eof:
            yield unpacker.decompress(left, _PIECE)
            left = unpacker.unconsumed_tail

    async def sent(self) -> AsyncIterator[bytes]:
        """Yield the tar in pieces, and let other requests run after each piece.

        No answer needs memory for the whole tar, and no thread keeps memory of its own.
        """
        for piece in self.pieces():
            yield piece
            await checkpoint()


class Exports:
    """Makes archives, one at a time, and keeps the newest that KEPT_BYTES hold."""

    def __init__(self, store: ResultStore) -> None:
        self._store = store
        self._one_at_a_time, self._question = CapacityLimiter(1), Question()
        self._kept: dict[object, Archive | ExportRefused] = {}  # the newest last

    async def get(self, wanted: ExportRequest) -> Archive:
        """Return the archive of the winners that are stored now.

        Raises UnknownEngine, ExportRefused, UnusableStore, and UnwritableOutput if there is no room
        for temporary files.
        """
        limiter = self._one_at_a_time
        found = await to_thread.run_sync(self._find, wanted, time.monotonic(), limiter=limiter)
        if isinstance(found, ExportRefused):
            raise ExportRefused(found.message, cli=found.cli, api=found.api, page=found.page)
        return found

    def _find(self, wanted: ExportRequest, since: float) -> Archive | ExportRefused:
        engine = find_engine(wanted.engine)
        with self._question.turn(since):
            winners = self._store.winners_state(
                device=wanted.device.name, engine=engine.name, engine_version=engine.version
            )
            key = wanted, engine.root, winners, files_state(package_folders(engine))
            found = self._kept.pop(key, None) or make_archive(self._store, wanted, engine)
        self._kept[key] = found
        while sum(map(_held, self._kept.values())) > KEPT_BYTES:
            del self._kept[next(iter(self._kept))]
        return found


def _held(found: Archive | ExportRefused) -> int:
    """Return about how many bytes are kept with an answer."""
    return _BESIDES + (len(found.packed) if isinstance(found, Archive) else 0)


def is_named(etag: str, if_none_match: Iterable[str]) -> bool:
    """Say whether an If-None-Match names a tag, by RFC 9110's weak comparison."""
    named = ",".join(if_none_match)
    return named.strip() == "*" or etag in _TAG.findall(named)


def make_archive(
    store: ResultStore, wanted: ExportRequest, engine: Engine
) -> Archive | ExportRefused:
    """Return an archive of the stored winners, or the reason why there is none.

    Raises UnusableStore, and UnwritableOutput if there is no room for temporary files.
    """
    problems = [wanted.problem] if wanted.problem is not None else []
    name = f"{wanted.device.name}-{engine.name}-{engine.version}"
    try:
        with tempfile.TemporaryDirectory(prefix="tuner-export-") as folder:
            root = Path(folder) / name
            chosen = choose(
                store.winners(
                    device=wanted.device.name, engine=engine.name, engine_version=engine.version
                ),
                wanted.device,
                engine,
                root,
                allow_predicted=wanted.allow_predicted,
                wanted=problems,
                named=problems,
                flags=server_settings(wanted.server_args),
            )
            if not chosen.winners:
                reasons = "; ".join(map(str, chosen.advice))
                return ExportRefused(f"nothing is advised for these servers: {reasons}")
            files_of = export(
                *(chosen.winners, engine, wanted.device, root, chosen.not_written),
                made=chosen.files,
            )
            used = deliveries_for(chosen.winners, engine)
            variables, server_flags, notes = way_to(root, files_of, used, engine)
            notes += shelf_notes(chosen.winners)
            # The engine's packaged files are added without copying them into the folder.
            files = {path.as_posix(): file for path, file in packaged_files(engine)}
            files |= {p.relative_to(root).as_posix(): p for p in root.rglob("*") if p.is_file()}
            data = plain_tar(
                name, {path: BundleFile(file.read_bytes()) for path, file in files.items()}
            )
    except ExportRefused as refusal:
        return refusal.with_traceback(None)  # frames are not kept with it
    except OSError as error:
        raise UnwritableOutput(f"cannot write a temporary folder: {error.strerror}") from None
    etag = f'"{hashlib.sha256(data).hexdigest()}"'
    use = [text.replace(folder, "/path/to") for text in _use(name, variables, server_flags, notes)]
    packed, left_out = zlib.compress(data, 1), len(chosen.not_written)
    return Archive(name, packed, len(data), etag, left_out, chosen.flags, use)


def _use(
    name: str, variables: Sequence[str], server_flags: Sequence[ServerFlags], notes: Sequence[str]
) -> Iterator[str]:
    """Say how to point servers at the unpacked folder."""
    for variable in variables:
        yield export_line(variable, f"/path/to/{name}")
    yield from notes
    for flags in server_flags:
        yield f"server flags for {flags}"
    if variables:
        yield f"to go back: restart the servers after `{unset_line(variables)}`"


def files_state(folders: Iterable[Path]) -> str:
    """Return a text that changes if a file below the folders changes."""
    digest = hashlib.sha256()
    for folder in folders:
        # Not sorted: a folder lists its files in the same order until it changes.
        for parent, _, names in os.walk(folder):
            for path in (Path(parent, name) for name in names):
                about = path.stat()
                digest.update(f"{path} {about.st_size} {about.st_mtime_ns}\n".encode())
    return digest.hexdigest()
