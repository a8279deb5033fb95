"""The result of a tuning run, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tuner.devices.table import Device
from tuner.engines.config_files import AMD_OPTIONS
from tuner.engines.dispatch import what_runs
from tuner.problems.points import Config, Part, Problem
from tuner.problems.results import Entry, Environment, Status, Totals, entry_json
from tuner.render import table
from tuner.tuning.costs import cost_line


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
        """A table of the entries, then lines with the totals and what to know of predictions."""
        order = self.table.order
        entries = sorted(self.entries, key=order) if order else self.entries
        rows = [
            (
                *self.table.cells(entry),
                None if entry.median_us is None else round(entry.median_us, 1),
                entry.compiled.shared_bytes,
                self.device.shared_optin_bytes,
                entry.status.value,
                entry.reason,
            )
            for entry in entries
        ]
        t = self.totals
        cached = int(t.extra.get("kernels_cached", 0))
        known = f" and {cached} from the cache" if cached else ""
        cost = (
            f"{t.configs_compiled} kernels{known}, {t.compile_s:.1f} s of compile processes, "
            f"{t.measurements} times taken, {t.wall_s:.1f} s in all"
        )
        carried = t.extra.get("carried_over")
        if carried is not None:
            cost = f"{carried} of {len(self.entries)} entries carried over: {cost}"
        said = filter(None, (cost, cost_line(t), self._caveat))
        return "\n".join([table((*self.table.headers, *_FIGURES), rows), "", *said])

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


_FIGURES = ("us", "shared", "limit", "status", "why")


def config_cells(config: Config) -> tuple[str, int, int, int]:
    """Blocks, group size, warps and stages, as tables show them."""
    blocks = "x".join(str(config[f"BLOCK_SIZE_{axis}"]) for axis in "MNK")
    tma = " tma" if config.get("USE_TMA") else ""
    amd = "".join(f" {name}={config[name]}" for name in AMD_OPTIONS if config.get(name))
    return f"{blocks}{tma}{amd}", config["GROUP_SIZE_M"], config["num_warps"], config["num_stages"]


def config_json(config: Config) -> dict[str, int | bool]:
    """A configuration as engine files hold it, with USE_TMA as a boolean."""
    return {key: bool(value) if key == "USE_TMA" else value for key, value in config.items()}
