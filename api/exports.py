"""Archives to download, one made at a time, and kept: exports of winners, and bundles."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio
from starlette.concurrency import run_in_threadpool

from tuner.deploy.bundle.archive import BundleFile, plain_tar
from tuner.deploy.bundle.build import Bundle, build_bundle
from tuner.deploy.cluster import Cluster, parse_cluster
from tuner.devices.table import Device
from tuner.engines.engine import Engine, find_engine
from tuner.engines.settings import options_text, server_settings
from tuner.errors import ExportRefused, MalformedCluster, UnwritableOutput
from tuner.export.export import (
    WayTo,
    choose,
    deliveries_for,
    export,
    package_folders,
    packaged_files,
    way_to,
)
from tuner.problems.points import Problem
from tuner.shell import export_line, unset_line
from tuner.store.results import ResultStore

KEPT_BYTES = 64 << 20  # some 35 archives of sglang's 1.8 MB: more than a fleet asks for
_REFUSAL_BYTES = 1 << 10
# Other requests need Python's lock too, and half of them must not notice an export: rests are so
# many times as long as the work before them. It takes milliseconds to look whether an archive is
# current, and up to seconds to make one, for which its own clients wait longer.
LOOK_REST = 6.0
MAKE_REST = 4.0
T = TypeVar("T")
_TAG = re.compile(r'(?:W/)?("[^"]*")')


@dataclass(frozen=True)
class ExportRequest:
    """Which export to make."""

    device: Device
    engine: str  # as `find_engine` takes it
    problem: Problem | None
    allow_predicted: bool
    server_args: str = ""  # what the servers are started with


@dataclass(frozen=True)
class Archive:
    """An export as a tar."""

    name: str  # of its one folder
    data: bytes
    etag: str
    left_out: int  # problems
    flags: str = ""  # to start servers with, besides what they are started with already
    use: Sequence[str] = ()  # how servers are pointed at the folder: a line of a shell, or a note


@dataclass(frozen=True)
class _State:
    """What an archive depends on, apart from the request."""

    engine: Engine
    package: str
    winners: str


@dataclass(frozen=True)
class _Kept:
    state: _State
    began: float  # when it began to be made, on the monotonic clock
    found: Archive | ExportRefused


class PacedTurns:
    """Work in a thread: one piece at a time, and after it a rest `rest` times as long.

    Clients that ask without a pause wait for one another, in the order in which they came; a client
    that asks now and then never waits.
    """

    def __init__(self, rest: float) -> None:
        self._rest = rest
        self._rested_at = 0.0
        self._lock = anyio.Lock()

    async def take(self, work: Callable[[], T], done: Callable[[], T | None] = lambda: None) -> T:
        """What `work` gives, or `done` if that gives something when the turn comes."""
        async with self._lock:
            found = done()
            if found is not None:
                return found
            await anyio.sleep(max(0.0, self._rested_at - anyio.current_time()))
            began = anyio.current_time()
            try:
                return await run_in_threadpool(work)
            finally:
                ended = anyio.current_time()
                self._rested_at = ended + self._rest * (ended - began)


class Exports:
    """Makes and keeps archives."""

    def __init__(self, store: ResultStore) -> None:
        self._store = store
        self._looking, self._making = PacedTurns(LOOK_REST), PacedTurns(MAKE_REST)
        # The least recently used first. Only the event loop changes it.
        self._kept: OrderedDict[ExportRequest, _Kept] = OrderedDict()
        self._folders: dict[tuple[str, str, Path], list[Path]] = {}

    async def get(self, wanted: ExportRequest) -> Archive:
        """The archive for what is stored now.

        Raises UnknownEngine, ExportRefused, UnusableStore, and UnwritableOutput where there is no
        room for temporary files.
        """
        asked = time.monotonic()
        state = await self._looking.take(lambda: self._look(wanted))

        def current() -> _Kept | None:
            kept = self._kept.get(wanted)
            return kept if kept and (kept.state == state or kept.began >= asked) else None

        kept = current()
        if kept is None:
            kept = await self._making.take(lambda: self._make(wanted), current)
        self._keep(wanted, kept)
        if isinstance(kept.found, ExportRefused):
            found = kept.found
            raise ExportRefused(found.message, cli=found.cli, api=found.api, page=found.page)
        return kept.found

    def _look(self, wanted: ExportRequest) -> _State:
        engine = find_engine(wanted.engine)
        place = (engine.name, engine.version, engine.root)
        if place not in self._folders:
            self._folders[place] = package_folders(engine)
        winners = self._store.winners_state(
            device=wanted.device.name, engine=engine.name, engine_version=engine.version
        )
        return _State(engine, _files_state(self._folders[place]), winners)

    def _make(self, wanted: ExportRequest) -> _Kept:
        began = time.monotonic()
        state = self._look(wanted)  # it may have changed while the request waited
        return _Kept(state, began, make_archive(self._store, wanted, state.engine))

    def _keep(self, wanted: ExportRequest, kept: _Kept) -> None:
        self._kept[wanted] = kept
        self._kept.move_to_end(wanted)
        while sum(_size(one.found) for one in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)


def is_named(etag: str, if_none_match: Iterable[str]) -> bool:
    """Whether an If-None-Match names a tag, by RFC 9110's weak comparison."""
    named = ",".join(if_none_match)
    return named.strip() == "*" or etag in _TAG.findall(named)


