"""Two releases of an engine that people compare: faster before an upgrade than after it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# Of an engine: these releases begin with 0. The words before and after are of other packages.
_RELEASE = re.compile(
    r"(?<![\w./-])(?:v|:v?)?(0\.\d{1,2}\.\d{1,2}(?:\.?(?:post|rc)\d+)?)(?![\w-]|\.\d)"
)
_COMPARES = re.compile(
    r"regress|upgrad|downgrad|updat|slower|faster|degrad|decreas|\bdrop(?:s|ped)?\b|\bvs\b\.?"
    r"|compared|before|after|between|升级|变慢|下降|对比",
    re.IGNORECASE,
)
_OTHER = re.compile(r"flashinfer|transformers|torch|tokenizers|deep_?gemm|deep_?ep", re.IGNORECASE)


@dataclass
class Compared:
    """The releases in lines that compare something, in their order."""

    _named: dict[str, None] = field(default_factory=dict)

    def read(self, line: str) -> None:
        if _COMPARES.search(line) and not _OTHER.search(line):
            self._named |= dict.fromkeys(_RELEASE.findall(line))

    def pair(self) -> tuple[str, ...]:
        """The two releases; nothing if there are fewer or more, so that it is not sure which."""
        return (*self._named,) if len(self._named) == 2 else ()
