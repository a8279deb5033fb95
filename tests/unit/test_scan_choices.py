"""How a server's launches of scan kernels get their choices."""

from __future__ import annotations

import importlib
import logging
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from log_lines import parse_log

from tuner.bindings.vllm import plugin as vllm_plugin
from tuner.deploy.load_proof.proof import LoadOutcome
from tuner.engines.after_import import after_import
from tuner.families.scans.chunk_scan.kernels import SCAN
from tuner.families.scans.chunk_scan.problem import ChunkScan, SsdKernel
from tuner.families.scans.files import ScanEntry, ScanFile
from tuner.families.scans.gated_delta.kernels import SCAN as DELTA
from tuner.families.scans.gated_delta.problem import DeltaKernel, GatedDelta
from tuner.families.scans.serve import Arguments, ScanChoices, ServerFacts, hook_kernel, hook_module
from tuner.problems.points import Config, Point
from tuner.problems.results import Status

PROBLEM = ChunkScan.parse("chunk_scan:heads=64,head_dim=64,groups=8,state_size=128,chunk_size=128")
LAUNCH = {"num_warps": 1, "num_stages": 2}
SHORT, LONG = ({"BLOCK_SIZE_M": m, "num_warps": 4, "num_stages": 1} for m in (32, 128))
FILE = ScanFile(
    PROBLEM,
    *("NVIDIA_H100_80GB_HBM3", "sglang", "0.5.16", "3.6.0", "kernels"),
    entries=(
        ScanEntry(Point(1, SsdKernel.SCAN, 1024), Config(SHORT), Status.OK),
        ScanEntry(Point(8, SsdKernel.SCAN, 2048), Config(LONG), Status.OK),
    ),
)
FACTS = ServerFacts("sglang", "0.5.16", FILE.device, "3.6.0", lambda family: "kernels")


class Jitted:
    """A `JITFunction`: a kernel that remembers what it was launched with."""

    __module__ = "kernels"

    def __init__(self) -> None:
        self.arg_names = ["x_ptr", "dA_cumsum_ptr", "chunk_size", "hdim", "dstate"]
        self.launched: list[dict[str, object]] = []
        self.fails = False

    def run(self, *args: object, **kwargs: object) -> None:
        if self.fails and "num_warps" in kwargs:
            raise RuntimeError("out of resource: shared memory")
        self.launched.append({**dict(zip(self.arg_names, args, strict=False)), **kwargs})

    def __getitem__(self, grid: object):
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)


class Autotuned(Jitted):
    """An `Autotuner`, which counts how often it had to choose."""

    def __init__(self) -> None:
        super().__init__()
        self.fn, self.configs, self.chose = Jitted(), [], 0

    def run(self, *args: object, **kwargs: object) -> None:
        self.chose += 1


def tensor(*shape: int) -> SimpleNamespace:
    return SimpleNamespace(shape=shape, dtype="torch.bfloat16")


