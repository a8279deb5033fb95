"""The GPUs that a text names without showing the server's: in file names and in people's words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tuner.devices.in_words import cards_in
from tuner.devices.table import find_device
from tuner.errors import UnknownDevice

_VENDORS = {"nvidia", "amd", "instinct", "tesla", "geforce"}


@dataclass(frozen=True)
class NamedCard:
    """A GPU as a text spells it, and the place of its first naming, FILE:LINE."""

    name: str
    where: str
    in_words: bool  # the driver's name for it may be a longer one

    @property
    def words(self) -> list[str]:
        return [w for w in re.findall(r"[a-z0-9]+", self.name.lower()) if w not in _VENDORS]


@dataclass
class Cards:
    """The named GPUs, each once, whatever its spelling."""

    named: dict[str, NamedCard] = field(default_factory=dict)

    def add(self, name: str, where: str, *, in_words: bool) -> None:
        """Keep a name; that of a file is surer than people's word for the same GPU."""
        new = NamedCard(name, where, in_words)
        try:
            key = find_device(name).name
        except UnknownDevice:
            key = " ".join(new.words)
        if key not in self.named or (self.named[key].in_words and not in_words):
            self.named[key] = new

    def read(self, line: str, where: str) -> None:
        """Keep the GPUs that people name in a line."""
        for name in cards_in(line):
            self.add(name, where, in_words=True)

    def sole(self) -> NamedCard | None:
        """The GPU, if the text names one alone."""
        found = list(self.several())
        return found[0] if len(found) == 1 else None

    def several(self) -> Iterator[NamedCard]:
        """The named GPUs, without a shorter name of another: H100 beside NVIDIA_H100_PCIe."""
        for card in self.named.values():
            longer = (one.words[: len(card.words)] for one in self.named.values() if one != card)
            if card.words not in longer:
                yield card
