"""The plugin in real sglang versions: their plugin loader, backend, launchers and kernels.

Each run is a process of its own (`attention_scheduler.py`), with files and without. What differs
must be the constants and the grid, as the files say, and nothing else.
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
from attention_scheduler import DECODE, EXTEND, PREFILL
from real_sglang import kernel_source
from schedulers import run_scheduler, write_files
from tiers import only

from tuner.bindings.sglang.attention.binding import lift_attention
from tuner.bindings.sglang.plugin.backend import BACKEND
from tuner.bindings.sglang.plugin.files import AttentionEntry, AttentionFile
from tuner.bindings.sglang.plugin.kernels import KERNELS, LAUNCHERS, PACKAGES, PAGED
from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.families.attention.problem import AttentionPart, AttentionPhase
from tuner.kernels.launcher import Launcher
from tuner.problems.points import Config
from tuner.problems.registry import parse_problem
from tuner.problems.results import Status

VERSIONS = ("0.5.12", "0.5.16", "0.5.23")  # all of those on disk that have plugins
PROGRAM = "attention_scheduler.py"
DEVICE = "NVIDIA_H200"

SHORT = {"BLOCK_M": 16, "BLOCK_N": 32, "num_warps": 2, "num_stages": 3}
LONG = {"BLOCK_M": 128, "BLOCK_N": 16, "num_warps": 8, "num_stages": 2}
STAGE_1 = {"BLOCK_N": 16, "num_warps": 2, "num_stages": 3}
WIDE = {**STAGE_1, "BLOCK_H": 32}
STAGE_2 = {"num_warps": 1}
SMALL = "q_heads=4,kv_heads=2,Lq=32,Lv=32,dtype=float16"
GROUPED = "decode_attention:q_heads=32,kv_heads=1,Lq=32,Lv=32,dtype=float16,kv_splits=8"
# problem -> [(part, sequences, new tokens, constants)]
TUNED = {
    f"extend_attention:{SMALL}": [("extend", 4, 16, SHORT), ("extend", 1, 256, LONG)],
    f"extend_attention:{SMALL},window=15,sinks": [("extend", 2, 16, {**SHORT, "num_warps": 1})],
    f"extend_attention:{SMALL},page_size=4": [("extend", 2, 16, {**SHORT, "num_stages": 1})],
    "extend_attention:q_heads=4,kv_heads=1,Lq=576,Lv=512,dtype=float16": [
        ("extend", 2, 8, {**SHORT, "BLOCK_N": 16})
    ],
    GROUPED: [("decode", 4, 1, WIDE), ("reduce", 4, 1, STAGE_2)],
    f"{GROUPED},sinks": [("decode", 1, 1, {**WIDE, "BLOCK_N": 64}), ("reduce", 1, 1, STAGE_2)],
    "decode_attention:q_heads=2,kv_heads=2,Lq=32,Lv=32,dtype=float16,kv_splits=8": [
        ("decode", 2, 1, STAGE_1)
    ],
    "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=float16,kv_splits=8": [
        # HAS_MLA: whether values are taken out of the keys that are there.
        ("decode", 2, 1, {**STAGE_1, "BLOCK_H": 16, "HAS_MLA": 0}),
        ("reduce", 2, 1, STAGE_2),
    ],
    f"prefill_attention:{SMALL}": [("prefill", 2, 64, SHORT)],
}
# case -> its launches with those files: (kernel, grid, constants)
EXTENDING, PREFILLING, GROUPS, HEADS, REDUCING = (kernel.name for kernel in KERNELS)
EXPECTED = {
    "extend plain": [(EXTENDING, [3, 4, 2], SHORT)],
    "extend long": [(EXTENDING, [1, 4, 2], LONG)],
    "extend mla": [(EXTENDING, [2, 4, 1], {**SHORT, "BLOCK_N": 16})],
    "extend window and sinks": [(EXTENDING, [2, 4, 2], {**SHORT, "num_warps": 1})],
    "extend paged": [(EXTENDING, [2, 4, 2], {**SHORT, "num_stages": 1})],
    "decode grouped": [(GROUPS, [2, 1, 8], WIDE), (REDUCING, [2, 32], STAGE_2)],
    "decode mha": [(HEADS, [2, 2, 8], STAGE_1), (REDUCING, [2, 2], None)],
    "decode mla": [
        (GROUPS, [2, 1, 8], {**STAGE_1, "BLOCK_H": 16, "HAS_MLA": False}),
        (REDUCING, [2, 16], STAGE_2),
    ],
    # The first kernel is not told of sinks, and the second of no cap: their launcher is.
    "decode sinks": [(GROUPS, [1, 1, 8], {**WIDE, "BLOCK_N": 64}), (REDUCING, [1, 32], STAGE_2)],
    "prefill image": [(PREFILLING, [2, 4, 3], SHORT)],
}
CASES = {"extend": EXTEND, "decode": DECODE, "prefill": PREFILL}
ALL = [f"{phase} {name}" for phase, named in CASES.items() for name in named]
UNTOUCHED = [case for case in ALL if case not in EXPECTED]


def cases(version: str) -> list[str]:
    """0.5.12's kernels know no pages."""
    return [case for case in ALL if version != "0.5.12" or "paged" not in case]


