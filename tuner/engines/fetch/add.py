"""Add an engine with the Triton that it pins, and remove them."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.version import InvalidVersion, Version

from tuner.engines.engine import RECORD, PackageSource, find_packages, find_triton, own_folders
from tuner.engines.fetch import pip
from tuner.engines.fetch.archive import unpack_engine
from tuner.engines.fetch.pins import TRITON, released_with
from tuner.engines.fetch.ranges import RangesRefused, RemoteFile
from tuner.errors import EngineNotFetched, TunerError, UnknownEngine, did_you_mean

WHOLE_BYTES = 64 << 20  # a smaller wheel is downloaded whole: the index has a hash of it
PART = ".part"  # ends the name of a folder until it is complete
Say = Callable[[str], None]


def add(name: str, version: str, say: Say, *, with_triton: bool = True) -> Path:
    """Put an engine, or a Triton, into the first of `own_folders` that can be written.

    An engine gets a record of the Triton that it pins, which is added too. Existing copies stay as
    they are. Returns the folder. Raises UnknownEngine for a version that the index lacks, and
    EngineNotFetched.
    """
    release = _release(name, version)
    with _locked_folder() as parent:
        if name == TRITON:
            return _add_triton(parent, release, say)
        folder = _there(name, release) or _add_engine(parent, name, release, say)
        try:
            triton = _recorded(folder) or _record(folder, name, say)
            if triton and with_triton:
                _add_triton(parent, triton, say)
        except TunerError as error:
            raise EngineNotFetched(
                f"{name} {release} is added, but not the Triton that it pins: {error}"
            ) from None
        return folder


def remove(name: str, version: str) -> Path:
    """Remove an engine or Triton that `add` added. Returns the folder that was there.

    Raises UnknownEngine if it was not added.
    """
    release = _release(name, version)
    folder = _there(name, release)
    if folder is None:
        here = [p.version for p in find_packages(name) if p.source is PackageSource.UNPACKED]
        known = did_you_mean(version, here) or (f", only {', '.join(here)}" if here else "")
        raise UnknownEngine(f"`tuner list engines --add` has added no {name}=={version}{known}")
    try:
        hidden = Path(tempfile.mkdtemp(dir=folder.parent, suffix=PART))
        folder.replace(hidden / folder.name)  # at once, so that nobody finds half of it
        shutil.rmtree(hidden)
    except OSError as error:
        raise EngineNotFetched(f"cannot remove {folder}: {error.strerror}") from None
    return folder


def _release(name: str, version: str) -> str:
    try:
        return str(Version(version))
    except InvalidVersion:
        raise UnknownEngine(
            f"{version!r} is not a version: write {name}==VERSION, such as {name}==0.10.2"
        ) from None


def _there(name: str, release: str) -> Path | None:
    folders = (own / f"{name}-{release}" for own in own_folders())
    return next((folder for folder in folders if folder.is_dir()), None)


def _add_engine(parent: Path, name: str, release: str, say: Say) -> Path:
    requirement = f"{name}=={release}"
    say(f"asking pip for {requirement}")
    wheel = pip.find_wheel(requirement, pip.engine_tags())
    folder = _there(name, wheel.version) or parent / f"{name}-{wheel.version}"
    if not folder.is_dir():
        try:
            _read_parts(wheel.url, name, folder, say)
        except RangesRefused:
            _read_whole(requirement, name, folder, say)
    return folder


def _read_parts(url: str, name: str, folder: Path, say: Say) -> None:
    """Unpack a large wheel without downloading all of it.

    Raises RangesRefused for a small wheel, or if the server sends no ranges.
    """
    remote = RemoteFile(url)
    if remote.size <= WHOLE_BYTES:
        raise RangesRefused(url)
    say(f"reading its Python and JSON out of a wheel of {_mb(remote.size)}")
    with _part(folder) as part:
        unpack_engine(io.BufferedReader(remote), name, part)
    say(f"{_mb(remote.transferred)} were transferred; {folder.name} is in {folder.parent}")


def _read_whole(requirement: str, name: str, folder: Path, say: Say) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, suffix=PART) as scratch:
        wheel = pip.download(requirement, Path(scratch), pip.engine_tags())
        with _part(folder) as part:
            unpack_engine(wheel, name, part)
    say(f"{folder.name} is in {folder.parent}")


def _add_triton(parent: Path, version: str, say: Say) -> Path:
    found = find_triton(version)
    if found is not None:
        say(f"Triton {version} is in {found}")
        return found
    folder = parent / f"{TRITON}-{version}"
    say(f"getting Triton {version}")
    with _part(folder) as part:
        pip.unpack(f"{TRITON}=={version}", part)
    say(f"{folder.name} is in {folder.parent}")
    return folder


def _recorded(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / RECORD).read_text(encoding="utf-8"))["triton"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _record(folder: Path, name: str, say: Say) -> str | None:
    """Write down which Triton an unpacked engine pins."""
    say("asking pip which Triton it pins")
    found = importlib.metadata.distributions(name=name, path=[str(folder)])
    lines = next((one.requires for one in found), None) or ()
    triton = released_with(pip.parse_requirements(lines))
    if triton is None:
        say(f"{folder.name} pins no Triton")
        return None
    new = folder / f"{RECORD}{PART}"
    new.write_text(json.dumps({"triton": triton}) + "\n", encoding="utf-8")
    new.replace(folder / RECORD)
    return triton


@contextlib.contextmanager
def _locked_folder() -> Iterator[Path]:
    """Lock the folder to add to against other processes, and yield it."""
    parent = _writable_folder()
    with (parent / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EngineNotFetched(
                f"another `tuner list engines --add` writes to {parent}: try again when it is done"
            ) from None
        for left_over in parent.glob(f"*{PART}"):  # by a process that was killed
            shutil.rmtree(left_over)
        try:
            yield parent
        except OSError as error:
            raise EngineNotFetched(f"cannot write to {parent}: {error}") from None


def _writable_folder() -> Path:
    for folder in own_folders():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    raise EngineNotFetched(f"cannot write to {' or '.join(map(str, own_folders()))}")


@contextlib.contextmanager
def _part(folder: Path) -> Iterator[Path]:
    """Make an empty folder; give it the name of `folder` if all goes well, else remove it."""
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}.", suffix=PART))
    try:
        yield part
        part.chmod(0o755)  # mkdtemp's folders are their owner's alone
        part.replace(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
