"""What a tuning run found, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tuner.devices.table import Device
from tuner.families.fused_moe.problem import FusedMoe
from tuner.problems.points import Config, Gemm, Part
from tuner.problems.results import Entry, Environment, Incumbent, Totals
from tuner.problems.text import Problem
from tuner.render import table


@dataclass(frozen=True)
class Report:
    """The entries of one run, with all that they hold for."""

    problem: Problem
    device: Device
    environment: Environment
    file_names: Mapping[Part, str]
    entries: Sequence[Entry]
    totals: Totals

    def as_json(self) -> dict[str, Any]:
        """The object that `tuner tune --json` prints."""
        return {
            "problem": self.problem.spec(),
            "device": self.device.name,
            "engine": f"{self.environment.engine}=={self.environment.engine_version}",
            "environment": {
                **asdict(self.environment),
                "fingerprint": self.environment.fingerprint,
            },
            "file_names": {part.value: name for part, name in self.file_names.items()},
            "entries": [entry_json(entry) for entry in self.entries],
            "totals": asdict(self.totals),
        }

    def as_text(self) -> str:
        """A table of the entries, and the totals on a line of their own."""
        moe = isinstance(self.problem, FusedMoe)
        headers, cells = (_MOE_HEADERS, _moe_cells) if moe else (_ATTENTION_HEADERS, _size_cells)
        rows = [
            (
                *cells(entry),
                None if entry.median_us is None else round(entry.median_us, 1),
                entry.compiled.shared_bytes,
                self.device.shared_optin_bytes,
                entry.status.value,
                entry.reason,
            )
            for entry in (sorted(self.entries, key=_by_gemm) if moe else self.entries)
        ]
        t = self.totals
        cost = (
            f"{t.configs_compiled} kernels, {t.compile_s:.1f} s of compile processes, "
            f"{t.measurements} times taken, {t.wall_s:.1f} s in all"
        )
        return "\n".join([table((*headers, *_FIGURES), rows), "", cost])


_MOE_HEADERS = ("gemm", "M", "M N K blocks", "group", "warps", "stages")
_ATTENTION_HEADERS = ("kernel", "sequences", "new", "cached", "constants")
_FIGURES = ("us", "shared", "limit", "status", "why")


def _moe_cells(entry: Entry) -> tuple[object, ...]:
    return entry.point.gemm.value, entry.point.batch_size, *config_cells(entry.config)


def _size_cells(entry: Entry) -> tuple[object, ...]:
    point = entry.point
    constants = " ".join(f"{name}={value}" for name, value in sorted(entry.config.items()))
    return point.part.value, point.batch_size, point.new_tokens, point.cached_tokens, constants


def config_cells(config: Config) -> tuple[str, int, int, int]:
    """Blocks, group size, warps and stages, as tables show them."""
    blocks = "x".join(str(config[f"BLOCK_SIZE_{axis}"]) for axis in "MNK")
    tma = " tma" if config.get("USE_TMA") else ""
    return f"{blocks}{tma}", config["GROUP_SIZE_M"], config["num_warps"], config["num_stages"]


def config_json(config: Config) -> dict[str, int | bool]:
    """The engine's own keys; USE_TMA as the boolean that it is in files."""
    return {key: bool(value) if key == "USE_TMA" else value for key, value in config.items()}


def entry_json(entry: Entry) -> dict[str, Any]:
    return {
        **entry.point.as_json(),
        "config": config_json(entry.config),
        "status": entry.status.value,
        "median_us": entry.median_us,
        "shared_bytes": entry.compiled.shared_bytes,
        "n_regs": entry.compiled.n_regs,
        "n_spills": entry.compiled.n_spills,
        "incumbents": {name: _incumbent_json(i) for name, i in entry.incumbents.items()},
        "reason": entry.reason,
    }


def _incumbent_json(incumbent: Incumbent) -> dict[str, Any]:
    return {
        "config": config_json(incumbent.config),
        "status": incumbent.status.value,
        "median_us": incumbent.median_us,
        "shared_bytes": incumbent.shared_bytes,
    }


def _by_gemm(entry: Entry) -> tuple[bool, int]:
    return entry.point.gemm is Gemm.DOWN, entry.point.batch_size