@cache
def hash_of(version: str) -> str:
    return lift_attention(find_engine(f"sglang=={version}")).hash


def attention_file(version, problem, rows, **changes) -> AttentionFile:
    entries = tuple(
        AttentionEntry(AttentionPart(part), batch, new, Config(constants), Status.OK)
        for part, batch, new, constants in rows
    )
    here = {"device": DEVICE, "engine_version": version, **changes}
    here["kernel_hash"] = changes.get("kernel_hash") or hash_of(version)
    return plugin_cases.attention_file(parse_problem(problem), entries, **here)


class Ran:
    """What a scheduler's process did."""

    def __init__(self, folder: Path, log: str) -> None:
        report = json.loads((folder / "report.json").read_text())
        self.all, self.loaded = report["launches"], report["loaded"]
        self.outputs = torch.load(folder / "outputs.pt")
        self.log = log

    def launches(self, case):
        """What was launched, as EXPECTED has it."""
        return [launch for launch in self.all[case] if not launch["warmup"]]

    def line(self) -> str:
        lines = [line for line in self.log.splitlines() if "tuner attention: " in line]
        assert len(lines) == 1, lines
        return lines[0]

    def applied(self) -> list[str]:
        return [line for line in self.log.splitlines() if "Applied 1 hook(s) to " in line]


def schedule(folder: Path, version: str, environ: dict[str, str], wanted, **settings) -> Ran:
    settings = {"device": DEVICE, "cases": list(wanted), **settings}
    return Ran(folder, run_scheduler(PROGRAM, folder, version, environ, settings))


@pytest.fixture(scope="module", params=only(VERSIONS[-1:], VERSIONS))
def version(request):
    return request.param


@pytest.fixture(scope="module")
def without(version, tmp_path_factory):
    """The engine as it is: a folder is named, and there is nothing in it."""
    folder = tmp_path_factory.mktemp("without")
    environ = {"TUNER_ATTENTION_CONFIG_DIR": str(folder / "empty")}
    return schedule(folder, version, environ, cases(version))


@pytest.fixture(scope="module")
def root(version, tmp_path_factory):
    files = [attention_file(version, problem, rows) for problem, rows in TUNED.items()]
    at_512 = "decode_attention:q_heads=4,kv_heads=4,Lq=64,Lv=64,dtype=float16,kv_splits=8"
    first, rows = next(iter(TUNED.items()))
    # Another version's file with this version's kernels is as good; with others' it is not.
    files[0] = attention_file("9.9.9", first, rows, kernel_hash=hash_of(version))
    refused = [
        attention_file("9.9.8", at_512, [("decode", 1, 1, STAGE_1)], kernel_hash="0" * 64),
        attention_file(version, at_512, [("decode", 1, 1, STAGE_1)], device="NVIDIA_L40S"),
        attention_file(version, at_512, [("decode", 1, 1, STAGE_1)], triton="3.5.1"),
        attention_file(version, at_512.replace("s=8", "s=16"), [("decode", 1, 1, STAGE_1)]),
    ]
    root = write_files(tmp_path_factory.mktemp("root"), *files, *refused)
    (root / "attention" / "triton_3_6_0" / "broken.json").write_text("{")
    return root


