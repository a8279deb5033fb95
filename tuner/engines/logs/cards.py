"""Find GPUs that a text only names, in file names and in people's words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tuner.devices.named_cards import cards_in
from tuner.devices.table import find_device
from tuner.errors import UnknownDevice

_SENTENCES = re.compile(r"(?<=[.!?;])\s+")
_BESIDE = re.compile(
    r"\b(?:unlike|compared (?:to|with)|than|as opposed to|rather than|similar to)\b[^,.;:()]*",
    re.IGNORECASE,
)
_WELL = re.compile(
    r"\b(?:works?|worked|runs?|is|are|was) (?:fine|well|OK|okay|perfectly)\b"
    r"|\bno (?:problem|issue)s?\b"
    r"|\b(?:does|did)(?: not|n't) happen\b",
    re.IGNORECASE,
)
_BUT = re.compile(r"\b(?:but|however|while|whereas|except|until|before)\b", re.IGNORECASE)
_VENDORS = {"nvidia", "amd", "instinct", "tesla", "geforce"}


@dataclass(frozen=True)
class NamedCard:
    """A GPU as a text spells it, and the place of its first naming, FILE:LINE."""

    name: str
    where: str
    in_words: bool  # the driver's name for it may be longer
    compared: bool = False  # the words say that it is another machine's, or that all is well there

    @property
    def words(self) -> list[str]:
        return [w for w in re.findall(r"[a-z0-9]+", self.name.lower()) if w not in _VENDORS]


@dataclass
class Cards:
    """The named GPUs, each once for all of its spellings."""

    named: dict[str, NamedCard] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)  # the keys of the cards that people's words name

    def add(self, name: str, where: str, *, in_words: bool, compared: bool = False) -> None:
        """Keep a name; a file's name is surer than people's word for the same GPU.

        A placeholder, such as `NVIDIA_<GPU>`, is not kept.
        """
        if any(mark in name for mark in "<{*"):
            return
        new = NamedCard(name, where, in_words, compared)
        try:
            key = find_device(name).name
        except UnknownDevice:
            key = " ".join(new.words)
        if in_words and not compared:
            self._said.add(key)
        old = self.named.get(key)
        if old is None or (old.in_words and not in_words) or (old.compared and not compared):
            self.named[key] = new

    def read(self, line: str, where: str) -> None:
        """Keep the GPUs that people name in a line."""
        names = list(cards_in(line))
        beside = {name for part in _compared(line) for name in cards_in(part)} if names else set()
        for name in names:
            self.add(name, where, in_words=True, compared=name in beside)

    def sole(self) -> NamedCard | None:
        """Return the GPU, if the text names only one."""
        found = list(self.several())
        if len(found) > 1:  # a listing of files names many: people's words say which card it is
            found = [c for key, c in self.named.items() if key in self._said and not c.in_words]
        return found[0] if len(found) == 1 else None

    def several(self) -> Iterator[NamedCard]:
        """Yield the named GPUs, without a shorter name of another: H100 beside NVIDIA_H100_PCIe.

        GPUs that are only compared with count if there is no other.
        """
        subjects = [card for card in self.named.values() if not card.compared]
        for card in subjects or self.named.values():
            longer = (one.words[: len(card.words)] for one in self.named.values() if one != card)
            if not card.in_words or card.words not in longer:
                yield card


def _compared(line: str) -> Iterator[str]:
    """Yield the parts of a line that speak of another machine than the machine in question."""
    for sentence in _SENTENCES.split(line):
        yield from _BESIDE.findall(sentence)
        if _WELL.search(sentence) and not _BUT.search(sentence):
            yield sentence
