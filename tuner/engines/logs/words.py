"""Read a server's engine, model and GPU from people's own words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from tuner.engines.logs.cards import Cards
from tuner.models.table import presets

# An engine's name as a word of its own: no part of a path, a package, an image or a link.
_ENGINE = re.compile(r"(?<![\w/.@-])(?:sglang|vllm)(?![A-Za-z_/]|[.:-]\w)", re.IGNORECASE)
_IN_WORDS = 1 << 18  # bytes: people's words are short, and logs are long


@dataclass(frozen=True)
class Fact:
    """A value, and the place where it was read, FILE:LINE."""

    value: str
    where: str


@dataclass
class Words:
    """The names of engines, models and GPUs in the first lines of a text."""

    cards: Cards = field(default_factory=Cards)  # also cards in names of files
    _engines: set[str] = field(default_factory=set)
    _models: dict[str, Fact] = field(default_factory=dict)  # by their keys
    _read: int = 0  # bytes

    def read(self, lines: Sequence[bytes], name: str, first: int) -> None:
        """Read the GPUs, engines and models that people name."""
        for number, line in enumerate(lines, first):
            self._read += len(line)
            if self._read > _IN_WORDS:
                return
            text = line.decode("utf-8", errors="replace")
            self.cards.read(text, f"{name}:{number}")
            self._engines |= {word.lower() for word in _ENGINE.findall(text)}
            for match in _known_models().finditer(text):
                key = re.sub(r"[\s_-]", "", match[0]).lower()
                self._models.setdefault(key, Fact(match[0].replace(" ", "-"), f"{name}:{number}"))

    @property
    def engine(self) -> str:
        """Return the only engine that words name; "" if they name none or both."""
        return next(iter(self._engines)) if len(self._engines) == 1 else ""

    @property
    def model(self) -> Fact | None:
        """Return the only model that words name.

        A name that begins another is the same model's: Qwen3-30B-A3B beside Qwen3-30B-A3B-FP8.
        """
        longest = max(self._models, key=len, default="")
        alone = all(map(longest.startswith, self._models))
        return self._models[longest] if longest and alone else None


@cache
def _known_models() -> re.Pattern[str]:
    """Return the pattern of known models in people's words, with suffixes: -FP8, -Instruct."""
    names = {name for model in presets() for name in (model.name, *model.aliases)}
    words = [
        r"[\s_-]?".join(map(re.escape, name.split("-")))
        for name in sorted(names, key=len, reverse=True)
    ]
    words.append(r"[A-Za-z][\w.]*(?:-[\w.]+){0,3}-\d+B-A\d+B")  # Qwen3-Omni-30B-A3B
    ends = r"(?:[-_](?!down\b)[A-Za-z0-9][\w.]*\w)*(?![\w-])"
    parser = "".join(rf"(?<!parser{before})" for before in (" ", "='", ' "', " '", '", "', '=\\"'))
    return re.compile(rf"(?<![\w./=-]){parser}(?:{'|'.join(words)}){ends}", re.IGNORECASE)
