"""Prove exported files: run the engine's own loader and layer with them on the GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tuner.engines.engine import engine_module
from tuner.engines.sidecars import PROVENANCE
from tuner.errors import BadInput, MeasurerFailed
from tuner.families.fused_moe.problem import FusedMoe
from tuner.problems.registry import parse_problem
from tuner.render import table

SLOWER = 0.995  # a smaller gain means slower than without the files, beyond the noise
WORSE = 1.05  # the layer's error may grow at most by this factor


@dataclass(frozen=True)
class ProofRow:
    """One layer at one batch size, with the keys "tuned", "shipped" and "default"."""

    problem: FusedMoe
    batch_size: int
    us: dict[str, float]  # microseconds of the whole layer
    error: dict[str, float]  # |out - reference| / |reference|

    @property
    def gain(self) -> float:
        """The speed with the exported files, divided by the speed without them."""
        return self.us["shipped"] / self.us["tuned"]

    @property
    def proven(self) -> bool:
        return self.gain >= SLOWER and self.error["tuned"] <= self.error["default"] * WORSE


@dataclass(frozen=True)
class Proof:
    """The rows of all exported problems."""

    rows: Sequence[ProofRow]

    @property
    def proven(self) -> bool:
        return all(row.proven for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """The object that `tuner prove --json` prints."""
        rows = [{**asdict(row), "problem": row.problem.spec()} for row in self.rows]
        return {"proven": self.proven, "rows": rows}

    def as_text(self) -> str:
        headers = ("problem", "M", "tuned us", "shipped us", "default us", "gain", "error", "")
        cells = [
            (
                row.problem.spec(),
                row.batch_size,
                *(round(row.us[name], 1) for name in ("tuned", "shipped", "default")),
                round(row.gain, 3),
                round(row.error["tuned"], 4),
                "" if row.proven else "NOT PROVEN",
            )
            for row in self.rows
        ]
        return table(headers, cells)


def prove(root: Path, device_name: str, engine: str) -> Proof:
    """Run every problem that was exported for a device and an engine through the engine's layer.

    Raises BadInput if nothing was exported for it, and MeasurerFailed if the engine cannot be
    imported or its layer fails.
    """
    exported = _exported(root, device_name, engine)
    if not exported:
        raise BadInput(
            f"nothing exported for {device_name} and {engine} under {root}: run `tuner export` "
            "first"
        )
    return Proof(
        [row for problem, sizes in exported.items() for row in _run(engine, problem, root, sizes)]
    )


def _exported(root: Path, device_name: str, engine: str) -> dict[FusedMoe, list[int]]:
    found: dict[FusedMoe, list[int]] = {}
    for sidecar in sorted((root / PROVENANCE).rglob("*.json")):
        about = json.loads(sidecar.read_text(encoding="utf-8"))
        problem = parse_problem(about["problem"])
        if not isinstance(problem, FusedMoe):
            continue
        environments = [row["environment"] for row in about["entries"].values()]
        if {(e["device"], e["engine"]) for e in environments} == {(device_name, engine)}:
            found[problem] = sorted(int(size) for size in about["entries"])
    return found


def _run(engine: str, problem: FusedMoe, root: Path, sizes: Sequence[int]) -> list[ProofRow]:
    child: str = engine_module(engine, "fused_moe").PROVING_CHILD
    command = [sys.executable, "-m", child, problem.spec(), str(root.resolve())]
    done = subprocess.run(  # noqa: S603 (our own module)
        [*command, *map(str, sizes)], capture_output=True, text=True
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        why = (said or ["no output"])[-1][:300]
        if why.startswith(("ModuleNotFoundError", "ImportError")):
            why += (
                f"; proving needs {engine}, torch and the GPU: install engine-tuner beside "
                f"{engine} where it serves, and run `tuner prove` there"
            )
        raise MeasurerFailed(f"the engine's layer did not run: {why}")
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [ProofRow(problem, row["batch_size"], row["us"], row["error"]) for row in found]
