"""Plan the tuning of a model before any work: who runs each problem, and the known facts of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tuner.backends.measured import races
from tuner.backends.registry import no_module, stale_words
from tuner.devices.table import Device
from tuner.engines.dispatch import Runs, what_runs
from tuner.engines.engine import Engine, engine_triton
from tuner.errors import UnsupportedKernel
from tuner.export.delivery import delivery_of
from tuner.export.servers import for_servers
from tuner.problems.points import TRITON, Problem, folder_version
from tuner.problems.registry import family_of
from tuner.problems.results import Entry, MeasureKind, Status, Winner
from tuner.render import folded, gain_text, table
from tuner.tuning.gains import gains, mean_gain, reference


class Reads(str, Enum):
    """Whether a server reads tuned files for a problem."""

    YES = "yes"
    MAYBE = "maybe"  # something that only the server's own machine knows decides
    WITH_FLAGS = "with flags"
    NO = "no"
    UNKNOWN = "unknown"  # the rules say nothing of the problem, or are of a newer release


class FoundFile(str, Enum):
    """The file that a server would find today."""

    STORED = "stored"  # this tuner has winners to export
    SHELF = "shelf"  # `tuner export` writes a file that was measured elsewhere
    SHIPPED = "shipped"  # the engine's makers tuned it on this card
    NONE = "none"
    UNKNOWN = "unknown"  # the engine is not on this machine


@dataclass(frozen=True)
class Elsewhere:
    """An engine that is not on this machine."""

    name: str
    version: str  # "": not known


@dataclass(frozen=True)
class ServedProblem:
    """A problem of a model, the kernel that servers run for it, and whether it is to be tuned."""

    problem: Problem
    runs: Runs | None  # None: the release's rules say nothing of it
    reads: Reads
    left_out: str  # why it is not to be tuned; "" if it is

    @property
    def to_tune(self) -> bool:
        return not self.left_out


@dataclass(frozen=True)
class ProblemPlan(ServedProblem):
    """A problem of a model, with the facts that are known before it is tuned."""

    file: FoundFile
    gain: float | None  # geometric mean of the stored gains; None: not known
    gain_status: Status | None  # OK: measured; PREDICTED
    gpu_s: float | None  # seconds of a GPU that tuning would take; None: not known
    stale: str = ""  # why the stored gain does not hold for the backends that are installed here
    tuned_on: str = ""  # the Triton of a shipped file, if it is not the release's own
    from_shelf: bool = False  # whether the gain was measured elsewhere
    leave: str = ""  # why such problems are better left to the library that servers may run

    @property
    def not_measured(self) -> list[str]:
        """Return the kernels beside which tuning will not measure Triton, in words."""
        names = [kernel.backend for kernel in self.runs.kernels] if self.runs else []
        others = [name for name in names if name not in (TRITON, "none")]
        words = (no_module(name, self.problem.family) for name in dict.fromkeys(others))
        return [text for text in words if text]

    @property
    def gain_words(self) -> str:
        if self.gain is None:
            return "unknown"
        if self.from_shelf:
            return f"{gain_text(self.gain)}, measured (shelf)"
        word = "measured" if self.gain_status is Status.OK else "predicted"
        return f"{gain_text(self.gain)} {word}"

    def as_json(self) -> dict[str, Any]:
        return {
            "problem": self.problem.spec(),
            "family": family_of(self.problem).name,
            "runs": self.runs.as_json() if self.runs else None,
            "reads_files": self.reads.value,
            "file": self.file.value,
            "file_triton": self.tuned_on or None,
            "gain": self.gain,
            "gain_from": self.gain_status.value if self.gain_status else None,
            "gain_stale": self.stale or None,
            "from_shelf": self.from_shelf,
            "leave": self.leave or None,
            "not_measured": self.not_measured,
            "gpu_s": self.gpu_s,
            "tune": self.to_tune,
            "left_out": self.left_out or None,
        }


@dataclass(frozen=True)
class ModelPlan:
    """The problems of a model on a device."""

    device: Device
    problems: Sequence[ProblemPlan]
    not_known: Sequence[str] = ()  # families in words: the model may have problems of them

    def as_json(self) -> dict[str, Any]:
        return {
            "device": self.device.name,
            "summary": self.summary(),
            "problems": [one.as_json() for one in self.problems],
        }

    @property
    def on_shelf(self) -> int:
        """Return the number of problems for which the shelf has files that servers would read."""
        return sum(one.to_tune and one.file is FoundFile.SHELF for one in self.problems)

    def summary(self) -> str:
        """Return the first line: how much there is to tune, and how long it takes."""
        wanted = [one for one in self.problems if one.to_tune]
        if not wanted and self.not_known:
            return (
                f"not known: too little could be read of {' and '.join(self.not_known)}; "
                "for the rest, servers here would read no tuned file"
            )
        if not wanted:
            return "leave everything as it is: servers here would read no tuned file"
        known = [one.gpu_s for one in wanted if one.gpu_s is not None]
        takes = f", about {sum(known):.0f} s of one {self.device.name}" if known else ""
        ready = f"; for {self.on_shelf} of them the shelf has files" if self.on_shelf else ""
        return f"{len(wanted)} of {len(self.problems)} problems to tune{takes}{ready}"

    def as_text(self) -> str:
        """Return the summary, a table, and a line for each distinct answer of the engine's
        rules.
        """
        headers = ("problem", "runs", "reads", "file", "gain", "GPU")
        rows = [
            (
                one.problem.spec(),
                _names(one.runs),
                one.reads.value,
                one.file.value,
                one.gain_words,
                None if one.gpu_s is None else f"{one.gpu_s:.0f} s",
            )
            for one in self.problems
        ]
        said = dict.fromkeys(one.runs.line() for one in self.problems if one.runs)
        said |= dict.fromkeys(words for one in self.problems for words in one.not_measured)
        said |= dict.fromkeys(one.leave for one in self.problems if one.leave)
        stale = [
            f"no gain is known of {one.problem.spec()}: {one.stale}"
            for one in self.problems
            if one.stale
        ]
        older = [
            f"the file of {one.problem.spec()} was tuned with Triton {one.tuned_on}, and this "
            "release runs another Triton: servers that read it warn that its performance might be "
            "sub-optimal"
            for one in self.problems
            if one.tuned_on
        ]
        lines = [
            self.summary(),
            "",
            table(headers, rows, right=("GPU",)),
            "",
            *said,
            *older,
            *stale,
        ]
        return folded("\n".join(lines))


def served_problems(
    problems: Iterable[Problem],
    engine: tuple[str, str],
    device: Device,
    flags: Mapping[str, str],
    *,
    unread: bool = False,
    kind: MeasureKind = MeasureKind.GPU,
) -> list[ServedProblem]:
    """Return each problem once, with the servers' kernel and whether the problem is to be tuned.

    A problem is left out if servers read no file for it, unless `unread`, and if its times are to
    be predicted and cannot be. `engine` is a name and a version, "" if that is not known. `flags`
    are the flags and variables of the servers, with the class and the checkpoint of their model.
    """
    found = []
    for problem in dict.fromkeys(problems):
        runs = what_runs(*engine, problem, device, flags)
        reads, left_out, family = _reads(runs), "", family_of(problem)
        if kind is MeasureKind.PREDICT and not family.predicts:
            left_out = f"the times of {family.title} are not predicted, only measured"
        elif runs and not unread and reads in (Reads.NO, Reads.WITH_FLAGS):
            left_out = runs.line()
        found.append(ServedProblem(problem, runs, reads, left_out))
    return found


def plan_model(
    problems: Sequence[Problem],
    engine: Engine | Elsewhere,
    device: Device,
    flags: Mapping[str, str],
    winners: Sequence[Winner],
    gpu_seconds: Callable[[Problem], float | None],
    *,
    unread: bool = False,
    kind: MeasureKind = MeasureKind.GPU,
) -> ModelPlan:
    """Plan the problems of a model. `winners` are the stored winners for the engine on the device.

    For `flags`, `unread` and `kind` see `served_problems`.
    """
    found = []
    served = served_problems(
        problems, (engine.name, engine.version), device, flags, unread=unread, kind=kind
    )
    for one in served:
        mine = [winner for winner in winners if winner.problem == one.problem]
        found.append(_plan(one, engine, device, flags, mine, gpu_seconds(one.problem)))
    return ModelPlan(device, found)


def _plan(
    one: ServedProblem,
    engine: Engine | Elsewhere,
    device: Device,
    flags: Mapping[str, str],
    mine: Sequence[Winner],
    gpu_s: float | None,
) -> ProblemPlan:
    stale, place = _stale(mine), (engine.name, engine.version)
    served = for_servers(mine, device, place, flags)
    entries = [winner.entry for winner in served]
    gain, status = (None, None) if stale else _known_gain(entries)
    shelf = any(winner.from_shelf for winner in served if winner.status is Status.OK)
    file, tuned_on = _file(one.problem, engine, device, entries)
    others = [it.backend for it in one.runs.kernels] if one.runs and not one.runs.older else []
    raced = races(one.problem, device.name, others) if gain is None else None
    if raced and raced.engine == "==".join(place):
        gain = raced.problems.get(one.problem.spec())
    return ProblemPlan(
        one.problem,
        one.runs,
        one.reads,
        one.left_out,
        file=FoundFile.SHELF if shelf and file is FoundFile.STORED else file,
        gain=gain,
        gain_status=Status.OK if raced and gain else status,
        gpu_s=gpu_s,
        stale=stale,
        tuned_on=tuned_on,
        from_shelf=gain is not None and (shelf or raced is not None),
        leave=raced.words if raced else "",
    )


def _reads(runs: Runs | None) -> Reads:
    if runs is None or runs.older:
        return Reads.UNKNOWN if runs is None or runs.may_read else Reads.NO
    if runs.always_reads:
        return Reads.YES
    if any(kernel.triton for kernel in runs.kernels):
        return Reads.MAYBE
    return Reads.WITH_FLAGS if runs.to_triton else Reads.NO


def _names(runs: Runs | None) -> str:
    if runs is None or runs.older:
        return "not known"
    by_file = "Triton by a file, else {}".format
    return " or ".join(by_file(k.name) if k.by_file else k.name for k in runs.kernels)


def _file(
    problem: Problem, engine: Engine | Elsewhere, device: Device, entries: Sequence[Entry]
) -> tuple[FoundFile, str]:
    """Return the file, and the Triton in its folder's name if that is not the release's own."""
    if any(entry.status is not Status.INCUMBENT for entry in entries):
        return FoundFile.STORED, ""
    if isinstance(engine, Elsewhere):
        return FoundFile.UNKNOWN, ""
    try:
        delivery = delivery_of(engine, family_of(problem).name)
        found = (delivery.shipped_file(problem, card) for card in device.under_each_name)
        path = next(filter(None, found), None)
    except UnsupportedKernel:
        return FoundFile.NONE, ""
    if path is None:
        return FoundFile.NONE, ""
    folder, triton = path.parent.name, engine_triton(engine)
    other = folder.startswith("triton_") and triton and folder_version(folder) != triton
    return FoundFile.SHIPPED, folder_version(folder) if other else ""


def _stale(winners: Sequence[Winner]) -> str:
    """Return why gains over another backend say nothing of the backend that is installed here."""
    words = (stale_words(reference(one.entry).name, [one.environment]) for one in winners)
    return next(filter(None, words), "")


def _known_gain(entries: Sequence[Entry]) -> tuple[float | None, Status | None]:
    """Return the geometric mean of stored gains over the server's own choice, of measured gains
    if there are any.
    """
    told = [entry for entry in entries if reference(entry).without_us]
    for status in (Status.OK, Status.PREDICTED):
        if found := gains(entry for entry in told if entry.status is status):
            return mean_gain(one.ratio for one in found), status
    return None, None