@pytest.fixture(scope="module")
def tuned(version, root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("with")
    environ = {"TUNER_ATTENTION_CONFIG_DIR": str(root)}
    return schedule(folder, version, environ, cases(version))


def test_launches_have_the_files_constants_and_their_grid(version, without, tuned):
    for case, expected in EXPECTED.items():
        if case not in cases(version):
            continue
        launches, own = tuned.launches(case), without.launches(case)
        assert [(x["kernel"], x["grid"]) for x in launches] == [(k, g) for k, g, _ in expected]
        for launch, engines, (_, _, constants) in zip(launches, own, expected, strict=True):
            wanted = {**engines, **(constants or {}), "grid": launch["grid"]}
            if "BLOCK_N_PREFIX" in engines:
                wanted["BLOCK_N_PREFIX"] = wanted["BLOCK_N"]
            assert launch == wanted


def test_outputs_are_the_same_with_the_plugin_as_without(version, without, tuned):
    assert cases(version)
    for case in cases(version):
        own, ours = without.outputs[case], tuned.outputs[case]
        assert not own.isnan().any() and not ours.isnan().any(), case
        # float16's step at 1 is 1e-3; other blocks sum in another order.
        assert torch.allclose(own.float(), ours.float(), atol=2e-3, rtol=4e-3), case


def test_what_was_not_tuned_is_launched_as_ever(version, without, tuned):
    for case in UNTOUCHED:
        assert tuned.all[case] == without.all[case]


def test_without_files_nothing_is_hooked(without):
    assert without.applied() == []
    assert "tuner attention" not in without.log


def test_every_hook_is_applied_and_one_line_says_what_is_used(version, root, tuned):
    package = PACKAGES[1 if version == "0.5.12" else 0]
    targets = [BACKEND, *(f"{package}.{m}.{name}" for m, (name, _) in LAUNCHERS.items())]
    targets += [f"{package}.{kernel.module}.{kernel.name}" for kernel in KERNELS]
    applied = "\n".join(tuned.applied())
    assert all(f" {target} (from: plugin=tuner_attention" in applied for target in targets)
    assert len(tuned.applied()) == len(targets)
    line = next(x for x in tuned.log.splitlines() if x.startswith("INFO tuner.plugin"))
    assert f"extend 4/1 576/512 float16 from {root}/attention/triton_3_6_0/extend_att" in line
    assert "made for triton 3.5.1, this is 3.6.0" in line
    assert "made for NVIDIA_L40S, this is NVIDIA_H200" in line
    assert f"made for sglang 9.9.8, whose kernels are not those of {version}" in line
    assert "made for 16 KV splits, this server launches 8" in line
    warnings = [x for x in tuned.log.splitlines() if x.startswith("WARNING tuner.plugin")]
    assert len(warnings) == 1 and "broken.json: not JSON" in warnings[0]


def test_nothing_is_imported_that_asks_for_the_gpu(version, root, tuned, tmp_path):
    """Registered in a scheduler, the plugin brings the backend's module; elsewhere nothing."""
    kernels = {f"{package}.{kernel.module}" for package in PACKAGES for kernel in KERNELS}
    assert "sglang.srt.plugins" in tuned.loaded
    assert "sglang.srt.layers.attention.triton_backend" in tuned.loaded
    assert kernels.isdisjoint(tuned.loaded)
    environ = {"TUNER_ATTENTION_CONFIG_DIR": str(root)}
    main = schedule(tmp_path, version, environ, [], scheduler=False)
    assert "sglang.srt.layers.attention.triton_backend" not in main.loaded
    assert main.applied() == []


def test_what_later_launches_need_is_compiled_with_the_first(tuned):
    prepared = [x for x in tuned.all["extend plain"] if x["warmup"]]
    assert [x["BLOCK_M"] for x in prepared] == [SHORT["BLOCK_M"], LONG["BLOCK_M"]]
    assert not any(x["warmup"] for x in tuned.all["extend long"])


def test_deterministic_inference_is_left_alone(version, root, without, tmp_path):
    environ = {"TUNER_ATTENTION_CONFIG_DIR": str(root)}
    wanted = ["extend plain", "decode grouped"]
    ran = schedule(tmp_path, version, environ, wanted, deterministic=True)
    assert "inference is deterministic" in ran.line()
    assert {case: ran.all[case] for case in wanted} == {case: without.all[case] for case in wanted}


def test_a_config_that_the_gpu_refuses_gives_way_to_the_engines_own(version, without, tmp_path):
    too_large = [("extend", 4, 16, {**SHORT, "num_warps": 32})]
    file = attention_file(version, f"extend_attention:{SMALL}", too_large)
    environ = {"SGLANG_MOE_CONFIG_DIR": str(write_files(tmp_path / "overlay", file))}
    ran = schedule(tmp_path, version, environ, ["extend plain"], repeat=2)
    own = without.all["extend plain"]
    assert [x["num_warps"] for x in ran.launches("extend plain")] == [32, own[0]["num_warps"]]
    assert ran.launches("extend plain")[1:] == ran.all["extend plain 2"] == own
    assert torch.equal(ran.outputs["extend plain"], without.outputs["extend plain"])
    assert ran.log.count("out of resource: shared memory") == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_hook_targets_are_where_they_were(version):
    """By the source alone: a version that moves one is noticed before anything runs."""
    engine = find_engine(f"sglang=={version}")
    kernels = lift_attention(engine)
    for kernel in KERNELS:
        lifted = kernels.lifted(AttentionPhase(kernel.module.partition("_")[0]))
        assert not kernel.unfit([p.name for p in lifted.parameters(kernel.name)])
    for module, (function, parameters) in LAUNCHERS.items():
        source = kernel_source(engine, module)
        dotted = ".".join(["sglang", *source.relative_to(engine.root).with_suffix("").parts])
        assert dotted in {f"{package}.{module}" for package in PACKAGES}
        launcher = Launcher(source, engine.root, version, cuda_target(9, 0))
        asked = {name for name in parameters if name != PAGED or version != "0.5.12"}
        assert asked <= set(launcher.parameters(function))
    *_, backend, method = BACKEND.split(".")
    text = (engine.root / "srt/layers/attention/triton_backend.py").read_text()
    constructor = text.partition(f"class {backend}(")[2].partition(f"def {method}(")[2]
    constructor = constructor.partition("\n    def ")[0]
    imports, _, rest = constructor.partition("super().__init__()")
    assert LAUNCHERS["extend_attention"][0] in imports  # the hook stands before it
    assert "self.enable_deterministic = " in rest
    assert "self.max_kv_splits = " in rest
    scheduler = (engine.root / "srt/managers/scheduler.py").read_text()
    entry = scheduler.partition("\ndef run_scheduler_process(")[2]
    assert "\n    load_plugins()\n" in entry.partition("\ndef ")[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_layers_and_settings_are_read_where_releases_have_them(version):
    root = find_engine(f"sglang=={version}").root / "srt"
    layer = (root / "layers/radix_attention.py").read_text().partition("class RadixAttention(")[2]
    for name in ("tp_q_head_num", "tp_k_head_num", "qk_head_dim", "v_head_dim", "logit_cap"):
        assert f"self.{name} = " in layer
    assert "self.sliding_window_size = sliding_window_size or -1" in layer
    models = "".join(path.read_text() for path in sorted((root / "models").glob("*.py")))
    names = set(re.findall(r"(?:self\.attn\(|sinks)[^()]*sinks=self\.(\w+)", models))
    assert names and all("sink" in name for name in names)
    context = root / "runtime_context.py"
    later = context.is_file() and "\ndef get_exec(" in context.read_text()
    assert later == (version == "0.5.23")
    arguments = (root / "server_args.py").read_text()
    assert later or "\ndef get_global_server_args(" in arguments
    flag = "enable_deterministic_inference: "
    settings = root / "arg_groups/fields/exec_.py"
    assert flag in (settings.read_text() if later else arguments)


@pytest.mark.parametrize("version", VERSIONS)
def test_engines_do_nothing_with_the_kernels_but_launch_them_in_one_place(version):
    """What stands in for them can launch; it could not be called by another kernel."""
    engine = find_engine(f"sglang=={version}")
    for kernel in KERNELS:
        source = kernel_source(engine, kernel.module)
        tree = ast.parse(source.read_text())
        used = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == kernel.name]
        called = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
        launched = [f.value for f in called if isinstance(f, ast.Subscript)]
        assert len(used) == 1
        assert used[0] in launched
    imports = [
        rf"from \S*\b{kernel.module} import {listed}\b{kernel.name}\b"
        for kernel in KERNELS
        for listed in (r"\([^)]*", r"[^(\n]*")
    ]
    for path in engine.root.rglob("*.py"):
        text = path.read_text()
        if any(kernel.name in text for kernel in KERNELS):
            assert not re.search("|".join(imports), text), path


@pytest.mark.parametrize("version", VERSIONS)
def test_prefill_graphs_leave_attention_out(version):
    """So that each replay launches extend anew, for the batch that is there then."""
    layers = find_engine(f"sglang=={version}").root / "srt/layers/radix_attention.py"
    broken = r"eager_on_graph\(True\)\(\s*unified_attention_with_output\s*\)|"
    broken += r"@eager_on_graph\n    def _eager_attention\("
    assert re.search(broken, layers.read_text())


def test_versions_without_plugins_have_kernels_that_the_plugin_does_not_know():
    """So that it stays alone even where somebody calls it by hand."""
    for version in ("0.4.4", "0.5.2"):
        engine = find_engine(f"sglang=={version}")
        assert not (engine.root / "srt" / "plugins").exists()
        decode = lift_attention(engine).lifted(AttentionPhase.DECODE)
        for name in (GROUPS, HEADS):
            kernel = next(kernel for kernel in KERNELS if kernel.name == name)
            assert kernel.unfit([p.name for p in decode.parameters(name)])
