"""Send the loads to two servers in turn, round after round."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

from tuner.deploy.served.loads import Load, Speed, ask, median_speed, run_load
from tuner.deploy.served.outputs import Answers, answers_of
from tuner.deploy.served.process import RunningServer
from tuner.engines.server import Server
from tuner.errors import ServerUnavailable

BEFORE, AFTER = "before", "after"
SIDES = (BEFORE, AFTER)
_WARM_UP = "warm up"
_LEAST_S = 1.0  # of a load in a round, on each side
_MOST_REPEATS = 8
_PROFILED_ANSWER = 8  # tokens: a profile of more is large and says no more


@dataclass
class SideResults:
    """What one side showed."""

    speeds: dict[Load, list[Speed]] = field(default_factory=dict)
    answers: Answers | None = None


@dataclass(frozen=True)
class Rounds:
    """How the loads are sent."""

    server: Server
    loads: Sequence[Load]
    rounds: int
    timeout_s: float  # of a request
    say: Callable[[str], None]
    repeats: dict[Load, int] = field(default_factory=dict, init=False)  # of a load in a round

    def warm_up(self, running: RunningServer) -> None:
        """Send each load once, so that kernels are compiled and memory is there."""
        for load in self.loads:
            self._run(running, load, _WARM_UP)

    def measure(
        self,
        running: Sequence[RunningServer],
        results: Sequence[SideResults],
        numbers: Sequence[int],
    ) -> None:
        """The rounds of these numbers, on servers that run side by side or on one.

        Each round sends equal prompts to all. Which server is the first alternates. Within a round
        a short load is repeated, because one short request says little. Only whole rounds count.
        """
        for number in numbers:
            found = {load: self._round(running, load, number) for load in self.loads}
            for load, speeds in found.items():
                for result, speed in zip(results, speeds, strict=True):
                    result.speeds.setdefault(load, []).append(speed)
            self.say(f"round {number} of {self.rounds} done")

    def _round(self, running: Sequence[RunningServer], load: Load, number: int) -> list[Speed]:
        """The speed of each server, the median of the repeats of a load.

        The first round says how many repeats there are, so that servers that run in turn get as
        many.
        """
        runs = [self._once(running, load, number, 0)]
        wanted = ceil(_LEAST_S / min(speed.total_s for speed in runs[0]))
        repeats = self.repeats.setdefault(load, min(wanted, _MOST_REPEATS))
        runs += [self._once(running, load, number, repeat) for repeat in range(1, repeats)]
        return [median_speed(of_server) for of_server in zip(*runs, strict=True)]

    def _once(
        self, running: Sequence[RunningServer], load: Load, number: int, repeat: int
    ) -> list[Speed]:
        """The speed of each server with equal prompts."""
        turns = list(range(len(running)))
        found = {
            at: self._run(running[at], load, (number, repeat))
            for at in (turns if (number + repeat) % 2 else turns[::-1])
        }
        return [found[at] for at in turns]

    def check(self, running: RunningServer, result: SideResults) -> None:
        """Ask for the answers whose log-probabilities are compared."""
        result.answers = answers_of(self.server, running.port, self.timeout_s)

    def profile(self, running: RunningServer, folder: Path) -> str:
        """A profile of each load, in a folder of its name. Returns a note where it failed."""
        for load in self.loads:
            below = folder / str(load)
            shutil.rmtree(below, ignore_errors=True)  # profiles of an earlier proof
            below.mkdir(parents=True)
            begin, end = self.server.profile(below)
            short = Load(load.sequences, load.prompt, min(load.answer, _PROFILED_ANSWER))
            try:
                ask(running.port, begin, self.timeout_s)
                run_load(self.server, running.port, short, _WARM_UP, self.timeout_s)
                ask(running.port, end, self.timeout_s)
                _collect(folder, below)
            except ServerUnavailable as error:
                running.refuse_dying()
                return f"no profile of the {running.name} server: {error}"
        return ""

    def _run(self, running: RunningServer, load: Load, key: object) -> Speed:
        try:
            return run_load(self.server, running.port, load, key, self.timeout_s)
        except ServerUnavailable:
            running.refuse_dying()  # says more, if that is why
            raise


def _collect(folder: Path, below: Path) -> None:
    """Move the profiles that an engine with one folder for all wrote there."""
    for path in folder.iterdir():
        if path.is_file():
            path.replace(below / path.name)
