"""How tuned state updates reach vLLM's servers: files in the folder that its variable names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.devices.table import Device
from tuner.engines.config_files import config_file_text, read_config_file
from tuner.engines.sidecars import PROVENANCE
from tuner.engines.vllm.fused_moe.loader_rules import CONFIG_DIR_VARIABLE
from tuner.engines.vllm.state_update.files import VLLMStateUpdate
from tuner.errors import ExportRefused, UnsupportedKernel
from tuner.export.delivery import Delivery, PlannedFile
from tuner.export.sized_files import Content, SizedFile, plan_files
from tuner.families.state_update.problem import StateUpdate
from tuner.problems.points import Problem
from tuner.problems.results import Winner


@dataclass(frozen=True)
class FolderLayout:
    """`<root>/<the engine's name>`, as the loader looks for it."""

    states: VLLMStateUpdate
    device: Device
    root: Path

    def path(self, problem: Problem, triton: str) -> Path:
        return self.root / self.states.file_name(_update(problem), self.device)

    def sizes(self, problem: Problem, triton: str) -> Sequence[int]:
        return self.states.sizes(_update(problem), self.device)

    def sidecar(self, path: Path) -> Path:
        return self.root / PROVENANCE / path.name

    def text(self, content: Content) -> str:
        problem = _update(content.problem)
        entries = {self.states.file_key(problem, n): c for n, c in content.entries.items()}
        return config_file_text(entries, self.states.fields)


@dataclass(frozen=True)
class StateDelivery(Delivery):
    """Files in vLLM's folder. Where a folder lacks a file, servers read the package's."""

    states: VLLMStateUpdate

    @property
    def engine_root(self) -> Path | None:
        return self.states.configs if self.states.reads_files else None

    @property
    def variable(self) -> str | None:
        return CONFIG_DIR_VARIABLE if self.states.reads_files else None

    def asked(self, problem: Problem, device: Device) -> Sequence[str]:
        return [self.states.file_name(_update(problem), device)]

    def shipped_file(self, problem: Problem, device: Device) -> Path | None:
        return self.states.find_file(None, _update(problem), device)

    def obstacle(self, *, into_engine: bool) -> str:
        try:
            self.states.require_files()
        except UnsupportedKernel as error:
            return str(error)
        return ""

    def plan(self, winners: Sequence[Winner], device: Device, root: Path) -> Sequence[SizedFile]:
        return plan_files(winners, FolderLayout(self.states, device, root))

    def verify(self, files: Iterable[PlannedFile], device: Device, root: Path) -> None:
        for file in files:
            assert isinstance(file, SizedFile)  # `plan` made it
            problem = _update(file.problem)
            found = self.states.find_file(root, problem, device)
            if found != file.path:
                raise ExportRefused(f"wrote {file.path}, but vLLM's rules find {found}")
            entries = read_config_file(found, self.states.fields).entries
            for size, config in file.entries.items():
                picked = self.states.pick(entries, self.states.file_key(problem, size))
                if picked != config:
                    raise ExportRefused(f"{found}: vLLM picks {picked} for {size} sequences")


def _update(problem: Problem) -> StateUpdate:
    assert isinstance(problem, StateUpdate)  # the only family that these files are for
    return problem
