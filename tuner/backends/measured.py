"""Compare tuned Triton with the libraries that servers run instead, by measured races."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tuner.files import shipped_toml
from tuner.problems.points import Problem, title_of
from tuner.render import gain_text


@dataclass(frozen=True)
class Raced:
    """Races of tuned Triton and a library, for problems of one kind on a card."""

    device: str
    engine: str  # with its release
    family: str  # of the problems, as `Problem.family` has it
    backend: str
    package: str  # of the library, with its version
    # By problem, how many times as fast tuned Triton was: the geometric mean over sizes.
    problems: Mapping[str, float]

    @property
    def words(self) -> str:
        """Say that the library was faster for all problems; "" if it was not."""
        if max(self.problems.values()) >= 1:
            return ""
        least, most = (1 / end(self.problems.values()) for end in (max, min))
        return (
            f"leave {self.family} to {title_of(self.backend)}: it was {gain_text(least)} to "
            f"{gain_text(most)} as fast as tuned Triton for the {len(self.problems)} problems that "
            f"were measured on an {self.device} ({self.engine}, {self.package})"
        )


def races(problem: Problem, device: str, backends: Iterable[str]) -> Raced | None:
    """Return the races of problems of this kind on a card, with any of some backends."""
    rows = (Raced(**row) for row in shipped_toml(__package__, "measured.toml")["raced"])
    wanted = {(device, problem.family, backend) for backend in backends}
    return next((one for one in rows if (one.device, one.family, one.backend) in wanted), None)
