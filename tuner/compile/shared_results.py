"""What hosts share of a compile: its result, and the files that Triton's own cache keeps of it.

The files go back into Triton's cache on the host that asks. There Triton finds them by a hash of
its own, over its own code, the kernel's source and all options, and compiles as ever where it does
not. So a process that launches kernels needs nothing of this module.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.metadata import PathDistribution, distribution
from pathlib import Path

from tuner.compile.environment import TritonRelease
from tuner.compile.results import compile_code
from tuner.compile.shared import SharedCache
from tuner.devices.target import Target
from tuner.kernels.binding import Variant
from tuner.kernels.lift import Lifted
from tuner.problems.results import Compiled, Status
from tuner.problems.triton import PTXAS_SETTINGS

log = logging.getLogger("tuner.compile")

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,200}")  # Triton 3.2's folders are base64
_GROUP = "__grp__"  # before the name of the file that lists the others
_LARGEST = 256 << 20  # bytes of a result that was unpacked


@dataclass(frozen=True)
class SharedResult:
    """A compile result, and the folder of Triton's cache that has its machine code."""

    compiled: Compiled
    folder: str = ""  # its name; "" where nothing was compiled
    files: Mapping[str, bytes] | None = None

    def pack(self) -> bytes:
        """The result as bytes, which `unpack` reads."""
        files = self.files or {}
        head = {
            "compiled": {**asdict(self.compiled), "status": self.compiled.status.value},
            "folder": self.folder,
            "files": [[name, len(data)] for name, data in files.items()],
        }
        return zlib.compress(json.dumps(head).encode() + b"\n" + b"".join(files.values()), 1)


def unpack(data: bytes) -> SharedResult:
    """Read what `SharedResult.pack` made. Raises ValueError for anything else."""
    try:
        unpacker = zlib.decompressobj()
        whole = unpacker.decompress(data, _LARGEST)
        if not unpacker.eof:
            raise ValueError("it is cut off, or too large")
        line, _, rest = whole.partition(b"\n")
        head = json.loads(line)
        fields = head["compiled"]
        compiled = Compiled(**{**fields, "status": Status(fields["status"]), "cached": True})
        files, at = {}, 0
        for name, size in head["files"]:
            files[_safe(name)] = rest[at : at + size]
            at += size
        folder = _safe(head["folder"]) if files else ""
    except (zlib.error, KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if at != len(rest) or compiled.ok != bool(files):
        raise ValueError("its files do not fit its result")
    return SharedResult(compiled, folder, files)


class SharedResults:
    """The results of one Triton in a shared cache."""

    def __init__(self, cache: SharedCache, build: str, env: Mapping[str, str]) -> None:
        """`build` is Triton's, from `triton_build`; `env` is the compile processes'."""
        self._cache = cache
        self._build = [build, *(_file_hash(env.get(name)) for name in PTXAS_SETTINGS)]
        self._triton_cache = Path(env["TRITON_CACHE_DIR"])

    def get(self, lifted: Lifted, variant: Variant, target: Target) -> Compiled | None:
        """The result, with its machine code put into Triton's cache here; None where absent.

        Raises OSError where Triton's cache cannot be written.
        """
        key = self.key(lifted, variant, target)
        data = self._cache.get(key)
        if data is None:
            return None
        try:
            found = unpack(data)
        except ValueError as error:
            log.warning("shared cache: %s is not used: %s", key, error)
            return None
        if found.files:
            _restore(self._triton_cache / found.folder, found.files)
        return found.compiled

    def put(
        self,
        lifted: Lifted,
        variant: Variant,
        target: Target,
        compiled: Compiled,
        files: Sequence[str],
    ) -> None:
        """Share a result. `files` are the paths of its machine code in Triton's cache."""
        result = SharedResult(replace(compiled, cached=False))
        if compiled.ok:
            paths = [Path(path) for path in files]
            folders = {path.parent.name for path in paths}
            if len(folders) != 1:
                log.warning("shared cache: a result is not shared: Triton named no files of it")
                return
            try:
                read = {_safe(path.name): path.read_bytes() for path in paths}
            except (OSError, ValueError) as error:
                log.warning("shared cache: a result is not shared: %s", error)
                return
            result = replace(result, folder=folders.pop(), files=read)
        self._cache.put(self.key(lifted, variant, target), result.pack())

    def key(self, lifted: Lifted, variant: Variant, target: Target) -> str:
        """The hash of everything that decides a result and its machine code."""
        parts = [lifted.hash, variant.as_json(), asdict(target), self._build, compile_code()]
        # The order of a signature is the source's, so that sorting loses nothing.
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def share_results(
    cache: SharedCache | None, triton: TritonRelease, env: Mapping[str, str]
) -> SharedResults | None:
    """The results of a Triton in a cache; None without a cache, or where its build is unknown."""
    if cache is None:
        return None
    build = triton_build(triton)
    if not build:
        log.warning("shared cache: not used: Triton %s does not list its files", triton.version)
        return None
    return SharedResults(cache, build, env)


@lru_cache(maxsize=16)
def triton_build(triton: TritonRelease) -> str:
    """What tells one build of a Triton from another: a hash of its files' hashes, as its
    distribution lists them. It covers its compiler, its ptxas and its Python. "" where they are not
    listed: then its results are not shared.
    """
    if triton.folder is None:
        found = distribution("triton")
    else:
        info = next(triton.folder.glob("triton-*.dist-info"), None)
        if info is None:
            return ""
        found = PathDistribution(info)
    listed = sorted(
        f"{path} {path.hash.value}"
        for path in found.files or ()
        if path.parts[0] == "triton" and path.suffix != ".pyc" and path.hash is not None
    )
    if not listed:
        return ""
    return hashlib.sha256("\n".join([triton.version, *listed]).encode()).hexdigest()


def _restore(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of Triton's cache, the list of its files last, each file in one step."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata = next(name for name in files if name.endswith(".json"))
    listed = {name: str(folder / name) for name in files}
    group = json.dumps({"child_paths": listed}).encode()
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for name, data in {**files, f"{_GROUP}{metadata}": group}.items():
            whole = Path(scratch, name)
            whole.write_bytes(data)
            whole.replace(folder / name)


def _safe(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith(_GROUP):
        raise ValueError(f"{name!r} is no name of a file in Triton's cache")
    return name


def _file_hash(path: str | None) -> str:
    if not path:
        return ""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return f"unreadable: {path}"
