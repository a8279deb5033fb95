"""Find in a server's log which config files the server loaded.

The engine's loaders log the files that they read, and the tuner's plugin logs the files that it
uses. Each process logs a file once, so every rank has a line, and ranks may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from tuner.deploy.load_proof.deployed import (
    UNKNOWN,
    Deployed,
    Origin,
    is_deployed,
    read_deployed,
)
from tuner.deploy.load_proof.messages import read_hooks, read_load, read_overrides
from tuner.deploy.load_proof.network import Network
from tuner.deploy.load_proof.plugin import PluginLines
from tuner.deploy.load_proof.proof import PLUGINS, FileLoad, Hook, LoadProof, Override, merged
from tuner.deploy.load_proof.render import render_proof
from tuner.errors import UnreadableLog

__all__ = [
    "LoadProof",
    "is_deployed",
    "proof_of",
    "prove_loads",
    "read_deployed",
    "render_proof",
]


def prove_loads(paths: Iterable[Path], deployed: Deployed = UNKNOWN) -> LoadProof:
    """Read one or several logs of the same launch. Raises UnreadableLog.

    `deployed` tells tuned files from the engine's own; without it, files on this machine do.
    """
    return proof_of(_read(paths), deployed)


def _read(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield (FILE:LINE, line) one by one, because a log may be larger than the memory."""
    for path in paths:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    yield f"{path.name}:{number}", line.rstrip("\n")
        except OSError as error:
            raise UnreadableLog(f"{path} cannot be read: {error.strerror}") from None


def proof_of(lines: Iterable[tuple[str, str]], deployed: Deployed = UNKNOWN) -> LoadProof:
    """Collect the messages from (FILE:LINE, line) pairs; ignore other lines."""
    loads: list[FileLoad] = []
    overrides: dict[Override, None] = {}
    hooks: dict[Hook, None] = {}
    plugin = PluginLines()
    network = Network()
    for where, line in lines:
        if load := read_load(line, where):
            loads.append(load)
        plugin.read(line, where)
        network.read(line, where)
        overrides.update(dict.fromkeys(read_overrides(line)))
        hooks.update(dict.fromkeys(read_hooks(line)))
    found = merged([*loads, *plugin.loads()])
    told = tuple(_with_origin(load, deployed) for load in found)
    return LoadProof(told, tuple(overrides), tuple(hooks), network, deployed)


def _with_origin(load: FileLoad, deployed: Deployed) -> FileLoad:
    if not load.used:
        return load
    # The plugin reads no files but this package's.
    origin = Origin.TUNED if load.family in PLUGINS else deployed.origin(load.used)
    entries = deployed.statuses(load.used) if origin is Origin.TUNED else ""
    return replace(load, origin=origin.value, entries=entries)
