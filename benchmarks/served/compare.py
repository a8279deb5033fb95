"""Before and after in a live engine, from the start of its servers to the report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

from benchmarks.served.loads import AFTER, BEFORE, SIDES, Load, Speed, median_speed, run_load
from benchmarks.served.outputs import Answers, answers_of, check_outputs
from benchmarks.served.process import RunningServer, free_ports
from benchmarks.served.result import LoadGain, ServedComparison, Subject, backend_advice, gains_of
from benchmarks.served.server import Server, ServerLaunch
from tuner.deploy.load_proof import prove_loads, read_deployed
from tuner.engines.settings import all_config_variables, config_variables
from tuner.errors import NotEnoughMemory, ServerUnavailable

_WARM_UP = "warm up"
_LEAST_S = 1.0  # of a load in a round, on each side
_MOST_REPEATS = 8


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

    def _run(self, running: RunningServer, load: Load, key: object) -> Speed:
        try:
            return run_load(self.server, running.port, load, key, self.timeout_s)
        except ServerUnavailable:
            running.refuse_dying()  # says more, if that is why
            raise


SIDE_BY_SIDE, IN_TURN = "side by side", "in turn"


@dataclass(frozen=True)
class ComparisonRequest:
    """What a user asks for, as given."""

    model: str
    device: str
    root: Path
    engine: str  # NAME or NAME==VERSION
    tp: int
    dummy: bool
    layers: int | None
    loads: str
    rounds: int
    args: tuple[str, str, str]  # of both servers, of `before`, of `after`
    in_turn: bool
    port: int | None
    folder: Path
    timeouts_s: tuple[float, float]  # of a start, of an answer


@dataclass(frozen=True)
class ComparisonSetup:
    """What to start, and what to send."""

    subject: Subject
    server: Server
    request: ComparisonRequest  # its folder is made, and its root is absolute
    model: str  # a folder, or a name on the hub
    args: Mapping[str, Sequence[str]]  # by side
    loads: Sequence[Load]
    in_turn: bool  # also where memory turns out not to hold two servers
    variables: Mapping[str, str] = field(default_factory=dict)  # of `after`, besides the files'
    notes: Sequence[str] = ()  # for the report
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def launch(self, side: str, port: int, memory: float | None) -> ServerLaunch:
        return ServerLaunch(
            self.subject.engine_version,
            self.model,
            port,
            self.subject.tp,
            self.args[side],
            self.request.dummy,
            memory,
        )

    def environment(self, side: str) -> dict[str, str]:
        """The variables of a side's server: only `after` has the files and what is advised."""
        engine = self.subject.engine
        others = {*all_config_variables(engine)}
        kept = {name: value for name, value in self.environ.items() if name not in others}
        if side == BEFORE:
            return kept
        root = self.request.root
        files = dict.fromkeys(config_variables(engine, root), str(root))
        return {**kept, **self.variables, **files}

    def log(self, side: str, start: int) -> Path:
        return self.request.folder / f"{side}-{start}.log"


def compare_served(setup: ComparisonSetup, say: Callable[[str], None]) -> ServedComparison:
    """Run the setup. Raises ServerUnavailable, NotEnoughMemory or BadInput.

    Every process that was started has ended when this returns, raises or is killed.
    """
    results, sides, notes = _measured(setup, say)
    gains: list[LoadGain] = []
    for load in setup.loads:
        gains += gains_of(load, *(results[side].speeds[load] for side in SIDES))
    before, after = results[BEFORE].answers, results[AFTER].answers
    assert before is not None and after is not None  # each side was checked
    return ServedComparison(
        replace(setup.subject, sides=sides, rounds=_rounds_of(results)),
        gains,
        check_outputs(before, after),
        _loading(setup),
        backend_advice(setup.server, setup.args[BEFORE], setup.args[AFTER], gains),
        [*setup.notes, *notes],
    )