def launch(kernel: Jitted, tokens: int, heads: int = 64) -> None:
    chunks = -(-tokens // 128)
    args = tensor(1, tokens, heads, 64), tensor(1, heads, chunks, 128), 128, 64, 128
    kernel[(1, 2, 3)](*args, nheads_ngroups_ratio=8)


@pytest.fixture
def choices(tmp_path: Path) -> ScanChoices:
    path = FILE.path_under(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(FILE.text())
    return ScanChoices(SCAN, tmp_path, lambda: FACTS)


def constants(kernel: Jitted) -> list[dict[str, object]]:
    return [{name: seen[name] for name in SHORT if name in seen} for seen in kernel.launched]


def test_constants_are_added_to_the_launches_of_a_kernel_without_an_autotuner(choices):
    kernel = Jitted()
    hook_kernel(kernel, SsdKernel.SCAN, choices)
    for tokens in (100, 1024, 3000, 8000, 32768):
        launch(kernel, tokens)
    assert constants(kernel) == [SHORT, SHORT, SHORT, LONG, LONG]
    assert kernel.launched[0]["grid"] == (1, 2, 3)


def test_an_entry_that_is_the_engine_s_own_leaves_the_choice_to_the_engine(choices, tmp_path):
    """It has a configuration even where nobody knows what the engine chooses."""
    first, last = FILE.entries
    mixed = replace(FILE, entries=(replace(first, status=Status.INCUMBENT), last))
    FILE.path_under(tmp_path).write_text(mixed.text())
    kernel = Autotuned()
    hook_kernel(kernel, SsdKernel.SCAN, choices)
    launch(kernel, 1024)
    assert (kernel.chose, kernel.fn.launched) == (1, [])
    launch(kernel, 8192)
    assert (kernel.chose, constants(kernel.fn)) == (1, [LONG])


def test_arguments_are_found_by_name_in_any_place():
    found = Arguments({"x": 0, "y": 1, "z": 2}, (1, None), {"warps": 4})
    assert dict(found) == {"x": 1, "y": None, "warps": 4}
    assert (found["y"], found["warps"], found.get("z"), len(found)) == (None, 4, None, 3)


def test_an_autotuner_is_not_asked(choices):
    kernel = Autotuned()
    hook_kernel(kernel, SsdKernel.SCAN, choices)
    launch(kernel, 8192)
    assert constants(kernel.fn) == [LONG]
    assert kernel.chose == 0


class Heuristics:
    """`triton.Heuristics`, which adds arguments that follow from others."""

    def __init__(self, fn: Jitted) -> None:
        self.fn, self.values = fn, {}

    def run(self, *args: object, **kwargs: object) -> None:
        self.fn.run(*args, IS_VARLEN=True, **kwargs)

    __getitem__ = Jitted.__getitem__


def test_a_gated_delta_nets_kernels_are_answered_within_their_heuristics(tmp_path):
    problem = GatedDelta.parse("gated_delta:key_heads=16,value_heads=32,key_dim=128,value_dim=128")
    solve, norm = ({"BK": 64, **LAUNCH}, {"BT": 4, **LAUNCH})
    rows = {DeltaKernel.SOLVE: solve, DeltaKernel.NORM: norm}
    entries = [
        ScanEntry(Point(1, part, 8192), Config(config), Status.OK) for part, config in rows.items()
    ]
    file = replace(FILE, problem=problem, entries=tuple(entries))
    path = file.path_under(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(file.text())
    choices = ScanChoices(DELTA, tmp_path, lambda: FACTS)
    module, kernel, lone = ModuleType("kernels"), Autotuned(), Jitted()
    lone.arg_names = ["x", "y", "eps"]
    module.chunk_gated_delta_rule_fwd_kkt_solve_kernel = Heuristics(kernel)
    module.l2norm_fwd_kernel = lone
    hook_module(module, choices)
    sizes = {"BT": 64, "H": 32, "Hg": 16, "K": 128, "chunk_indices": tensor(128, 2)}
    module.chunk_gated_delta_rule_fwd_kkt_solve_kernel[(1,)](k=tensor(1, 8192, 16, 128), **sizes)
    assert kernel.chose == 0
    (seen,) = kernel.fn.launched
    assert seen["IS_VARLEN"]
    assert seen.items() >= solve.items()
    module.l2norm_fwd_kernel[(1,)](tensor(8192 * 16, 128), None, 1e-6, T=8192 * 16, D=128, BT=16)
    assert lone.launched[0].items() >= norm.items()
    assert len(choices._answers) == 2
    module.chunk_gated_delta_rule_fwd_kkt_solve_kernel[(1,)](
        k=tensor(1, 8192, 16, 128), **{**sizes, "H": 16}
    )
    assert kernel.chose == 1


def test_prompts_shorter_than_a_chunk_are_the_engines_and_nothing_is_said(tmp_path, caplog):
    """A server's own warm-up has a few tokens, and layers without gates run these kernels too."""
    (tmp_path / "scan").mkdir()
    choices, kernel = ScanChoices(DELTA, tmp_path, lambda: FACTS), Autotuned()
    hook_kernel(kernel, DeltaKernel.OUT, choices)
    sizes = {"Hg": 16, "H": 32, "K": 128, "V": 128, "h": tensor(1, 1, 32, 128, 128)}
    gates = tensor(1, 64, 32)
    with caplog.at_level(logging.INFO, "tuner.plugin"):
        kernel[(1,)](k=tensor(1, 6, 16, 128), BT=16, g=gates, **sizes)
        kernel[(1,)](k=tensor(1, 64, 16, 128), BT=64, g=None, **sizes)
        assert not caplog.records
        kernel[(1,)](k=tensor(1, 64, 16, 128), BT=64, g=gates, **sizes)
    assert kernel.chose == 3
    assert "no choice for ('delta_out', 64, 16, 32, 128" in caplog.text


def test_other_problems_and_kernels_are_left_alone_and_told_once(choices, caplog):
    kernel = Autotuned()
    hook_kernel(kernel, SsdKernel.SCAN, choices)
    with caplog.at_level(logging.INFO, "tuner.plugin"):
        for _ in range(3):
            launch(kernel, 8192, heads=32)
        kernel[(1,)]("no tensor")
    assert kernel.chose == 4
    assert not kernel.fn.launched
    said = [record.getMessage() for record in caplog.records]
    assert sum("no choice for" in line for line in said) == 1
    assert sum("its launch is not understood" in line for line in said) == 1


def test_a_choice_that_cannot_be_launched_is_never_used_again(choices, caplog):
    kernel = Autotuned()
    kernel.fn.fails = True
    hook_kernel(kernel, SsdKernel.SCAN, choices)
    with caplog.at_level(logging.INFO, "tuner.plugin"):
        launch(kernel, 8192)
        launch(kernel, 8192)
    assert kernel.chose == 2
    assert sum("cannot be launched here" in r.getMessage() for r in caplog.records) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": "NVIDIA_L40S"}, "this is NVIDIA_L40S"),
        ({"triton": "3.8.0"}, "made for triton 3.6.0, this is 3.8.0"),
        ({"engine": "vllm"}, "made for engine sglang"),
        ({"kernel_hash": lambda family: "others"}, "whose kernels are not those of 0.5.16"),
    ],
)
def test_files_for_something_else_are_refused(choices, caplog, change, said):
    choices.facts = lambda: replace(FACTS, **change)
    kernel = Jitted()
    hook_kernel(kernel, SsdKernel.SCAN, choices)
    with caplog.at_level(logging.INFO, "tuner.plugin"):
        launch(kernel, 8192)
    assert constants(kernel) == [{}]
    assert said in caplog.text


def test_vllms_own_way_of_launching_asks_for_each_length(choices):
    module = ModuleType("kernels")
    kernel = Autotuned()
    asked = []
    module._chunk_scan_fwd_kernel = kernel
    module.launch_autotuned = lambda kernel, grid, **kwargs: asked.append(kwargs)
    hook_module(module, choices)
    for tokens, heads in ((1024, 64), (8192, 64), (8192, 32)):
        chunks = -(-tokens // 128)
        module.launch_autotuned(
            kernel,
            (1,),
            x_ptr=tensor(tokens, heads, 64),
            dA_cumsum_ptr=tensor(heads, chunks, 128),
            **{"chunk_size": 128, "hdim": 64, "dstate": 128, "nheads_ngroups_ratio": 8},
        )
    assert constants(kernel.fn) == [SHORT, LONG]
    assert len(asked) == 1


def test_load_proof_reads_the_lines(choices, caplog):
    FILE.path_under(choices.root).with_name("chunk_scan,other.json").write_text(
        replace(FILE, triton="3.8.0").text()
    )
    kernel = Autotuned()
    hook_kernel(kernel, SsdKernel.SCAN, choices)
    with caplog.at_level(logging.INFO, "tuner.plugin"):
        launch(kernel, 8192)
        launch(kernel, 8192, heads=32)
    lines = [f"[2026-11-01 10:00:00 TP0] {record.getMessage()}" for record in caplog.records]
    loads = {load.outcome: load for load in parse_log(lines).loads}
    used = loads[LoadOutcome.LOADED]
    assert (used.family, used.used) == ("chunk_scan", str(FILE.path_under(choices.root)))
    assert loads[LoadOutcome.REFUSED].reason == "made for triton 3.8.0, this is 3.6.0"
    assert "no choice for" in loads[LoadOutcome.DEFAULT].reason


# Modules that are imported later


def test_a_hook_runs_once_its_module_is_imported(tmp_path, monkeypatch, caplog):
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    for name in ("scan_kernels_a", "scan_kernels_b"):
        (tmp_path / f"{name}.py").write_text("VALUE = 1\n")
    seen: list[str] = []
    after_import("scan_kernels_a", lambda module: seen.append(module.__name__))

    def broken(module: ModuleType) -> None:
        raise ValueError("no")

    after_import("scan_kernels_b", broken)
    assert not seen
    assert importlib.import_module("scan_kernels_a").VALUE == 1
    assert importlib.import_module("scan_kernels_b").VALUE == 1
    assert seen == ["scan_kernels_a"]
    assert "nothing is applied to scan_kernels_b" in caplog.text
    assert sys.meta_path == before
    after_import("scan_kernels_a", lambda module: seen.append("again"))
    assert seen == ["scan_kernels_a", "again"]


def test_constants_that_an_autotuners_list_shares_are_launched_too(choices):
    kernel = Autotuned()
    kernel.configs = [
        SimpleNamespace(kwargs={"BLOCK_SIZE_M": m, "BV": 64, "BH": m}) for m in (32, 64)
    ]
    hook_kernel(kernel, SsdKernel.SCAN, choices)
    launch(kernel, 8192)
    assert kernel.fn.launched[0].items() >= {**LONG, "BV": 64}.items()
    assert "BH" not in kernel.fn.launched[0]


def test_vllms_plugin_waits_for_the_kernels_and_never_raises(tmp_path, monkeypatch, caplog):
    before = list(sys.meta_path)
    vllm_plugin.register()  # without files
    assert sys.meta_path == before
    path = FILE.path_under(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(FILE.text())
    monkeypatch.setenv("TUNER_SCAN_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    vllm_plugin.register()
    assert sys.meta_path == before
    monkeypatch.delenv("VLLM_BATCH_INVARIANT")
    monkeypatch.setattr(sys, "meta_path", list(before))
    vllm_plugin.register()
    assert len(sys.meta_path) == len(before) + 4  # a finder for each module
    monkeypatch.setattr(vllm_plugin, "scan_root", lambda environ: 1 / 0)
    vllm_plugin.register()
    assert "nothing is applied" in caplog.text
