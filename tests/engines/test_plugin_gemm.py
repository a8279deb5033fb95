"""The plugin's GEMM hooks in real sglang versions: their plugin loader, loaders and launchers.

Each run is a separate process (`gemm_scheduler.py`), with files and without. What differs must be
the constants and the grid, as the files say, and nothing else.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import plugin_cases
import pytest
import torch
from gemm_cases import tile
from gemm_scheduler import kernel_modules
from schedulers import run_scheduler, write_files
from tiers import only

from tuner.bindings.sglang.plugin.gemm_files import GemmFile
from tuner.bindings.sglang.plugin.gemm_loaders import FP8_BLOCKS, INT8_BLOCKS, LOADERS
from tuner.engines.engine import find_engine
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.dense_gemm.problem import parse_dense_gemm
from tuner.problems.points import Config
from tuner.problems.results import Status

VERSIONS = ("0.5.12", "0.5.16", "0.5.23")  # all of those on disk that have plugins
NEWEST = VERSIONS[-1]
PROGRAM = "gemm_scheduler.py"
DEVICE, TRITON = "NVIDIA_L40S", "3.6.0"

FP8 = "block_gemm:N=256,K=256,dtype=fp8_w8a8,block=128x128"
INT8 = "block_gemm:N=256,K=256,dtype=int8_w8a8,block=128x128"
UNTUNED = "block_gemm:N=384,K=256,dtype=fp8_w8a8,block=128x128"
ELSEWHERE = "block_gemm:N=512,K=256,dtype=fp8_w8a8,block=128x128"
CHANNEL = "channel_gemm:N=256,K=256,dtype=fp8_w8a8"
SMALL = dict(tile(16, 32, 128, group=1, warps=2, stages=4))
LARGE = {**SMALL, "BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "num_warps": 8}
CHANNEL_TILE = {k: v for k, v in SMALL.items() if k != "GROUP_SIZE_M"}
CALLS = [(FP8, 3), (FP8, 40), (INT8, 3), (UNTUNED, 3), (ELSEWHERE, 3)]
DEFAULT = dict(tile())


@cache
def hash_of(version: str) -> str:
    return gemm_engine(find_engine(f"sglang=={version}")).lift().hash


def gemm_file(version, spec, entries, status=Status.OK, **changes) -> GemmFile:
    here = {"device": DEVICE, "engine_version": version, **changes}
    here["kernel_hash"] = changes.get("kernel_hash") or hash_of(version)
    configs = {size: Config(entry) for size, entry in entries.items()}
    statuses = dict.fromkeys(configs, status)
    return plugin_cases.gemm_file(parse_dense_gemm(spec), configs, statuses, **here)


class Ran:
    """What a scheduler's process did."""

    def __init__(self, folder: Path, log: str) -> None:
        self.report = json.loads((folder / "report.json").read_text())
        self.launches = self.report["launches"]
        self.outputs = torch.load(folder / "outputs.pt")
        self.lines = [x.partition("tuner gemm: ")[2] for x in log.splitlines() if "tuner gemm" in x]
        self.log = log

    def applied(self) -> set[str]:
        lines = [x for x in self.log.splitlines() if "Applied 1 hook(s) to " in x]
        return {line.partition(" to ")[2].partition(" ")[0] for line in lines}


def schedule(folder: Path, version: str, environ: dict[str, str], **settings) -> Ran:
    settings = {"device": DEVICE, "calls": CALLS, **settings}
    return Ran(folder, run_scheduler(PROGRAM, folder, version, environ, settings))


@pytest.fixture(scope="module", params=only(VERSIONS[-1:], VERSIONS))
def version(request):
    return request.param


@pytest.fixture(scope="module")
def without(version, tmp_path_factory):
    """The engine as it is: a folder is named, and there is nothing in it."""
    folder = tmp_path_factory.mktemp("without")
    environ = {"TUNER_GEMM_CONFIG_DIR": str(folder / "empty")}
    return schedule(folder, version, environ, channel=[256, 256, 3])


@pytest.fixture(scope="module")
def root(version, tmp_path_factory):
    root = write_files(
        tmp_path_factory.mktemp("root"),
        # Another version's file with this version's kernels is as good; with others' it is not.
        gemm_file("9.9.9", FP8, {1: SMALL, 64: LARGE}, kernel_hash=hash_of(version)),
        gemm_file(version, INT8, {1: SMALL}, Status.PREDICTED),
        gemm_file("9.9.8", ELSEWHERE, {1: SMALL}, kernel_hash="0" * 64),
        gemm_file(version, ELSEWHERE, {1: SMALL}, device="NVIDIA_H200"),
        gemm_file(version, ELSEWHERE, {1: SMALL}, triton="3.5.1"),
        gemm_file(version, CHANNEL, {1: CHANNEL_TILE}),
    )
    (root / "gemm" / "triton_3_6_0" / "broken.json").write_text("{")
    return root


