"""Deliver tuned attention to sglang's servers, as files that this package's plugin reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tuner.bindings.sglang.attention.backend import PHASE_FLAGS
from tuner.bindings.sglang.attention.export import (
    AttentionFileExport,
    build_attention_files,
    verify_attention,
)
from tuner.bindings.sglang.attention.server_flags import (
    advised_flags,
    with_advised_flags,
)
from tuner.bindings.sglang.plugin.file_checks import check_file
from tuner.bindings.sglang.plugin.files import CONFIG_DIR_VARIABLE, FOLDER, file_name
from tuner.devices.table import Device
from tuner.engines.sglang.package import SGLang
from tuner.export.delivery import (
    Delivery,
    ExportFile,
    ServerFlags,
    check_readable,
    is_plugin_file,
    server_facts,
)
from tuner.families.attention.problem import Attention
from tuner.problems.points import Problem
from tuner.problems.results import Winner


@dataclass(frozen=True)
class AttentionDelivery(Delivery):
    """Delivers by the plugin alone, because the constants are in the engine's code."""

    engine: SGLang

    note = (
        "the attention files are read only by servers that have engine-tuner installed and run the "
        f"triton backend; {' and '.join(PHASE_FLAGS.values())} choose one for each phase"
    )
    variable = CONFIG_DIR_VARIABLE
    by_plugin = True

    def asked(self, problem: Problem, device: Device) -> Sequence[str]:
        assert isinstance(problem, Attention)
        return [file_name(problem, device.name)]

    def obstacle(self, *, into_engine: bool) -> str:
        if not self.engine.loads_plugins():
            name = f"{self.engine.name} {self.engine.version}"
            return f"{name} loads no plugins, and attention files need one"
        if into_engine:
            return (
                "attention files do not belong in the engine's package: write them elsewhere with "
                f"--out DIR, and start servers with {CONFIG_DIR_VARIABLE}=DIR"
            )
        return ""

    def files(
        self, winners: Sequence[Winner], device: Device, root: Path
    ) -> Sequence[AttentionFileExport]:
        files = with_advised_flags(build_attention_files(winners, root))
        for file in files:
            check_readable(file, partial(verify_attention, file))
        return files

    def verify(self, files: Iterable[ExportFile], device: Device, root: Path) -> None:
        for file in _attention_files(files):
            verify_attention(file, file.path)

    def refusal(self, path: Path, triton: str | None) -> str | None:
        if not is_plugin_file(path, FOLDER):
            return None
        facts = server_facts(self.engine, "attention", triton)
        return self.obstacle(into_engine=False) or check_file(path, facts).reason

    def advice(self, files: Sequence[ExportFile]) -> Sequence[ServerFlags]:
        return advised_flags(_attention_files(files))


def _attention_files(files: Iterable[ExportFile]) -> list[AttentionFileExport]:
    return [file for file in files if isinstance(file, AttentionFileExport)]
