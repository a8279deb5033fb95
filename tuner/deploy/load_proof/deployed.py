"""Read the config folder that servers were pointed at: a bundle's, or the output of `tuner export`.

The folder tells the tuned files from the engine's own, which lie beside them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from tuner.deploy.bundle.manifest import CONFIGS, NAME, read_manifest
from tuner.engines.config_files import PROVENANCE, entries_of, environments_of, provenance_of
from tuner.errors import BadInput, BadProblem, BundleRefused
from tuner.problems.points import Problem
from tuner.problems.registry import parse_problem
from tuner.problems.results import Status, counted

_GZIP = b"\x1f\x8b"
# Parts of paths inside the engines' packages.
_PACKAGES = ("/sglang/srt/", "/vllm/model_executor/")


class FileOrigin(str, Enum):
    """The origin of a file that a server loaded."""

    TUNED = "tuned"
    SHIPPED = "shipped"  # the engine's own
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Deployed:
    """The files of a config folder, with paths below it."""

    tuned: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # entries by status
    packaged: frozenset[str] = frozenset()
    root: str = ""  # the folder, if it is on this machine
    nodes: int = 0  # of the bundle's cluster; 0: no bundle was given
    ranks: int = 0  # of the bundle's cluster; 0: no bundle was given
    tp: int = 0
    rdma: bool = True  # whether the bundle's servers use RDMA between nodes
    known: bool = True
    # The servers that the files are for, as far as all agree: engine, version, device, tp, ep.
    made_for: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, Problem] = field(default_factory=dict)  # of tuned files, by name
    asked: frozenset[str] = frozenset()  # files that a bundle's servers ask for; none: not known
    pp: int = 1

    @property
    def engine(self) -> str:
        return self.made_for.get("engine", "")

    @property
    def replicated(self) -> bool:
        """Say whether each of several replicas has ranks from 0 on."""
        return self.tp * self.pp < self.ranks

    @property
    def names(self) -> set[str]:
        """Return the names of the tuned files, without .json."""
        return {name_of(path) for path in self.tuned}

    def origin(self, used: str) -> FileOrigin:
        """Return the origin of a file by the path in the server's log."""
        path = used.replace("\\", "/")
        if self.root and path.startswith(f"{self.root}/"):
            below = path.removeprefix(f"{self.root}/")
            return FileOrigin.TUNED if below in self.tuned else FileOrigin.SHIPPED
        if any(part in path for part in _PACKAGES):
            return FileOrigin.SHIPPED
        if not self.known:
            tuned = _statuses(provenance_of(Path(path)))
            return FileOrigin.TUNED if tuned else FileOrigin.UNKNOWN
        if any(path.endswith(f"/{one}") for one in self.tuned):
            return FileOrigin.TUNED
        carried = any(path.endswith(f"/{one}") for one in self.packaged)
        return FileOrigin.SHIPPED if carried else FileOrigin.UNKNOWN

    def statuses(self, used: str) -> str:
        """Return the number of a tuned file's entries by status: "36 predicted"."""
        path = used.replace("\\", "/")
        found = next((n for one, n in self.tuned.items() if path.endswith(f"/{one}")), {})
        return counted(found)

    @property
    def own(self) -> int:
        """Return the number of entries, if all of them are the engine's own choice; else 0."""
        if any(counts.keys() - {Status.INCUMBENT.value} for counts in self.tuned.values()):
            return 0
        return sum(sum(counts.values()) for counts in self.tuned.values())


UNKNOWN = Deployed(known=False)


def name_of(path: str) -> str:
    """Return a config file's name without .json."""
    return path.replace("\\", "/").rpartition("/")[2].removesuffix(".json")


def is_deployed(path: Path) -> bool:
    """Say whether a path is a bundle or a folder, and not a log."""
    if not path.is_file():
        return path.is_dir()
    try:
        with path.open("rb") as file:
            return file.read(2) == _GZIP
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None


def read_deployed(path: Path) -> Deployed:
    """Read a bundle's archive, an unpacked bundle, or a folder that `tuner export` wrote.

    Raises BundleRefused for a damaged bundle, and BadInput for other files.
    """
    if path.is_file() or (path / NAME).is_file():
        root = str((path / CONFIGS).resolve()) if path.is_dir() else ""
        try:
            return _bundle(read_manifest(path), root)
        except (KeyError, TypeError, AttributeError):
            raise BundleRefused(f"{NAME} lacks fields of a bundle's manifest") from None
    if (path / PROVENANCE).is_dir():
        return _exported(path.resolve())
    raise BadInput(
        f"{path} holds neither {NAME} nor {PROVENANCE}/: give a bundle, or the folder that "
        "`tuner export` wrote"
    )


def _bundle(manifest: Mapping[str, Any], root: str) -> Deployed:
    below = f"{CONFIGS}/"
    tuned: dict[str, Counter[str]] = {}
    for row in manifest["entries"]:
        counts = tuned.setdefault(str(row["file"]).removeprefix(below), Counter())
        counts[str(row["status"])] += 1
    problems = {name_of(row["file"]): row["problem"] for row in manifest["entries"]}
    asked = frozenset(name_of(name) for name in manifest["keys"]["asked"])
    paths = {row["path"].removeprefix(below) for row in manifest["files"]}
    cluster = manifest["cluster"]
    engine, _, version = str(manifest["configs"]["tuned_for"]).partition(" ")
    made_for = {"engine": engine, "version": version, "device": str(manifest["device"])}
    sizes = cluster["parallel"]
    made_for |= {name: str(sizes[name]) for name in ("tp", "ep") if name in sizes}
    tp = int(sizes["tp"])
    return Deployed(
        *(tuned, frozenset(paths - tuned.keys()), root, len(cluster.get("nodes", ()))),
        *(int(cluster.get("gpus", tp)), tp, bool(cluster.get("rdma", True))),
        pp=int(sizes.get("pp", 1)),
        made_for=made_for,
        problems=_parsed(problems),
        asked=asked,
    )


def _exported(root: Path) -> Deployed:
    tuned: dict[str, Mapping[str, int]] = {}
    packaged = set()
    made_for: dict[str, set[str]] = {}
    problems: dict[str, Any] = {}
    for path in sorted(root.rglob("*.json")):
        below = path.relative_to(root)
        if below.parts[0] == PROVENANCE:
            continue
        sidecar = provenance_of(path)
        counts = _statuses(sidecar)
        if counts:
            tuned[below.as_posix()] = counts
            problems[name_of(path.name)] = sidecar.get("problem")
            for name, value in _environments(sidecar):
                made_for.setdefault(name, set()).add(value)
        else:
            packaged.add(below.as_posix())
    agreed = {name: values.pop() for name, values in made_for.items() if len(values) == 1}
    known = _parsed(problems)
    return Deployed(tuned, frozenset(packaged), str(root), made_for=agreed, problems=known)


def _parsed(specs: Mapping[str, Any]) -> dict[str, Problem]:
    """Return the problems of files, without problems that this version does not know."""
    found = {}
    for name, spec in specs.items():
        with contextlib.suppress(BadProblem):
            found[name] = parse_problem(str(spec))
    return found


def _environments(sidecar: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of the environments of a tuned file's entries."""
    names = {"engine": "engine", "version": "engine_version", "device": "device"}
    for known in environments_of(sidecar):
        yield from ((ours, str(known[name])) for ours, name in names.items() if name in known)


def _statuses(sidecar: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the entries of a file by status; none if the file has no sidecar."""
    try:
        return Counter(str(row["status"]) for row in entries_of(sidecar))
    except (KeyError, TypeError):
        return {}
