"""The loads of a proof: so many sequences at once, each with a prompt and an answer."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from tuner.errors import BadInput

_LOAD = re.compile(r"(\d{1,5})x(\d{1,7})\+(\d{1,6})")
# Every model's vocabulary has these tokens, and few of them are special.
_TOKENS = range(100, 10_000)


@dataclass(frozen=True)
class Load:
    """Sequences that are sent at once, with the tokens of each prompt and of each answer."""

    sequences: int
    prompt: int
    answer: int

    def __str__(self) -> str:
        return f"{self.sequences}x{self.prompt}+{self.answer}"

    def prompts(self, key: object) -> list[list[int]]:
        """Random prompts, equal for equal keys, no two of which begin alike."""
        draw = random.Random(f"{self} {key}")  # noqa: S311 (no secret)
        return [draw.choices(_TOKENS, k=self.prompt) for _ in range(self.sequences)]


def parse_loads(text: str) -> list[Load]:
    """Read "1x1024+128,8x8192+32". Raises BadInput, which names the word that is no load."""
    loads = []
    for word in text.split(","):
        match = _LOAD.fullmatch(word.strip())
        if match is None or not all(int(number) for number in match.groups()):
            raise BadInput(
                f"{word.strip()!r} is no load: write SEQUENCESxPROMPT+ANSWER, e.g. 8x8192+32, "
                "with commas between several"
            )
        loads.append(Load(*(int(number) for number in match.groups())))
    repeated = [str(load) for load in loads if loads.count(load) > 1]
    if repeated:
        raise BadInput(f"the load {repeated[0]} is given twice: leave one out")
    return loads
