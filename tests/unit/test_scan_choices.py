"""How a server's launches of scan kernels get their choices."""

from __future__ import annotations

import importlib.util
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
from tuner.errors import UnsupportedKernel
from tuner.export.file_checks import RuntimeFacts
from tuner.families.scans.chunk_scan.kernels import SCAN
from tuner.families.scans.chunk_scan.problem import ChunkScan, SsdKernel
from tuner.families.scans.files import ScanEntry, ScanFile
from tuner.families.scans.gated_delta.kernels import SCAN as DELTA
from tuner.families.scans.gated_delta.problem import DeltaKernel, GatedDelta
from tuner.families.scans.serve import Arguments, ScanChoices, hook_kernel, hook_module
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
FACTS = RuntimeFacts("sglang", "0.5.16", FILE.device, "3.6.0", lambda: ("kernels",))


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
    for tokens in (512, 1024, 2048, 8192, 32768):
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
        ({"engine": "vllm"}, "made for sglang, this is vllm"),
        ({"kernel_hashes": lambda: ("others",)}, "whose kernels are not those of 0.5.16"),
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


@pytest.mark.parametrize("tokens", [60, 300, 2100, 8000, 33_000])
def test_prompts_far_from_every_measured_size_are_the_engines(choices, tokens):
    kernel = Autotuned()
    hook_kernel(kernel, SsdKernel.SCAN, choices)
    launch(kernel, tokens)
    assert (kernel.chose, kernel.fn.launched) == (1, [])


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (
            UnsupportedKernel("no kernel _bmm"),
            "the kernels of 0.5.16 cannot be compared: no kernel",
        ),
        (RecursionError("too deep"), "the kernels of 0.5.16 cannot be compared: too deep"),
    ],
)
def test_kernels_that_cannot_be_compared_are_lifted_once_and_told_once(
    choices, caplog, broken, said
):
    asked = []

    def hashes():
        asked.append(1)
        raise broken

    facts = replace(FACTS, kernel_hashes=hashes)
    choices.facts = lambda: facts
    for number in range(100):  # of a fleet
        other = replace(PROBLEM, heads=8 * (number + 1))
        path = replace(FILE, problem=other).path_under(choices.root)
        path.write_text(replace(FILE, problem=other).text())
    kernel = Jitted()
    hook_kernel(kernel, SsdKernel.SCAN, choices)
    with caplog.at_level(logging.INFO, "tuner.plugin"):
        for tokens in range(1024, 1324):
            launch(kernel, tokens)
    assert asked == [1]
    assert constants(kernel) == [{}] * 300
    refused, undecided = (record.getMessage() for record in caplog.records)
    assert said in refused and "refused 92 more files" in refused
    assert len(refused) < 4000 and "no choice for" in undecided


def test_facts_that_cannot_be_found_out_are_asked_for_once(choices, caplog):
    asked = []
    choices.facts = lambda: asked.append(1) or 1 / 0
    kernel = Jitted()
    hook_kernel(kernel, SsdKernel.SCAN, choices)
    for tokens in (1024, 1025, 1026):
        launch(kernel, tokens)
    assert (asked, constants(kernel)) == ([1], [{}] * 3)
    assert [r.getMessage() for r in caplog.records] == ["tuner scan: nothing is applied"]


def delta(key_heads: int, rows: dict[int, int]) -> ScanFile:
    """A file of a gated delta net, in which the norm kernel has a BT by number of tokens."""
    problem = GatedDelta.parse(
        f"gated_delta:key_heads={key_heads},value_heads={2 * key_heads},key_dim=128,value_dim=128"
    )
    entries = [
        ScanEntry(Point(1, part, tokens), Config({**config, **LAUNCH}), Status.OK)
        for tokens, block in rows.items()
        for part, config in (
            (DeltaKernel.NORM, {"BT": block}),
            (DeltaKernel.SOLVE, {"BK": block}),
            (DeltaKernel.GATES, {}),
        )
    ]
    return replace(FILE, problem=problem, entries=tuple(entries))


def solved(choices: ScanChoices, key_heads: int, tokens: int) -> dict[str, int] | None:
    named = {"BT": 64, "H": 2 * key_heads, "Hg": key_heads, "K": 128, "k": tensor(1)}
    chunks = {"chunk_indices": tensor(tokens // 64, 2)}
    return choices.config(DeltaKernel.SOLVE, {**named, **chunks})


def normed(choices: ScanChoices, rows: int) -> dict[str, int] | None:
    return choices.config(DeltaKernel.NORM, {"x": tensor(rows, 128), "D": 128, "T": rows})


def test_norms_of_a_gated_delta_net_ask_the_file_that_the_chain_s_other_kernels_matched(tmp_path):
    """The norm kernel is told neither of heads nor of tokens, only of both together."""
    for file in (delta(16, {1024: 8, 8192: 16}), delta(4, {1024: 32, 8192: 64})):
        file.path_under(tmp_path).parent.mkdir(parents=True, exist_ok=True)
        file.path_under(tmp_path).write_text(file.text())
    choices = ScanChoices(DELTA, tmp_path, lambda: FACTS)
    assert normed(choices, 8192 * 4) is None  # not known yet
    assert solved(choices, 4, 8192) == {"BK": 64, **LAUNCH}
    assert normed(choices, 8192 * 4) == {"BT": 64, **LAUNCH}
    assert normed(choices, 1024 * 4) == {"BT": 32, **LAUNCH}
    assert solved(choices, 16, 1024) == {"BK": 8, **LAUNCH}  # another model in this process
    assert normed(choices, 8192 * 4) is None  # 8,192 tokens of one, or 2,048 of the other


def test_norms_of_heads_that_no_file_is_for_are_the_engines(tmp_path):
    file = delta(16, {1024: 8, 8192: 16})
    file.path_under(tmp_path).parent.mkdir(parents=True)
    file.path_under(tmp_path).write_text(file.text())
    choices = ScanChoices(DELTA, tmp_path, lambda: FACTS)
    assert solved(choices, 4, 4096) is None
    assert normed(choices, 4096 * 4) is None


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


def test_a_module_that_was_looked_up_or_failed_first_is_hooked_all_the_same(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    path = tmp_path / "scan_kernels_c.py"
    path.write_text("raise ValueError\n")
    seen: list[str] = []
    after_import("scan_kernels_c", lambda module: seen.append(module.__name__))
    assert importlib.util.find_spec("scan_kernels_c") is not None
    with pytest.raises(ValueError):
        importlib.import_module("scan_kernels_c")
    assert not seen
    path.write_text("VALUE = 12\n")
    importlib.invalidate_caches()
    assert importlib.import_module("scan_kernels_c").VALUE == 12
    assert seen == ["scan_kernels_c"]
    assert sys.meta_path == before


@pytest.mark.parametrize(
    ("name", "value", "alone"),
    [
        ("VLLM_BATCH_INVARIANT", "1", True),
        ("VLLM_BATCH_INVARIANT", "0", False),
        ("VLLM_TRITON_FORCE_FIRST_CONFIG", " True", True),
        ("VLLM_TRITON_FORCE_FIRST_CONFIG", "false", False),
        ("VLLM_TRITON_FORCE_FIRST_CONFIG", "2", False),
    ],
)
def test_vllms_variables_are_read_as_vllm_reads_them(name, value, alone):
    assert vllm_plugin.left_alone({name: value}) == (f"{name} is set" if alone else "")


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
