"""E, N, K and top_k of real config.json files, as the engines' own model classes give them.

The sizes come from the model classes (engine_sizes.py); tests of loaders have the names of files.
The type of weights is not compared here: it is decided by the quantisation classes, which need the
weights' loader.
"""

from __future__ import annotations

import ast
import json
import sys
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import resolve
from checkpoints import config_json
from engine_sizes import engine_sizes
from tables import rows
from tiers import only

from tuner.bindings.sglang.fused_moe.shared_experts import shared_expert_fusion
from tuner.devices.table import find_device
from tuner.devices.target import CUDA, Target, cuda_target
from tuner.engines.engine import names_model
from tuner.errors import BadProblem
from tuner.families.fused_moe.engine import FusionCase
from tuner.models.config_json import read_model
from tuner.models.fields import language_fields
from tuner.models.model import Model
from tuner.models.serving import Serving
from tuner.models.table import find_preset
from tuner.problems.dtypes import Dtype
from tuner.targets import resolve_all

MODELS = Path(__file__).parents[1] / "data" / "models"
ENGINES = Path(sys.prefix) / "share" / "tuner" / "engines"
FOLDERS = {
    "sglang": ENGINES / "sglang-0.5.23" / "sglang" / "srt" / "models",
    "vllm": ENGINES / "vllm-0.33.0" / "vllm" / "model_executor" / "models",
}
H200 = find_device("H200")


def checkpoints(engine: str) -> list[tuple[Path, Model, Path]]:
    """(folder, its model, the engine's file) of the checkpoints whose classes can be evaluated."""
    found = []
    (files,) = rows("model_files.toml", "classes")
    for folder in sorted(MODELS.iterdir()):
        model = read_model(folder)
        file = files[model.architecture][engine]
        if file:
            found.append((folder, model, FOLDERS[engine] / f"{file}.py"))
    return found


@pytest.mark.parametrize("engine", list(FOLDERS))
def test_sizes_are_those_of_the_model_classes(engine, subtests):
    given = checkpoints(engine)
    assert len(given) >= 25
    for folder, model, source in given:
        with subtests.test(folder.name):
            config = language_fields(json.loads((folder / "config.json").read_text()))
            ours = (model.E, model.top_k, model.hidden, model.intermediate)
            assert engine_sizes(source, config) == {ours}


# Shared experts: our rule for when the engine fuses them, against sglang's own functions

INT8 = Dtype.INT8_W8A8
PLACES = {  # the module and class whose rule a model's class inherits
    "DeepseekV2ForCausalLM": ("deepseek_v2", "DeepseekV2ForCausalLM"),
    "DeepseekV3ForCausalLM": ("deepseek_v2", "DeepseekV2ForCausalLM"),
    "Glm4MoeForCausalLM": ("glm4_moe", "Glm4MoeForCausalLM"),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite", "Glm4MoeLiteForCausalLM"),
    "MiniMaxM3SparseForConditionalGeneration": ("minimax_m3", "MiniMaxM3SparseForCausalLM"),
}


def engine_fuses(version: str, model: str, target: Target, ep: int) -> int:
    """What the engine's own rule answers; only the machine that it asks about is stood in for."""
    preset = find_preset(model)
    module, class_name = PLACES[preset.architecture]
    file = ENGINES / f"sglang-{version}" / "sglang" / "srt" / "models" / f"{module}.py"
    assert file.exists(), f"`make {ENGINES / f'sglang-{version}'}` unpacks that engine"
    rule = _method(file, class_name)
    config = SimpleNamespace(
        architectures=[preset.architecture],
        n_routed_experts=preset.E,
        n_shared_experts=preset.n_shared_experts,
    )
    scope = _machine(target, ep)
    exec(compile(ast.Module([rule], []), str(file), "exec"), scope)  # noqa: S102
    owner = SimpleNamespace(
        config=config,
        quant_config=SimpleNamespace(get_name=lambda: "fp8"),
        fused_shared_experts_architecture=(
            "Glm4MoeLiteForCausalLM" if module == "glm4_moe_lite" else "DeepseekV3ForCausalLM"
        ),
        num_fused_shared_experts=0,
    )
    if rule.name == "determine_num_fused_shared_experts":
        asked = ("Glm4MoeForCausalLM",) if version == "0.5.2" and module == "glm4_moe" else ()
        scope[rule.name](owner, *asked)
        return int(owner.num_fused_shared_experts)
    against = scope[rule.name](owner, config, owner.quant_config)
    return 0 if against else preset.n_shared_experts


