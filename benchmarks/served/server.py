"""How an engine's server is started and asked, so that a live one can be measured.

The module `<engine>_server` has `open_server()`, which gives a `Server`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol


@dataclass(frozen=True)
class ServerLaunch:
    """One server to start."""

    version: str  # the engine's release
    model: str  # a folder, or a name on the hub
    port: int
    tp: int
    args: Sequence[str]  # further flags, which come last and so override
    dummy: bool  # random weights instead of the checkpoint's
    memory: float | None  # the share of the GPU's memory that it may take; None: its default


@dataclass(frozen=True)
class Post:
    """A request to a server; `body` is JSON."""

    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """A greedy answer to one prompt, with natural log-probabilities."""

    prompt: tuple[float, ...]  # of each token of the prompt after the first
    tokens: tuple[int, ...]  # that the server chose
    chosen: tuple[float, ...]  # of these tokens


class Server(Protocol):
    """What the servers of one engine are told and asked."""

    @property
    def ready_path(self) -> str:
        """The path that answers 200 as soon as the server takes requests."""
        ...

    @property
    def memory_shares(self) -> tuple[float, float]:
        """The `ServerLaunch.memory` of two servers on the same GPUs, in the order of starting."""
        ...

    def command(self, launch: ServerLaunch) -> list[str]:
        """The words after `python -m`."""
        ...

    def stream(self, prompt: Sequence[int], tokens: int) -> Post:
        """Ask for exactly so many tokens, as server-sent events."""
        ...

    def streamed(self, event: Mapping[str, Any]) -> int:
        """How many tokens were answered up to an event."""
        ...

    def greedy(self, prompt: Sequence[int], tokens: int) -> Post:
        """Ask for a greedy answer with the log-probabilities of prompt and answer."""
        ...

    def answer(self, body: Mapping[str, Any]) -> Answer:
        """Read the answer to `greedy`. Raises KeyError, TypeError, IndexError or ValueError."""
        ...

    def backend(self, args: Sequence[str], phase: str) -> str | None:
        """The attention backend that flags choose for "prefill" or "decode"; None: no flag does."""
        ...

    def backend_flags(self, prefill: str, decode: str) -> str:
        """The flags that choose these attention backends."""
        ...


def server_of(engine: str) -> Server:
    """The server of an engine."""
    found: Server = import_module(f"benchmarks.served.{engine}_server").open_server()
    return found


def flag_value(args: Sequence[str], *names: str) -> str | None:
    """The value of the last of some flags, given as `--flag value` or `--flag=value`."""
    found = None
    for word, following in zip(args, [*args, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else following
    return found
