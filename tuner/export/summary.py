"""Sum up an export: its files, and how servers are pointed at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.devices.here import asked_here
from tuner.engines.engine import Engine, engine_triton
from tuner.export.advice import Advice
from tuner.export.delivery import ExportFile, ServerFlags
from tuner.export.selection import LeftOut, left_out_lines
from tuner.problems.points import Problem
from tuner.problems.results import Status, Winner, counted
from tuner.render import folded
from tuner.shell import command_line, export_line, unset_line


@dataclass(frozen=True)
class ExportSummary:
    """The files of an export, and the facts that its user needs."""

    root: Path
    files: Sequence[ExportFile]
    carried: int  # packaged files copied beside them
    variables: Sequence[str]  # point servers at the root; none if they find it by themselves
    server_flags: Sequence[ServerFlags] = ()
    notes: Sequence[str] = ()  # for operators, about the files
    left_out: Sequence[LeftOut] = ()
    advice: Sequence[Advice] = ()  # on each problem
    flags: Sequence[str] = ()  # to start servers with
    removed: Sequence[Path] = ()  # files of an earlier export, for problems that are left alone
    restores: Sequence[str] = ()  # commands for files that lie in the engine's own folder

    @property
    def back(self) -> str:
        """Return how servers run as they did before the export."""
        if self.restores:
            return "run these lines, and restart the servers"
        if not self.variables:
            return ""
        flags = " without the flags above" if self.server_flags else ""
        return f"restart the servers{flags} after `{unset_line(self.variables)}`"

    def as_json(self) -> dict[str, Any]:
        """Return the object that `tuner export --json` prints."""
        problems = [one.as_json() for one in self.left_out]
        return {
            "root": str(self.root),
            "files": [_file_json(file) for file in self.files],
            "carried": self.carried,
            "environment": dict.fromkeys(self.variables, str(self.root.resolve())),
            "server_flags": [flags.as_json() for flags in self.server_flags],
            "advice": [one.as_json() for one in self.advice],
            "removed": [str(path) for path in self.removed],
            "left_out": "; ".join(left_out_lines(self.left_out)),
            **({"left_out_problems": problems} if problems else {}),
        }

    def as_text(self) -> str:
        """Return the files, the number of measured entries in each, and how to use them."""
        if not self.files:
            first = "leave it: nothing is advised, and nothing was written"
            return folded("\n".join([first, *map(str, self.advice), *self._removed()]))
        lines = [
            line
            for file in self.files
            for line in (str(file.path.relative_to(self.root)), _entries(file))
        ]
        lines += ["", *map(str, self.advice), "", f"written under {self.root}"]
        if self.carried:
            lines[-1] += f" with {self.carried} of the engine's own files"
        lines += [export_line(name, str(self.root.resolve())) for name in self.variables]
        lines += [f"start servers with: {flags}" for flags in self.flags]
        lines += [*self.notes, *self._removed()]
        lines += [f"server flags for {flags}" for flags in self.server_flags]
        if {status for file in self.files for status in file.statuses.values()} <= {
            Status.INCUMBENT
        }:
            lines.append("every entry is the engine's own choice: you need not deploy these files")
        if self.back:
            lines.append(f"to go back: {self.back}")
        return "\n".join([folded("\n".join(lines)), *self.restores])

    def _removed(self) -> Iterator[str]:
        for path in self.removed:
            yield f"removed, of an earlier export and not advised by now: {path}"


def shelf_notes(winners: Iterable[Winner], *, for_here: bool = False) -> list[str]:
    """Return notes: how many problems' files were measured elsewhere, and with which driver.

    `for_here`: compare the driver with this machine's, because the files are for this machine.
    """
    places: dict[str, set[Problem]] = {}
    for winner in winners:
        if winner.from_shelf and winner.status is Status.OK:
            places.setdefault(winner.environment.driver, set()).add(winner.problem)
    here = sorted(set(asked_here("driver_version"))) if places and for_here else []
    return [
        f"from the shelf, measured on another machine with driver {driver}: {len(problems)} "
        f"problem{'s' * (len(problems) > 1)}"
        + (f"; this machine has driver {here[0]}" if here and driver not in here else "")
        for driver, problems in places.items()
    ]


def triton_notes(files: Iterable[ExportFile], engine: Engine) -> list[str]:
    """Return a warning if the files are not for the Triton that the engine's servers run."""
    runs = engine_triton(engine)
    others = sorted({file.triton for file in files} - {runs})
    if runs is None or not others:
        return []
    name = f"{engine.name}=={engine.version}"
    add = command_line("tuner", "list", "engines", "--add", name)
    return [
        f"these files are for Triton {', '.join(others)}. Servers of {name} run Triton {runs}, and "
        f"may look in another folder: `{add}` adds it, then tune again"
    ]


def _file_json(file: ExportFile) -> dict[str, Any]:
    return {
        "path": str(file.path),
        "provenance": str(file.sidecar),
        "problem": file.problem.spec(),
        "triton": file.triton,
        **file.as_json(),
        "statuses": {status.value: n for status, n in sorted(_counts(file).items())},
    }


def _entries(file: ExportFile) -> str:
    counts = {status.value: n for status, n in _counts(file).items()}
    return f"    {len(file.statuses)} entries: {counted(counts)}"


def _counts(file: ExportFile) -> Mapping[Status, int]:
    return Counter(file.statuses.values())
