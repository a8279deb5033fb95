"""How tuned fused-MoE configurations reach servers: as files that the engine's loader reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.devices.table import Device
from tuner.export.delivery import Delivery, PlannedFile
from tuner.families.fused_moe.engine import MoeEngine
from tuner.families.fused_moe.export import (
    ConfigFileExport,
    packaged_files,
    plan_moe,
    verify_moe,
)
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.points import Problem
from tuner.problems.records import Winner


@dataclass(frozen=True)
class MoeDelivery(Delivery):
    """Files that the engines' own loaders read."""

    layer: MoeEngine
    # Whether servers that are pointed at another root read no packaged file.
    replaces_packaged: bool

    @property
    def engine_root(self) -> Path:
        return self.layer.package_root

    @property
    def variable(self) -> str | None:
        return self.layer.config_dir_variable

    def asked(self, problem: Problem, device: Device) -> Sequence[str]:
        assert isinstance(problem, FusedMoe)
        gemms = Gemm if self.layer.has_down_files() else (Gemm.UP,)
        return [self.layer.file_name(problem, device, gemm) for gemm in gemms]

    def ships(self, problem: Problem, device: Device) -> bool:
        names = self.asked(problem, device)
        return any(path.name in names for path, _ in packaged_files(self.layer))

    def plan(
        self, winners: Sequence[Winner], device: Device, root: Path
    ) -> Sequence[ConfigFileExport]:
        return plan_moe(winners, self.layer, device, root)

    def verify(self, files: Iterable[PlannedFile], device: Device, root: Path) -> None:
        for file in files:
            assert isinstance(file, ConfigFileExport)  # `plan` made it
            verify_moe(file, self.layer, device, root)

    def packaged(self) -> Iterator[tuple[Path, Path]]:
        return packaged_files(self.layer) if self.replaces_packaged else super().packaged()
