"""What decides, besides problem, card and release, which kernel a server runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ServerSettings:
    """What is known of a server. An empty text is not known, and no flags are the default ones."""

    architecture: str = ""  # the class of its model
    checkpoint: str = ""  # how that stores experts: `stored_as` of a model
    server_args: str = ""  # flags and variables, as people type them

    def as_json(self) -> dict[str, str]:
        """The texts by name, without empty ones."""
        return {name: text for name, text in asdict(self).items() if text}

    def __bool__(self) -> bool:
        return self != UNKNOWN_SERVER


UNKNOWN_SERVER = ServerSettings()


def read_server(values: Mapping[str, Any]) -> ServerSettings:
    """Read what `as_json` gives, among other values. Earlier programs did not write all of it."""
    names = asdict(UNKNOWN_SERVER)
    return ServerSettings(**{name: str(values.get(name, "")) for name in names})