def _size(found: Archive | ExportRefused) -> int:
    return len(found.data) if isinstance(found, Archive) else _REFUSAL_BYTES


def make_archive(
    store: ResultStore, wanted: ExportRequest, engine: Engine
) -> Archive | ExportRefused:
    """An archive of what is stored, or why there is none.

    Raises UnusableStore, and UnwritableOutput where there is no room for temporary files.
    """
    problems = [wanted.problem] if wanted.problem is not None else []
    name = f"{wanted.device.name}-{engine.name}-{engine.version}"
    try:
        with tempfile.TemporaryDirectory(prefix="tuner-export-") as folder:
            root = Path(folder) / name
            chosen = choose(
                store,
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
            files_of = export(chosen.winners, engine, wanted.device, root, chosen.not_written)
            way = way_to(root, files_of, deliveries_for(chosen.winners, engine), engine)
            # The engine's packaged files are added without copying them into the folder.
            files = {path.as_posix(): file for path, file in packaged_files(engine)}
            files |= {p.relative_to(root).as_posix(): p for p in root.rglob("*") if p.is_file()}
            data = plain_tar(
                name, {path: BundleFile(file.read_bytes()) for path, file in files.items()}
            )
    except ExportRefused as refusal:
        return refusal
    except OSError as error:
        raise UnwritableOutput(f"cannot write a temporary folder: {error.strerror}") from None
    etag = f'"{hashlib.sha256(data).hexdigest()}"'
    use = [text.replace(folder, "/path/to") for text in _use(way, name)]
    return Archive(name, data, etag, len(chosen.not_written), options_text(chosen.flags), use)


def _use(way: WayTo, name: str) -> Iterator[str]:
    """Say how servers are pointed at the unpacked folder."""
    for variable in way.variables:
        yield export_line(variable, f"/path/to/{name}")
    yield from way.notes
    for flags in way.server_flags:
        yield f"server flags for {flags}"
    if way.variables:
        yield f"to go back: restart the servers after `{unset_line(way.variables)}`"


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


_KEPT = 4  # of 1 MB or so
_REST = 1.0  # after a bundle, other requests have Python's lock for as long as it took


def read_posted(text: str) -> Cluster:
    """The cluster of a posted cluster.toml. Raises MalformedCluster.

    It may not name a config.json: that would be a file of this server.
    """
    cluster = parse_cluster(text)
    if cluster.model.config is not None:
        raise MalformedCluster(
            "model.config names a file, which a server does not read: leave it out and give "
            "model.name a preset's name, or run `tuner bundle`",
        )
    if not re.fullmatch(r"[A-Za-z0-9.+!_-]*", cluster.engine.release):
        raise MalformedCluster(f"engine.version is like 0.5.16, not {cluster.engine.release!r}")
    return cluster


@dataclass(frozen=True)
class BundleRequest:
    """Which bundle to make."""

    cluster: Cluster
    device: Device
    allow_predicted: bool
    allow_missing: bool


class Bundles:
    """Makes bundles one at a time, and keeps the newest: who saw one then downloads it."""

    def __init__(self, store: ResultStore) -> None:
        self._store = store
        self._turns = PacedTurns(_REST)
        # What was asked, and the state of the store then. Only the event loop changes it.
        self._kept: deque[tuple[BundleRequest, str, Bundle]] = deque(maxlen=_KEPT)

    async def get(self, asked: BundleRequest) -> Bundle:
        """Build the bundle from the winners that are stored now.

        Raises UnknownEngine, ExportRefused and MalformedCluster, as `build_bundle` does.
        """
        state, found = await self._turns.take(lambda: self._find(asked))
        if all(found is not bundle for _, _, bundle in self._kept):
            self._kept.append((asked, state, found))
        return found

    def _find(self, asked: BundleRequest) -> tuple[str, Bundle]:
        engine, device = find_engine(asked.cluster.engine.spec), asked.device.name
        name, version = engine.name, engine.version
        state = self._store.winners_state(device=device, engine=name, engine_version=version)
        for kept, its_state, bundle in tuple(self._kept):
            if (kept, its_state) == (asked, state):
                return state, bundle
        built = build_bundle(
            self._store.winners(device=device, engine=name, engine_version=version),
            asked.cluster,
            engine,
            asked.device,
            allow_predicted=asked.allow_predicted,
            allow_missing=asked.allow_missing,
        )
        return state, built