def _measured(
    setup: ComparisonSetup, say: Callable[[str], None]
) -> tuple[Mapping[str, SideResults], str, list[str]]:
    """(what each side showed, how they ran, notes)"""
    rounds = Rounds(
        setup.server, setup.loads, setup.request.rounds, setup.request.timeouts_s[1], say
    )
    results = {side: SideResults() for side in SIDES}
    if not setup.in_turn:
        try:
            return results, SIDE_BY_SIDE, _together(setup, rounds, results, say)
        except NotEnoughMemory:
            say("the memory does not hold two servers: they run in turn")
            results = {side: SideResults() for side in SIDES}
    _in_turn(setup, rounds, results, say)
    return results, IN_TURN, []


def _together(
    setup: ComparisonSetup,
    rounds: Rounds,
    results: Mapping[str, SideResults],
    say: Callable[[str], None],
) -> list[str]:
    """Both servers at once: each round meets the same state of the machine.

    An interrupt after the first round ends the rounds alone: those that were measured count.
    """
    with ExitStack() as stack:
        running = []
        ports = free_ports(2, setup.request.port)
        for side, port, share in zip(SIDES, ports, setup.server.memory_shares, strict=True):
            running.append(stack.enter_context(_ready(setup, side, port, share, 1, say)))
        for server in running:
            rounds.warm_up(server)
        both = [results[side] for side in SIDES]
        for server, result in zip(running, both, strict=True):
            rounds.check(server, result)
        try:
            rounds.measure(running, both, range(1, setup.request.rounds + 1))
        except KeyboardInterrupt:
            if not _rounds_of(results):
                raise
            note = (
                f"interrupted: {_rounds_of(results)} of {setup.request.rounds} rounds were measured"
            )
            say(f"{note}, and the report is written of these")
            return [note]
    return []


def _rounds_of(results: Mapping[str, SideResults]) -> int:
    """How many whole rounds were measured on all sides."""
    return min(min(map(len, one.speeds.values()), default=0) for one in results.values())


def _in_turn(
    setup: ComparisonSetup,
    rounds: Rounds,
    results: Mapping[str, SideResults],
    say: Callable[[str], None],
) -> None:
    """One server at a time: half of the rounds before, all after, then the other half before.

    So a machine that slowly becomes warmer shows as spread, and not as a gain.
    """
    half = (setup.request.rounds + 1) // 2
    order = (
        (BEFORE, 1, range(1, half + 1)),
        (AFTER, 1, range(1, setup.request.rounds + 1)),
        (BEFORE, 2, range(half + 1, setup.request.rounds + 1)),
    )
    for side, start, numbers in order:
        if not numbers:
            continue
        (port,) = free_ports(1, setup.request.port)
        with _ready(setup, side, port, None, start, say) as server:
            rounds.warm_up(server)
            if start == 1:
                rounds.check(server, results[side])
            rounds.measure([server], [results[side]], numbers)


@contextmanager
def _ready(
    setup: ComparisonSetup,
    side: str,
    port: int,
    memory: float | None,
    start: int,
    say: Callable[[str], None],
) -> Iterator[RunningServer]:
    launch = setup.launch(side, port, memory)
    log = setup.log(side, start)
    say(f"starting the {side} server on port {port}; its log is {log}")
    with RunningServer(side, setup.server, launch, setup.environment(side), log) as server:
        server.wait_until_ready(setup.request.timeouts_s[0])
        yield server


def _loading(setup: ComparisonSetup) -> list[str]:
    """What the logs say against the use of the files."""
    found = prove_loads([setup.log(AFTER, 1)], read_deployed(setup.request.root)).problems()
    before = prove_loads([setup.log(BEFORE, 1)], read_deployed(setup.request.root))
    used = sorted({load.name for load in before.loads if load.origin == "tuned"})
    return [*found, *(f"{key}: the before server loaded it too" for key in used)]
