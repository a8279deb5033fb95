"""Find in a server's log which config files the server loaded.

The engine's loaders log the files that they read, and the tuner's plugin logs the files that it
uses. Each process logs a file once, so every rank has a line, and ranks may differ.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate, takewhile
from pathlib import Path

from tuner.deploy.load_proof.deployed import (
    UNKNOWN,
    Deployed,
    FileOrigin,
    is_deployed,
    read_deployed,
)
from tuner.deploy.load_proof.messages import (
    PluginLines,
    is_cut,
    read_hooks,
    read_load,
    read_overrides,
)
from tuner.deploy.load_proof.proof import (
    FileLoad,
    Hook,
    LoadProof,
    Override,
    merged,
    other_server,
)
from tuner.deploy.load_proof.render import render_proof
from tuner.engines.logs.facts import Facts
from tuner.engines.logs.lines import BEGINS, BLANKS, blocks, lines_of
from tuner.engines.logs.nccl import Network
from tuner.errors import UnreadableLog

__all__ = [
    "LoadProof",
    "facts_of",
    "is_deployed",
    "other_server",
    "proof_of",
    "prove_loads",
    "read_deployed",
    "render_proof",
]

_READY = re.compile(
    r"The server is fired up and ready to roll|Application startup complete|Uvicorn running on http"
)
_AHEAD = 8  # lines into which a line may be wrapped


def prove_loads(paths: Iterable[Path], deployed: Deployed = UNKNOWN) -> LoadProof:
    """Read the logs of a launch. Raises UnreadableLog.

    `deployed` tells tuned files from the engine's own; without it, files on this machine do.
    """
    facts, logs = Facts(), tuple(paths)
    return replace(proof_of(_read(logs, facts), deployed), facts=facts, logs=logs)


def facts_of(paths: Iterable[Path]) -> Facts:
    """Return how the servers of logs or commands were started, and on which GPUs. Raises
    UnreadableLog.
    """
    facts = Facts()
    for _ in _read(paths, facts):
        pass
    return facts


def _read(paths: Iterable[Path], facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield (FILE:LINE, line) in turn, because a log may be larger than the memory."""
    for path in paths:
        first = 1
        try:
            with path.open("rb") as file:
                for block in blocks(file):
                    lines = lines_of(block)
                    squeezed = [line.translate(None, BLANKS) for line in lines]
                    facts.read(lines, squeezed, path.name, first)
                    for number, line in enumerate(lines, first):
                        yield f"{path.name}:{number}", line.decode(errors="replace")
                    first += len(lines)
        except OSError as error:
            raise UnreadableLog(f"{path} cannot be read: {error.strerror}") from None


def proof_of(lines: Iterable[tuple[str, str]], deployed: Deployed = UNKNOWN) -> LoadProof:
    """Collect the messages from (FILE:LINE, line) pairs; ignore other lines."""
    loads: list[FileLoad] = []
    overrides: dict[Override, None] = {}
    hooks: dict[Hook, None] = {}
    cut: list[str] = []
    plugin = PluginLines()
    network, ready = Network(), ""
    for where, texts in _with_wrapped(lines):
        line = texts[0]
        if load := read_load(texts, where):
            loads.append(load)
        elif is_cut(line):
            cut.append(where)
        plugin.read(texts, where)
        network.read(line, where)
        ready = ready or (where if _READY.search(line) else "")
        overrides.update(dict.fromkeys(read_overrides(line)))
        hooks.update(dict.fromkeys(read_hooks(line)))
    found = merged([*loads, *plugin.loads()])
    told = tuple(_with_origin(load, deployed) for load in found)
    return LoadProof(told, tuple(overrides), tuple(hooks), network, ready, deployed, tuple(cut))


def _with_wrapped(lines: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Yield (FILE:LINE, texts): a line alone, then with more and more of the lines after it that do
    not begin as a log's lines do, because a terminal may have wrapped it into them.
    """
    window: deque[tuple[str, str]] = deque()
    for item in lines:
        window.append(item)
        if len(window) > _AHEAD:
            yield _texts(window)
            window.popleft()
    while window:
        yield _texts(window)
        window.popleft()


def _texts(window: Iterable[tuple[str, str]]) -> tuple[str, list[str]]:
    (where, line), *after = window
    more = takewhile(lambda text: text and not BEGINS.match(text), (text for _, text in after))
    indented = (text.lstrip() if text.startswith("  ") else text for text in more)
    return where, list(accumulate((line, *indented)))


def _with_origin(load: FileLoad, deployed: Deployed) -> FileLoad:
    if not load.used:
        return load
    # The plugin reads no files but this package's.
    origin = FileOrigin.TUNED if load.by_plugin else deployed.origin(load.used)
    entries = deployed.statuses(load.used) if origin is FileOrigin.TUNED else ""
    return replace(load, origin=origin.value, entries=entries)
