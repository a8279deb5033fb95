"""What the engine has for the family: its kernel, its default, its files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from toy_family.problem import Scale

from toy_engine.package import ToyEngine
from tuner.compile.candidates import Binder
from tuner.devices.table import Device
from tuner.devices.target import CUDA
from tuner.errors import ExportRefused
from tuner.export.delivery import PlannedFile
from tuner.export.files import PROVENANCE, provenance_row, sidecar_fields
from tuner.kernels.binding import Binding, Constant, Integer, Pointer, bind
from tuner.kernels.lift import Lifted, lift
from tuner.problems.points import Candidate, Config, Problem
from tuner.problems.records import Winner
from tuner.problems.results import Status


@dataclass(frozen=True)
class Kernels:
    engine: ToyEngine
    backend: str

    @cached_property
    def lifted(self) -> Lifted:
        source = self.engine.root / "kernels.py"
        origin = f"{self.engine.name} {self.engine.version}"
        return lift(source, ("scale_kernel",), self.engine.root, origin, self.backend)

    @property
    def hash(self) -> str:
        return self.lifted.hash

    def binder(self, problem: Scale) -> Binder:
        def bound(candidate: Candidate) -> tuple[Lifted, Binding]:
            config = candidate.config
            values = {
                "x_ptr": Pointer("fp16"),
                "y_ptr": Pointer("fp16"),
                "n": Integer(candidate.point.batch_size * problem.columns),
                "BLOCK": Constant(config["BLOCK"]),
            }
            parameters = self.lifted.parameters("scale_kernel")
            options = {"num_warps": config["num_warps"]}
            return self.lifted, bind(
                self.lifted.origin, "scale_kernel", parameters, values, options
            )

        return bound


@dataclass(frozen=True)
class Support:
    engine: ToyEngine

    def lift(self, backend: str = CUDA) -> Kernels:
        return Kernels(self.engine, backend)

    def file_name(self, problem: Scale, device_name: str) -> str:
        return f"toy,columns={problem.columns},device={device_name}.json"

    def default_config(self) -> Config:
        return Config({"BLOCK": 128, "num_warps": 4})


@dataclass(frozen=True)
class ToyFile:
    path: Path
    winners: Sequence[Winner]

    @property
    def problem(self) -> Scale:
        problem = self.winners[0].problem
        assert isinstance(problem, Scale)
        return problem

    @property
    def sidecar(self) -> Path:
        return self.path.parents[1] / PROVENANCE / "toys" / self.path.name

    @property
    def triton(self) -> str:
        return self.winners[0].environment.triton

    @property
    def provenance(self) -> Mapping[str, Any]:
        rows = {str(w.entry.point.batch_size): provenance_row(w) for w in self.winners}
        return {**sidecar_fields(self.path.name, self.text()), "entries": rows}

    @property
    def statuses(self) -> Mapping[int, Status]:
        return {w.entry.point.batch_size: w.entry.status for w in self.winners}

    def text(self) -> str:
        rows = {str(w.entry.point.batch_size): dict(w.entry.config) for w in self.winners}
        return json.dumps({"columns": self.problem.columns, "rows": rows})

    def as_json(self) -> dict[str, Any]:
        return {"rows": list(self.statuses)}

    def rows(self) -> Iterator[dict[str, Any]]:
        yield from ({"problem": self.problem.spec(), **row} for row in self.provenance["entries"])


@dataclass(frozen=True)
class Delivery:
    engine: ToyEngine

    note = "toys need no servers"
    engine_root = None
    variable = "TOY_DIR"
    by_plugin = False

    def asked(self, problem: Problem, device: Device) -> Sequence[str]:
        assert isinstance(problem, Scale)
        return [Support(self.engine).file_name(problem, device.name)]

    def ships(self, problem: Problem, device: Device) -> bool:
        return False

    def obstacle(self, *, into_engine: bool) -> str:
        return "toys do not belong in the engine's package" if into_engine else ""

    def plan(self, winners: Sequence[Winner], device: Device, root: Path) -> Sequence[ToyFile]:
        by_problem: dict[Scale, list[Winner]] = {}
        for winner in winners:
            assert isinstance(winner.problem, Scale)
            by_problem.setdefault(winner.problem, []).append(winner)
        names = {p: Support(self.engine).file_name(p, device.name) for p in by_problem}
        return [ToyFile(root / "toys" / names[p], mine) for p, mine in by_problem.items()]

    def verify(self, files: Iterable[PlannedFile], device: Device, root: Path) -> None:
        for file in files:
            if file.path.read_text() != file.text():
                raise ExportRefused(f"{file.path} does not read as it was written")

    def packaged(self) -> Iterator[tuple[Path, Path]]:
        return iter(())

    def advice(self, files: Sequence[PlannedFile]) -> Sequence[Any]:
        return ()


def open_family(engine: ToyEngine) -> Support:
    return Support(engine)


def open_delivery(engine: ToyEngine) -> Delivery:
    return Delivery(engine)
