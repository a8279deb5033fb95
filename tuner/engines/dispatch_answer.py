"""What an engine runs for a problem, as an answer: its kernels, and what it says of tuned files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.engines.settings import options_text


@dataclass(frozen=True)
class Kernel:
    """A kernel that an engine runs under a condition."""

    name: str  # for people: "FlashAttention 3"
    backend: str  # the library that has it: "fa3"
    triton: bool  # the kernel that the tuner tunes
    condition: str  # "" where it has none
    source: str  # file and line of the engine's package
    needs: str = ""  # a backend without which the condition is false
    enough: bool = False  # with which it is true

    def holds(self, installed: Collection[str] | None) -> bool | None:
        """Whether its condition is true where these backends are installed; None: not known."""
        if not self.condition:
            return True
        if installed is None or not self.needs:
            return None
        if self.needs not in installed:
            return False
        return True if self.enough else None

    @property
    def words(self) -> str:
        return f" if {self.condition}" if self.condition else ""

    def as_json(self) -> dict[str, Any]:
        return {
            "kernel": self.name,
            "backend": self.backend,
            "triton": self.triton,
            "if": self.condition or None,
            "source": self.source,
        }


@dataclass(frozen=True)
class Runs:
    """What an engine runs for a problem on a device. The last kernel has no condition."""

    engine: str
    version: str
    release: str  # whose rules these are
    device: str
    kernels: Sequence[Kernel]
    to_triton: Mapping[str, str]  # flags and variables that make it Triton; empty: none can
    reads: str  # words about files, where the usual ones would be wrong
    notes: Sequence[str]
    problems: Sequence[str]  # the texts of the problems that it holds for
    subject: str = "here"  # "for extend_attention", where others have another answer
    older: bool = False  # the version is older than each release that was read: all is a doubt
    doubt: str = ""  # what the next release that was read runs, if the version lies between
    # Flags and variables without which a server stops as it loads. The kernels are those with them.
    needs: Mapping[str, str] = field(default_factory=dict)

    @property
    def always_triton(self) -> bool:
        return all(kernel.triton for kernel in self.kernels)

    @property
    def may_read(self) -> bool:
        """Tell whether tuned files may be read, as far as anybody knows."""
        return self._sometimes_triton or (self.older and not self.reads)

    def without_us(self, installed: Collection[str] | None = None) -> Kernel | None:
        """The kernel that a server runs without this program; None where that is not known.

        `installed` names the backends that the server's environment has; None: nobody knows.
        """
        if self.older or self.doubt:
            return None
        for kernel in self.kernels:
            holds = kernel.holds(installed)
            if holds is None:
                return None
            if holds:
                return kernel
        return None  # the last kernel has no condition

    def line(self) -> str:
        """One line for people: what runs, and whether tuned files count."""
        notes = "".join(f"; {note}" for note in self.notes)
        return f"{self.words}; {self.reads or self._files()}{notes}"

    @property
    def words(self) -> str:
        """What runs: "sglang 0.5.16 on NVIDIA_H200 runs FlashAttention 3 here"."""
        first, *others = self.kernels
        needs = f" with {options_text(self.needs)}" if self.needs else ""
        runs = f"{first.name} {self.subject}{needs}{first.words}"
        runs += "".join(f", else {other.name}{other.words}" for other in others)
        engine = f"{self.engine} {self.version}".strip()
        return f"{engine} on {self.device} runs {runs}{self._rules()}"

    def _rules(self) -> str:
        """Say whose rules these are, if they are of another release, and what is in doubt."""
        if self.version == self.release:
            return ""
        doubt = f"; {self.doubt}, and no release between was read" if self.doubt else ""
        doubt = ", the oldest release read" if self.older else doubt
        return f" (by the rules of {self.release}{doubt})"

    def _files(self) -> str:
        if self.older:
            return "whether it reads tuned files is not known"
        if self.always_triton:
            return "it reads tuned files"
        if self.to_triton:
            only = "only by Triton, which needs" if self._sometimes_triton else "only with"
            return f"tuned files are read {only} {self.options}"
        if self._sometimes_triton:
            return "only Triton reads tuned files"
        return "no option makes it run Triton, so it reads no tuned file"

    @property
    def options(self) -> str:
        """The flags and variables that make it Triton, as people type them."""
        return options_text(self.to_triton)

    @property
    def _sometimes_triton(self) -> bool:
        return any(kernel.triton for kernel in self.kernels)

    def as_json(self) -> dict[str, Any]:
        """The object "runs" of reports."""
        return {
            "line": self.line(),
            "rules_of": self.release,
            "kernels": [kernel.as_json() for kernel in self.kernels],
            "to_triton": {} if self.older else dict(self.to_triton),
            "needs": dict(self.needs),
            "problems": list(self.problems),
        }