@pytest.fixture(scope="module")
def tuned(version, root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("with")
    compiling = [256, 256, 128, 128]
    environ = {"TUNER_GEMM_CONFIG_DIR": str(root)}
    return schedule(folder, version, environ, channel=[256, 256, 3], compiling=compiling)


def constants(ran: Ran, spec: str, M: int) -> dict[str, int]:
    [launch] = ran.launches[f"{spec} M={M}"]
    return {name: value for name, value in launch.items() if name in DEFAULT}


def test_launches_have_the_files_constants_and_their_grid(without, tuned):
    assert constants(without, FP8, 3) == constants(without, INT8, 3) == DEFAULT
    assert constants(tuned, FP8, 3) == constants(tuned, INT8, 3) == SMALL
    assert constants(tuned, FP8, 40) == LARGE
    assert tuned.launches[f"{FP8} M=3"][0]["grid"] == [8]
    assert without.launches[f"{FP8} M=3"][0]["grid"] == [2]


def test_what_was_not_tuned_is_launched_as_ever(without, tuned):
    for spec in (UNTUNED, ELSEWHERE):
        assert tuned.launches[f"{spec} M=3"] == without.launches[f"{spec} M=3"]


def test_outputs_are_the_same_with_the_plugin_as_without(without, tuned):
    assert len(without.outputs) == len(CALLS)
    for call, own in without.outputs.items():
        assert own.abs().max() > 0
        assert torch.allclose(own.float(), tuned.outputs[call].float(), rtol=2**-9, atol=2**-3)


def test_without_files_nothing_is_hooked_or_said(without):
    assert without.applied() == set()
    assert without.lines == []


def test_loaders_are_hooked_where_they_are_defined(version, tuned):
    fp8, int8 = kernel_modules(version)
    channel = {f"{fp8}.get_w8a8_channelwise_fp8_configs"} if version == "0.5.23" else set()
    assert tuned.applied() == channel | {
        f"{fp8}.{FP8_BLOCKS.function}",
        f"{int8}.{INT8_BLOCKS.function}",
    }


def test_one_line_for_each_file_that_is_used_and_one_for_all_refused(version, root, tuned):
    folder = root / "gemm" / "triton_3_6_0"
    name = "N=256,K=256,dtype={},block=128x128,device_name=NVIDIA_L40S.json"
    fp8 = folder / f"block_gemm,{name.format('fp8_w8a8')}"
    int8 = folder / f"block_gemm,{name.format('int8_w8a8')}"
    assert tuned.lines.count(f"256x256 fp8_w8a8 128x128 from {fp8}") == 1
    assert tuned.lines.count(f"256x256 int8_w8a8 128x128 from {int8} (predicted)") == 1
    _, refused = [line for line in tuned.lines if line.startswith("refused ")]
    assert "made for triton 3.5.1, this is 3.6.0" in refused
    assert "made for NVIDIA_H200, this is NVIDIA_L40S" in refused
    assert f"whose kernels are not those of {version}" in refused
    warnings = [x for x in tuned.log.splitlines() if x.startswith("WARNING tuner.plugin")]
    assert len(warnings) == 1 and "broken.json: not JSON" in warnings[0]
    channel = 1 if version == "0.5.23" else 0
    assert sum("256x256 fp8_w8a8 channels from" in line for line in tuned.lines) == channel
    assert len(tuned.lines) == 4 + channel


def test_channels_are_given_to_the_release_that_asks(version, without, tuned):
    absent = version != "0.5.23"
    assert without.report["channel"] == ("absent" if absent else None)
    assert tuned.report["channel"] == ("absent" if absent else CHANNEL_TILE)


def test_the_hooked_loader_keeps_its_cache_functions(tuned):
    """UNTUNED and ELSEWHERE asked the engine's own loader."""
    assert tuned.report["cache"] == [2, 0]


def test_what_is_compiled_asks_the_engines_loader(tuned):
    assert tuned.report["compiling"] is None


# By the source alone: a version that moves something is noticed before anything runs.


def test_the_scheduler_imports_the_loaders_modules(version):
    """So they are there when plugins are loaded, and the plugin imports nothing early."""
    engine = find_engine(f"sglang=={version}")
    root = engine.root.parent
    scheduler = root / "sglang/srt/managers/scheduler.py"
    found = reached(root, scheduler)
    for name in kernel_modules(version):
        assert name in found
    entry = scheduler.read_text().partition("\ndef run_scheduler_process(")[2]
    assert "\n    load_plugins()\n" in entry.partition("\ndef ")[0]


def reached(root: Path, start: Path) -> set[str]:
    """The engine's modules that importing a file imports: at its top level, with packages."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for name in imported(waiting.pop()):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                module = ".".join(parts[:end])
                place = root.joinpath(*parts[:end])
                file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
                if module not in seen and file.is_file():
                    seen.add(module)
                    waiting.append(file)
    return seen


# At the top level alone; without a parser, which would take seconds for a thousand files.
IMPORT = re.compile(
    r"^from (sglang[\w.]*) import (\([^)]*\)|[^\n]*)|^import (sglang[\w.]*)", re.MULTILINE
)


def imported(file: Path) -> list[str]:
    names = []
    for package, listed, module in IMPORT.findall(file.read_text()):
        names += [module or package, *(f"{package}.{name}" for name in re.findall(r"\w+", listed))]
    return names


def test_launchers_find_their_loader_in_their_own_module(version):
    for name in kernel_modules(version):
        root = find_engine(f"sglang=={version}").root.parent
        tree = ast.parse(root.joinpath(*name.split(".")).with_suffix(".py").read_text())
        functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        for loader in LOADERS:
            if loader.function in functions and loader.blocks:
                asked = [
                    function
                    for function, node in functions.items()
                    for call in ast.walk(node)
                    if isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Name)
                    and call.func.id == loader.function
                ]
                assert asked == [next(x for x in loader.launchers if x in functions)]
