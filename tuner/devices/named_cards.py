"""Find the GPUs that people name in their own words: "2x RTX A6000", "my 4090s", "DGX Spark"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from tuner.devices.table import other_maker, spellings

_WORD = re.compile(r"[A-Za-z0-9]+")
_OTHER = re.compile(r"[#=.$_]")  # before a word that begins no GPU's name: #L20 is a line
_COUNT = re.compile(r"[1-9]\d{0,2}[xX](?=[A-Za-z])")  # 8xH100
_PLURAL = re.compile(r"(?<=\d)s$")
# A name with other meanings too counts only among words for GPUs: L4, A10, 4090.
_SHORT = re.compile(r"\d+d?|[a-z]+\d{1,2}", re.ASCII)
_ALWAYS, _NEVER = ("h20", "gb10"), ("spark", "thor")
_BEFORE = re.compile(
    r"(?:\b\d+ ?[x×*] ?|\b(?:NVIDIA|GeForce|RTX|Tesla|GPUs?|on|an?|my|our|the|single|one|two|dual"
    r"|four|eight)[ :*`\"']{1,4}(?:\d{1,2} )?)$",
    re.IGNORECASE,
)
_AFTER = re.compile(r"[ -](?:GPUs?|cards?)\b", re.IGNORECASE)
_NOT = re.compile(  # behind a number that is no GPU's, or the number of another GPU
    r" ?(?:tokens?|requests?|Mi?B|ms|us|steps?|samples?|prompts?|layers?)\b"
    r"|[ -]?(?:Ti|SUPER|Laptop|Mobile|Max-?Q|D)\b",
    re.IGNORECASE,
)


def cards_in(line: str) -> Iterator[str]:
    """Yield the names of GPUs in a line, as it spells them, also of other makers than NVIDIA and
    AMD.
    """
    if other := other_maker(line):
        yield other[0]
    words = list(_WORD.finditer(line))
    at = 0
    while at < len(words):
        if (begin := _begin(line, words[at])) >= 0:
            ends = [word.end() for word in words[at : at + _longest()]]
            if end := _end(line, begin, ends):
                yield _singular(line[begin:end])
                at += ends.index(end)
        at += 1


def _begin(line: str, word: re.Match[str]) -> int:
    """Return where a name may begin in a word, behind a count; -1 if none can."""
    count = _COUNT.match(word[0])
    begin = word.start() + (count.end() if count else 0)
    first = _singular(line[begin : word.end()]).lower()
    if first not in _first_words() or _OTHER.match(line[max(0, begin - 1) : begin]):
        return -1
    return begin


def _end(line: str, begin: int, ends: Sequence[int]) -> int:
    """Return where the longest name of a GPU that begins there ends; 0 if there is none."""
    found = 0
    for end in ends:
        key = _key(_singular(line[begin:end]))
        if key in _keys() and _is_card(key, line[max(0, begin - 24) : begin], line[end:]):
            found = end
        if not re.match(r"[ _-]?\w", line[end:]):
            break
    return found


def _singular(name: str) -> str:
    """Return a name without the mark of plurals: 4090 of "4090s", but L40S of "L40s"."""
    return name[:-1] if _PLURAL.search(name) and _key(name) not in _keys() else name


def _is_card(key: str, before: str, after: str) -> bool:
    if key in _NEVER or _NOT.match(after):
        return False
    if key in _ALWAYS or not _SHORT.fullmatch(key):
        return True
    return bool(_BEFORE.search(before) or _AFTER.match(after))


def _key(text: str) -> str:
    return re.sub(r"(?<=\d)g$", "gb", re.sub(r"[\s_-]+", "", text).lower())


@cache
def _names() -> tuple[list[str], ...]:
    """Return the words of each spelling, without the vendor."""
    words = ([word.lower() for word in _WORD.findall(one)] for one in spellings())
    return tuple([word for word in one if word not in ("nvidia", "amd")] for one in words)


@cache
def _keys() -> frozenset[str]:
    return frozenset("".join(name) for name in _names())


@cache
def _first_words() -> frozenset[str]:
    """Return the words with which a name may begin, also if its words are written together."""
    return _keys() | {name[0] for name in _names()}


@cache
def _longest() -> int:
    return max(map(len, _names()))
