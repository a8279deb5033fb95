"""Deliver tuned GEMMs to sglang's servers.

sglang's loaders read a folder in the engine's package and no variable. So there are two ways: files
in that folder, or files under another root for this package's plugin, which hooks the loaders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tuner.bindings.sglang.dense_gemm.files import SGLangDenseGemm
from tuner.bindings.sglang.plugin.file_checks import check_gemm_file
from tuner.bindings.sglang.plugin.gemm_files import (
    CONFIG_DIR_VARIABLE,
    FOLDER,
    GemmFile,
    gemm_file_name,
    read_gemm_file,
)
from tuner.bindings.sglang.plugin.gemm_loaders import fields_of
from tuner.devices.table import Device
from tuner.engines.config_files import PROVENANCE, config_file_text
from tuner.errors import ExportRefused, UnsupportedKernel
from tuner.export.delivery import (
    Delivery,
    ExportFile,
    check_readable,
    is_plugin_file,
    read_back,
    server_facts,
)
from tuner.export.sized_files import Content, Layout, SizedFile
from tuner.families.dense_gemm.export import build_gemm_files, gemm_of, verify_gemm
from tuner.families.dense_gemm.problem import DenseGemm
from tuner.problems.points import Problem, version_folder
from tuner.problems.results import Winner


@dataclass(frozen=True)
class PackageLayout:
    """The engine's own files: `<root>/configs/<the engine's name>`."""

    gemm: SGLangDenseGemm
    device: Device
    root: Path

    def path(self, problem: Problem, triton: str) -> Path:
        return self.root / "configs" / self.gemm.file_name(gemm_of(problem), self.device)

    def sizes(self, problem: Problem, triton: str) -> Sequence[int]:
        return self.gemm.sizes(gemm_of(problem), self.device)

    def sidecar(self, path: Path) -> Path:
        return self.root / PROVENANCE / path.name

    def text(self, content: Content) -> str:
        return config_file_text(content.entries, fields_of(gemm_of(content.problem).block))


@dataclass(frozen=True)
class PluginLayout:
    """The plugin's files: `<root>/gemm/triton_3_6_0/<problem>,device_name=NVIDIA_H200.json`."""

    gemm: SGLangDenseGemm
    device: Device
    root: Path

    def path(self, problem: Problem, triton: str) -> Path:
        name = gemm_file_name(gemm_of(problem), self.device.name)
        return self.root / FOLDER / version_folder(triton) / name

    def sizes(self, problem: Problem, triton: str) -> Sequence[int]:
        return self.gemm.sizes(gemm_of(problem), self.device)

    def sidecar(self, path: Path) -> Path:
        return self.root / PROVENANCE / FOLDER / path.parent.name / path.name

    def text(self, content: Content) -> str:
        return plugin_file(content).text()


@dataclass(frozen=True)
class GemmDelivery(Delivery):
    """Delivers dense GEMMs in the two ways."""

    gemm: SGLangDenseGemm

    note = (
        "the GEMM files are for servers with engine-tuner installed; sglang asks for them if it "
        "runs its Triton kernel, and per channel if it would run CUTLASS"
    )
    variable = CONFIG_DIR_VARIABLE
    by_plugin = True

    @property
    def engine_root(self) -> Path:
        return self.gemm.package_root

    def asked(self, problem: Problem, device: Device) -> Sequence[str]:
        assert isinstance(problem, DenseGemm)
        self.gemm.file_name(problem, device)  # the plugin is asked whenever the engine's loader is
        return [gemm_file_name(problem, device.name)]

    def shipped_file(self, problem: Problem, device: Device) -> Path | None:
        return self.gemm.find_file(None, gemm_of(problem), device)

    def obstacle(self, *, into_engine: bool) -> str:
        engine = self.gemm.engine
        if into_engine or engine.loads_plugins():
            return ""
        return (
            f"{engine.name} {engine.version} loads no plugins, and GEMM files outside its package "
            "need one: write them into its package instead (--into-engine)"
        )

    def files(self, winners: Sequence[Winner], device: Device, root: Path) -> Sequence[SizedFile]:
        layout: Layout = PluginLayout(self.gemm, device, root)
        if root == self.engine_root:
            layout = PackageLayout(self.gemm, device, root)
        for winner in winners:
            assert isinstance(winner.problem, DenseGemm)
            self._refuse_unread(winner.problem, device)
        files = build_gemm_files(winners, self.gemm, device, layout)
        for file in files:
            if isinstance(layout, PluginLayout):
                check_readable(file, partial(_verify_plugins, file))
        return files

    def verify(self, files: Iterable[ExportFile], device: Device, root: Path) -> None:
        for file in files:
            assert isinstance(file, SizedFile)  # `files` made it
            if root == self.engine_root:
                verify_gemm(file, self.gemm, device, root)
            else:
                _verify_plugins(file, file.path)

    def refusal(self, path: Path, triton: str | None) -> str | None:
        if not is_plugin_file(path, FOLDER):
            return None
        facts = server_facts(self.gemm.engine, "dense_gemm", triton)
        reads = self.gemm.launchers.reads_files
        return self.obstacle(into_engine=False) or check_gemm_file(path, facts, reads).reason

    def _refuse_unread(self, problem: DenseGemm, device: Device) -> None:
        try:
            self.gemm.file_name(problem, device)
        except UnsupportedKernel as error:
            raise ExportRefused(str(error)) from None


def plugin_file(content: Content) -> GemmFile:
    """Return the plugin's file with this content."""
    environment = content.environment
    return GemmFile(
        gemm_of(content.problem),
        environment.device,
        environment.engine,
        environment.engine_version,
        environment.triton,
        environment.kernel_hash,
        entries=content.entries,
        statuses=content.statuses,
    )


def _verify_plugins(file: SizedFile, written: Path) -> None:
    """Check that the file `written` reads as the entries of `file`. Raises ExportRefused if not."""
    read_back(file.path.name, written, read_gemm_file, plugin_file(file.content))
