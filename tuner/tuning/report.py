"""The result of a tuning run, as JSON and as a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tuner.devices.table import Device
from tuner.engines.config_files import AMD_OPTIONS
from tuner.engines.dispatch import what_runs
from tuner.problems.points import Config, Part, Problem
from tuner.problems.results import Entry, Environment, Status, Totals, entry_json, is_shipped
from tuner.render import folded, gain_text, table
from tuner.tuning.costs import cost_line, work_line
from tuner.tuning.gains import closing_line, running


@dataclass(frozen=True)
class EntryTable:
    """How a family prints its entries: the first columns of a table, and the order of rows."""

    headers: tuple[str, ...]
    cells: Callable[[Entry], tuple[object, ...]]
    order: Callable[[Entry], Any] | None = None  # None: the order of the entries


@dataclass(frozen=True)
class Report:
    """The entries of one run, with everything that they hold for."""

    problem: Problem
    device: Device
    environment: Environment
    file_names: Mapping[Part, str]
    entries: Sequence[Entry]
    totals: Totals
    table: EntryTable

    def as_json(self) -> dict[str, Any]:
        """The object that `tuner tune --json` prints."""
        engine, version = self.environment.engine, self.environment.engine_version
        runs = what_runs(engine, version, self.problem, self.device)
        return {
            "problem": self.problem.spec(),
            "device": self.device.name,
            "engine": f"{self.environment.engine}=={self.environment.engine_version}",
            "environment": {
                **asdict(self.environment),
                "fingerprint": self.environment.fingerprint,
            },
            "file_names": {part.value: name for part, name in self.file_names.items()},
            "entries": [{**e.point.as_json(), **entry_json(e, config_json)} for e in self.entries],
            "totals": asdict(self.totals),
            "runs": runs.as_json() if runs else None,
            **({"caveat": self._caveat} if self._caveat else {}),
        }

    def as_text(self) -> str:
        """A table of the entries, then lines with the gain, the cost, and what to know of both."""
        order = self.table.order
        entries = sorted(self.entries, key=order) if order else list(self.entries)
        lines = [self._table(entries), "", *self._reasons(entries)]
        costs = filter(None, (self._cost(), cost_line(self.totals)))
        lines += [closing_line(entries), *costs, self.device.shared_limit, self._caveat]
        return folded("\n".join(lines)).rstrip("\n")

    def _table(self, entries: Sequence[Entry]) -> str:
        named = {running(entry)[0] for entry in entries}
        engine = f"{named.pop()} us" if len(named) == 1 else "engine us"
        statuses = [SHIPPED if is_shipped(entry) else entry.status.value for entry in entries]
        varies = len(set(statuses)) > 1
        headers = (*self.table.headers, engine, "tuned us", "gain", "shared")
        rows = [
            (*self.table.cells(entry), *_figures(entry), *([status] if varies else []))
            for entry, status in zip(entries, statuses, strict=True)
        ]
        return table((*headers, *(["status"] if varies else [])), rows, drop=["shared"])

    def _reasons(self, entries: Sequence[Entry]) -> list[str]:
        """Why entries are what they are, where the gain does not say it: a line for each reason."""
        counts = Counter(entry.reason for entry in entries if not _GAIN.search(entry.reason))
        return [f"{n} of {len(entries)}: {reason}" for reason, n in counts.items() if reason]

    def _cost(self) -> str:
        cost, carried = work_line([self.totals]), self.totals.extra.get("carried_over")
        if carried is not None:
            cost = f"{carried} of {len(self.entries)} entries carried over: {cost}"
        return cost

    @property
    def _caveat(self) -> str:
        """What a reader of predicted times must know besides their status; mostly empty."""
        vendor = self.device.untested_vendor
        if not vendor or all(entry.status is not Status.PREDICTED for entry in self.entries):
            return ""
        return f"The model that predicted these times was never held against a card of {vendor}'s."


def mark_untested(entries: Iterable[Entry], device: Device) -> list[Entry]:
    """The entries with words in the reason of predicted ones, where the model was never held
    against a card of the device's vendor. The reason goes with an entry wherever it is shown.
    """
    words = f"; model untested on {device.untested_vendor}" if device.untested_vendor else ""
    return [
        replace(entry, reason=f"{entry.reason}{words}")
        if entry.status is Status.PREDICTED
        else entry
        for entry in entries
    ]


SHIPPED = "shipped"  # the status that people see of an entry in the engine's own file
_GAIN = re.compile(r"\dx as fast as")


def _figures(entry: Entry) -> tuple[object, ...]:
    """The engine's time, the chosen one, the gain, and the bytes of shared memory of a block."""
    incumbent = running(entry)[1]
    engine_us = incumbent.median_us if incumbent else None
    gain = None
    if engine_us is not None and entry.median_us:
        gain = gain_text(engine_us / entry.median_us)
    if incumbent and engine_us is None:
        gain = incumbent.status.value.replace("_", " ")
    rounded = (None if us is None else round(us, 1) for us in (engine_us, entry.median_us))
    return (*rounded, gain, entry.compiled.shared_bytes)


def config_cells(config: Config) -> tuple[str, int, int, int]:
    """Blocks, group size, warps and stages, as tables show them."""
    blocks = "x".join(str(config[f"BLOCK_SIZE_{axis}"]) for axis in "MNK")
    tma = " tma" if config.get("USE_TMA") else ""
    amd = "".join(f" {name}={config[name]}" for name in AMD_OPTIONS if config.get(name))
    return f"{blocks}{tma}{amd}", config["GROUP_SIZE_M"], config["num_warps"], config["num_stages"]


def config_json(config: Config) -> dict[str, int | bool]:
    """A configuration as engine files hold it, with USE_TMA as a boolean."""
    return {key: bool(value) if key == "USE_TMA" else value for key, value in config.items()}