@cache
def _method(file: Path, class_name: str) -> ast.FunctionDef:
    names = ("determine_num_fused_shared_experts", "shared_experts_fusion_disable_reason")
    tree = ast.parse(file.read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name in names:
                    method.decorator_list = []
                    return _WithoutImports().visit(method)
    raise AssertionError(f"{class_name} in {file} has no rule")


class _WithoutImports(ast.NodeTransformer):
    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.Pass:
        return ast.copy_location(ast.Pass(), node)


def _machine(target: Target, ep: int) -> dict[str, Any]:
    def no(*_: object) -> bool:
        return False

    names = ("disable_shared_experts_fusion", "enforce_shared_experts_fusion")
    flags = SimpleNamespace(**dict.fromkeys(names, False))
    cuda, capability = target.platform == CUDA, target.capability
    return {
        "_is_cuda": cuda,
        "_is_hip": not cuda,
        "_is_gfx95_supported": not cuda and capability == (9, 5),
        "_device_sm": target.sm,
        "_is_musa": False,
        "torch": SimpleNamespace(cuda=SimpleNamespace(get_device_capability=lambda _: capability)),
        "global_server_args_dict": {"disable_shared_experts_fusion": False},
        "get_global_server_args": lambda: flags,
        "get_server_args": lambda: flags,
        "get_exec": lambda: SimpleNamespace(moe=flags),
        "get_moe_expert_parallel_world_size": lambda: ep,
        "get_parallel": lambda: SimpleNamespace(moe_ep_size=ep),
        "get_moe_a2a_backend": lambda: SimpleNamespace(is_deepep=no, is_mori=no),
        "get_moe_runner_backend": lambda: SimpleNamespace(is_marlin=no),
        "is_sm90_supported": lambda: target.is_sm(90),
        "is_sbo_enabled": no,
        "is_tbo_enabled": no,
        "is_deepep_class_backend": no,
        "is_wint4afp8_or_wint4a16_config": no,
        "quant_blocks_shared_experts_fusion": no,
        "declare_load_time_override": no,
        "log_info_on_rank0": no,
        "logger": None,
    }


@pytest.mark.parametrize(
    "version", only(["0.5.2", "0.5.23"], ["0.5.2", "0.5.12", "0.5.16", "0.5.23"])
)
def test_the_rule_is_the_engine_s(version, subtests):
    models = ("deepseek-r1", "kimi-k2", "deepseek-v2", "glm-4.5")
    if version == "0.5.23":
        models += ("minimax-m3", "glm-4.7-flash")
    targets = [cuda_target(*divmod(arch, 10)) for arch in (75, 80, 89, 90)]
    targets += [find_device(name).target for name in ("MI210", "MI300X", "MI355X", "R9700")]
    for model, target, ep in product(models, targets, (1, 8)):
        with subtests.test(model=model, target=target.name, ep=ep):
            case = FusionCase(find_preset(model), version, target, tp=8, ep=ep)
            ours = shared_expert_fusion(case)
            assert ours.experts == ours.top_k == engine_fuses(version, model, target, ep)


@pytest.mark.parametrize(
    ("model", "version", "device", "experts"),
    [
        ("deepseek-r1", "0.5.5", "MI300X", 0),
        ("deepseek-r1", "0.5.5.post3", "MI300X", 1),
        ("glm-4.6", "0.5.9", "MI300X", 0),
        ("glm-4.6", "0.5.10", "MI300X", 1),
        ("minimax-m3", "0.5.20", "MI355X", 0),
        ("minimax-m3", "0.5.21", "MI355X", 1),
        ("qwen3-next", "0.5.23", "MI300X", 0),
    ],
)
def test_amd_through_the_releases(model, version, device, experts):
    target = find_device(device).target
    case = FusionCase(find_preset(model), version, target, tp=8)
    assert shared_expert_fusion(case).experts == experts


def test_there_was_no_fusion_in_0_4_4():
    source = ENGINES / "sglang-0.4.4" / "sglang" / "srt" / "models" / "deepseek_v2.py"
    assert "shared_experts_fusion" not in source.read_text()
    case = FusionCase(find_preset("deepseek-r1"), "0.4.4", cuda_target(9, 0))
    assert shared_expert_fusion(case).experts == 0


@pytest.mark.parametrize(
    ("version", "device", "tp", "dtype", "E", "top_k"),
    [
        ("0.4.4", "L40S", 32, INT8, 256, 8),
        ("0.4.6.post5", "L40S", 32, INT8, 256, 8),  # then sm_90 and later alone
        ("0.4.6.post5", "H200", 8, None, 264, 9),  # then one copy for each rank
        ("0.5.2", "L40S", 32, INT8, 257, 9),
        ("0.5.16", "L40S", 32, INT8, 257, 9),
        ("0.5.16", "H200", 8, None, 257, 9),
        (None, "H200", 8, None, 257, 9),
    ],
)
def test_deepseek_r1_through_the_releases(version, device, tp, dtype, E, top_k):
    card = find_device(device)
    found = resolve("deepseek-r1", tp=tp, dtype=dtype, engine_version=version, device=card)
    assert (found.problem.E, found.problem.top_k) == (E, top_k)
    assert f"E=256{f'+{E - 256}' if E > 256 else ''}: sglang" in found.notes[0]


@pytest.mark.parametrize(
    ("model", "version", "experts"),
    [
        ("deepseek-v3.2", "0.5.11", 1),  # loaded under DeepSeek V3's name
        ("deepseek-v3.2", "0.5.12", 0),
        ("glm-4.7", "0.5.4", 1),
        ("glm-4.7", "0.5.4.post1", 0),
        ("glm-4.7-fp8", "0.5.4.post2", 0),
        ("deepseek-r1", "0.5.4.post2", 1),
        ("glm-5.3-flash", "0.5.23", 1),
        ("glm-4.5-air", "0.5.5", 0),
        ("glm-4.5-air", "0.5.6", 1),
        ("glm-4.7-flash", "0.5.8", 1),
        ("glm-5", "0.5.9", 1),
        ("qwen3-next", "0.5.12", 0),
        ("qwen3-next", "0.5.16", 1),
        ("llama-4-scout", "0.5.23", 0),
        ("qwen2-57b-a14b", "0.5.23", 0),
    ],
)
def test_other_families(model, version, experts):
    case = FusionCase(find_preset(model), version, cuda_target(9, 0))
    assert shared_expert_fusion(case).experts == experts


@pytest.mark.parametrize(
    ("version", "ep", "width", "experts"),
    [("0.5.16", 1, 512, 0), ("0.5.23", 1, 512, 1), ("0.5.23", 8, 512, 1), ("0.5.23", 1, 1024, 0)],
)
def test_ling_3(version, ep, width, experts):
    """shared_experts_fusion_disable_reason in srt/models/bailing_moe_v3.py."""
    ling = Model(
        name="ling-3",
        architecture="BailingMoeV3ForCausalLM",
        E=128,
        intermediate=512,
        hidden=1536,
        top_k=8,
        n_shared_experts=1,
        shared_intermediate=width,
    )
    case = FusionCase(ling, version, cuda_target(9, 0), ep=ep)
    assert shared_expert_fusion(case).experts == experts


@pytest.mark.parametrize(
    ("engine", "version", "architecture", "named"),
    [
        ("sglang", "0.5.23", "BailingMoeV3ForCausalLM", True),
        ("sglang", "0.5.16", "BailingMoeV3ForCausalLM", False),
        ("sglang", "0.5.16", "Qwen3_5MoeForCausalLM", False),  # in its code, and no entry of it
        ("sglang", "0.5.23", "Qwen3_5MoeForCausalLM", True),
        ("vllm", "0.10.2", "Dots1ForCausalLM", True),
        ("vllm", "0.33.0", "Dots1ForCausalLM", False),  # among those of earlier releases
        ("vllm", "0.33.0", "FlexOlmoForCausalLM", True),
        ("vllm", "0.9.9", "FlexOlmoForCausalLM", True),  # not on disk
    ],
)
def test_a_class_that_a_release_lacks_is_told(engine, version, architecture, named):
    assert names_model(engine, version, architecture) is named
    serving = Serving(engine=engine, engine_version=version)
    notes = resolve_all(config_json(architectures=[architecture]), serving)[0].notes
    assert any(f"{engine} {version} has no class {architecture}" in one for one in notes) != named


def test_layers_that_an_engine_does_not_tune_need_not_be_known():
    data = config_json(architectures=["AfmoeForCausalLM"], moe_intermediate_size=1024)
    for engine, told in (("sglang", True), ("vllm", False)):
        notes = " ".join(resolve_all(data, Serving(engine=engine))[0].notes)
        assert ("quantised dense GEMMs" in notes) == told


def test_flags_override_the_rule():
    kwargs: dict[str, Any] = {"tp": 8, "engine_version": "0.5.16"}
    apart = resolve("deepseek-r1", fuse_shared=False, **kwargs)
    assert apart.problem.E == 256 and apart.notes == ("E=256 without the shared experts, as asked",)
    fused = resolve("kimi-k2", fuse_shared=True, **kwargs)
    assert (fused.problem.E, fused.problem.top_k) == (385, 9)
    under_ep = resolve("deepseek-r1", ep=8, fuse_shared=True, **kwargs)
    assert under_ep.problem.E == 33


@pytest.mark.parametrize(
    ("model", "words"),
    [("qwen3-30b-a3b", "no shared experts"), ("qwen2-57b-a14b", "20480 wide, not 1 x 2560")],
)
def test_what_cannot_be_fused_is_refused(model, words):
    with pytest.raises(BadProblem, match=words):
        resolve(model, fuse_shared=True)


def test_a_bad_version_is_refused():
    with pytest.raises(BadProblem, match="'newest' is not an engine version"):
        resolve("deepseek-r1", engine_version="newest")
