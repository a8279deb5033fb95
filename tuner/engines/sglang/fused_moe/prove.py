"""Prove exported files: run the engine's own loader and layer with them on the GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tuner.engines.sglang.plugin.files import FOLDER as ATTENTION_FOLDER
from tuner.engines.sglang.plugin.gemm_files import FOLDER as GEMM_FOLDER
from tuner.errors import BadInput, MeasurerFailed
from tuner.export.files import PROVENANCE
from tuner.families.fused_moe.file_names import parse_file_name
from tuner.families.fused_moe.problem import FusedMoe, parse_fused_moe
from tuner.render import table

CHILD_MODULE = "tuner.engines.sglang.fused_moe.engine_layer"
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


def prove(root: Path, device_name: str) -> Proof:
    """Run every exported problem of a device through the engine's layer.

    Raises BadInput if nothing was exported for it, and MeasurerFailed if the engine cannot be
    imported or its layer fails.
    """
    exported = _exported(root, device_name)
    if not exported:
        raise BadInput(f"nothing exported for {device_name} under {root}: run `tuner export` first")
    rows = []
    with tempfile.TemporaryDirectory() as nothing:
        (Path(nothing) / "configs").mkdir()
        for problem, sizes in exported.items():
            rows += _run(problem, root, nothing, sizes)
    return Proof(rows)


def _exported(root: Path, device_name: str) -> dict[FusedMoe, list[int]]:
    found: dict[FusedMoe, list[int]] = {}
    for sidecar in sorted((root / PROVENANCE).rglob("*.json")):
        if sidecar.relative_to(root / PROVENANCE).parts[0] in (ATTENTION_FOLDER, GEMM_FOLDER):
            continue
        if parse_file_name(sidecar.name).device != device_name:
            continue
        about = json.loads(sidecar.read_text(encoding="utf-8"))
        found[parse_fused_moe(about["problem"])] = sorted(int(size) for size in about["entries"])
    return found


def _run(problem: FusedMoe, root: Path, nothing: str, sizes: Sequence[int]) -> list[ProofRow]:
    command = [sys.executable, "-m", CHILD_MODULE, problem.spec(), str(root.resolve()), nothing]
    done = subprocess.run(  # noqa: S603 (our own module)
        [*command, *map(str, sizes)], capture_output=True, text=True
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise MeasurerFailed(f"the engine's layer did not run: {(said or ['no output'])[-1][:300]}")
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [ProofRow(problem, row["batch_size"], row["us"], row["error"]) for row in found]
