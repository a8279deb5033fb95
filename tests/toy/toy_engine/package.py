from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_VERSION = "1.2.3"


@dataclass(frozen=True)
class ToyEngine:
    version: str
    root: Path

    name = "toyengine"

    def loads_plugins(self) -> bool:
        return False

    def card_name(self, name: str) -> str:
        return name


ENGINE = ToyEngine
