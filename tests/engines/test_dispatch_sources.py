"""The rules of dispatch.toml against the source of each release: quotes, and what it does."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import lru_cache, partial
from itertools import product
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
from real_sglang import package

from tuner.devices.table import Device, find_device
from tuner.engines.dispatch import what_runs
from tuner.engines.dispatch_table import dispatch_table
from tuner.engines.engine import find_engine
from tuner.families.dense_gemm.problem import parse_dense_gemm
from tuner.problems.registry import parse_problem

CARDS = ("A100", "L40S", "H100", "B200", "B300", "RTX 5090", "GB10")
TABLE = dispatch_table("sglang")
assert TABLE
RELEASES = TABLE.releases
FP8 = parse_dense_gemm("block_gemm:N=7168,K=2048,dtype=fp8_w8a8,block=128x128")


@lru_cache
def text(version: str, path: str) -> str:
    return (package(version) / path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("engine", "release"),
    [(engine, one) for engine in ("sglang", "vllm") for one in dispatch_table(engine).releases],
)
def test_files_hold_what_rows_quote(engine, release):
    rules, root = dispatch_table(engine).rules, find_engine(f"{engine}=={release}").root
    cited = [(rule, rule.sources[release]) for rule in rules if release in rule.sources]
    assert len(cited) > 20
    for rule, source in cited:
        assert len(source.text) > 8, rule
        found = (root / source.file).read_text(encoding="utf-8")
        assert source.text in found, f"{source} for {rule.backend}"


def test_files_hold_what_refusals_quote():
    assert TABLE.refusals
    for one in TABLE.refusals:
        assert one.sources.keys() == one.classes.keys() <= set(RELEASES)
        for version, source in one.sources.items():
            assert source.text in text(version, source.file), source
            for name in one.classes[version]:
                assert f'"{name}"' in text(version, source.file), name


# Functions of the engine, run with stand-ins that say which card and packages there are.


class Card:
    """A server's machine as the engine's functions ask for it."""

    def __init__(self, device: Device, packages: frozenset[str]) -> None:
        self.packages = packages
        assert isinstance(device.target.arch, int)
        self.sm = device.target.arch

    def is_major(self, *majors: int) -> bool:
        return self.sm // 10 in majors

    def names(self) -> dict[str, Any]:
        """The engine's probes; both the older functions and the newer platform object."""
        has_flashinfer = "flashinfer" in self.packages
        probes = {
            "is_sm90": self.is_major(9),
            "is_sm100": self.is_major(10),
            "is_sm110": self.is_major(11),
            "is_sm120": self.is_major(12),
            "is_blackwell": self.is_major(10, 11, 12),
        }
        functions = {f"{name}_supported": (lambda v=value: v) for name, value in probes.items()}
        platform = SimpleNamespace(
            **probes,
            is_hip=False,
            has_flashinfer=has_flashinfer,
            is_hopper_with_cuda_12_3=self.is_major(9),
        )
        return {
            **functions,
            "get_platform": lambda: platform,
            "is_flashinfer_available": lambda: has_flashinfer,
            "is_hopper_with_cuda_12_3": lambda: self.is_major(9),
            "get_device_sm": lambda: self.sm,
            "get_device_capability": lambda: divmod(self.sm, 10),
            "is_hip": lambda: False,
            "is_mps": lambda: False,
            "_is_cuda": True,
            "_is_musa": False,
            "_is_xpu": False,
            "_is_sm100_supported": self.is_major(10),
            "_use_aiter": False,
            "is_npu_arch35": lambda: False,
            "get_bool_env_var": lambda name, default="false": default == "true",
            "envs": SimpleNamespace(SGLANG_ENABLE_JIT_DEEPGEMM=SimpleNamespace(get=lambda: True)),
            "logger": MagicMock(),
        }


LINEARS = {
    "deepgemm_w8a8_block_fp8_linear_with_fallback": "DeepGEMM",
    "flashinfer_gemm_w8a8_block_fp8_linear_with_fallback": "FlashInfer",
    "flashinfer_gemm_w8a8_block_fp8_linear": "FlashInfer",
    "flashinfer_deepgemm_w8a8_block_fp8_linear_with_fallback": "FlashInfer",
    "cutlass_w8a8_block_fp8_linear_with_fallback": "CUTLASS",
    "aiter_w8a8_block_fp8_linear": "AITER",
    "triton_w8a8_block_fp8_linear": "Triton",
    "torch_w8a8_block_fp8_linear": "torch",
}


def functions(version: str, path: str, wanted: set[str], names: dict[str, Any]) -> dict[str, Any]:
    """The named functions and classes of a file, at any depth, with `names` for what they use."""
    space = {"Enum": Enum, "partial": partial, **names}
    exec(_compiled(version, path, frozenset(wanted)), space)  # noqa: S102 - the engine's own
    return space


class NoImports(ast.NodeTransformer):
    """Leaves out what functions import of the engine."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        return ast.copy_location(ast.Pass(), node) if node.module.startswith("sglang") else node


@lru_cache
def _compiled(version: str, path: str, wanted: frozenset[str]) -> CodeType:
    tree = ast.parse(text(version, path))
    found = [node for node in ast.walk(tree) if getattr(node, "name", None) in wanted]
    assert sorted(node.name for node in found) == sorted(wanted), f"{version} {path}"
    for node in found:
        node.decorator_list = []
    body = [*ast.parse("from __future__ import annotations").body, *map(NoImports().visit, found)]
    return compile(ast.fix_missing_locations(ast.Module(body, type_ignores=[])), path, "exec")


@contextmanager
def importable(modules: Mapping[str, object]) -> Iterator[None]:
    """Modules as `import` finds them; None: not installed."""
    with patch.dict(sys.modules, modules):
        yield


def deep_gemm(packages: frozenset[str]) -> dict[str, object]:
    if "deep_gemm" not in packages:
        return {"deep_gemm": None}
    return {"deep_gemm": ModuleType("deep_gemm")}  # without the entry points for sm_120


def engine_block_fp8(version: str, card: Card, backend: str) -> str:
    """What the release's own dispatch gives a linear layer of fp8 blocks."""
    names = card.names()
    helper = {"_sm120_deep_gemm_apis_available"} if version == "0.5.23" else set()
    configurer = "srt/layers/deep_gemm_wrapper/configurer.py"
    compute = "_compute_enable_deep_gemm"
    with importable(deep_gemm(card.packages)):
        enabled = functions(version, configurer, {compute, *helper}, names)[compute]()
    names["deep_gemm_wrapper"] = SimpleNamespace(ENABLE_JIT_DEEPGEMM=enabled)
    names |= {name: lambda kernel=kernel: kernel for name, kernel in LINEARS.items()}
    names |= {"ENABLE_FLASHINFER_GEMM": False, "CUTLASS_BLOCK_FP8_SUPPORTED": False}
    wanted = {"dispatch_w8a8_block_fp8_linear", "Fp8GemmRunnerBackend"}
    wanted |= {"_dispatch_auto_backend", "_dispatch_explicit_backend"}
    wanted |= {"initialize_fp8_gemm_config", "get_fp8_gemm_runner_backend"}
    settings = SimpleNamespace(fp8_gemm_runner_backend=backend, quantization="fp8")
    names["get_exec"] = lambda: SimpleNamespace(kernel=settings)
    space = functions(version, "srt/layers/quantization/fp8_utils.py", wanted, names)
    space["initialize_fp8_gemm_config"](*([settings] if version != "0.5.23" else []))
    try:
        return space["dispatch_w8a8_block_fp8_linear"]()()
    except (RuntimeError, ValueError):
        return "no kernel"


def table_says(
    version: str, device: Device, problem: Any, flags: dict[str, str], true: set[str]
) -> str:
    """The first kernel of the table whose condition is true. `true`: names of [unknown]."""
    runs = what_runs("sglang", version, problem, device, flags)
    assert runs
    words = {TABLE.unknown[name].words for name in true}
    first = next(k for k in runs.kernels if not k.condition or k.condition in words)
    return first.name.partition(" (")[0]


PACKAGES = [
    frozenset(),
    frozenset({"deep_gemm"}),
    frozenset({"flashinfer"}),
    frozenset({"deep_gemm", "flashinfer"}),
]
BACKENDS = (
    *("auto", "triton", "deep_gemm", "cutlass", "aiter"),
    *("flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_deepgemm"),
)


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("card", CARDS[1:])  # Marlin takes an A100's layers before the dispatch
def test_blocks_of_fp8_go_where_the_engine_sends_them(version, card):
    device = find_device(card)
    for packages, backend in product(PACKAGES, BACKENDS):
        engine = engine_block_fp8(version, Card(device, packages), backend)
        if backend != "auto" and engine == "no kernel" and packages != PACKAGES[-1]:
            continue  # the server stops for want of a package, which the table takes as there
        said = table_says(version, device, FP8, {"--fp8-gemm-backend": backend}, set(packages))
        assert said == engine, (packages, backend)


ATTENTION = {
    "fa3": "FlashAttention 3",
    "triton": "Triton",
    "flashinfer": "FlashInfer",
    "trtllm_mha": "FlashInfer",
}


def engine_attention(version: str, card: Card, *, latent: bool, sinks: bool) -> str:
    path, name = {
        "0.5.16": ("srt/server_args.py", "_get_default_attn_backend"),
        "0.5.23": ("srt/arg_groups/model_override_base.py", "get_default_attn_backend"),
    }[version]
    server = SimpleNamespace(speculative_algorithm=None, speculative_eagle_topk=None, tp_size=8)
    names = {
        **card.names(),
        "current_platform": SimpleNamespace(is_out_of_tree=lambda: False),
        "resolving_view": lambda args: args,
        "resolved_view": lambda args: args,
        "is_no_spec_infer_or_topk_one": lambda args: True,
        "_forces_eagle_topk_one": lambda algorithm: False,
    }
    model = SimpleNamespace(
        hf_config=SimpleNamespace(architectures=["AnyForCausalLM"]),
        has_attention_sinks=sinks,
        has_asymmetric_kv=False,
    )
    return ATTENTION[functions(version, path, {name}, names)[name](server, latent, model)]


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("card", CARDS)
def test_attention_is_what_the_engine_chooses_by_itself(version, card):
    device, heads = find_device(card), "dtype=bfloat16"
    cases = (
        (f"decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,{heads}", True, False),
        (f"extend_attention:q_heads=16,kv_heads=16,Lq=192,Lv=128,{heads}", True, False),
        (f"extend_attention:q_heads=8,kv_heads=2,Lq=128,Lv=128,{heads}", False, False),
        (f"decode_attention:q_heads=8,kv_heads=2,Lq=128,Lv=128,{heads},sinks", False, True),
    )
    for packages, (text, latent, sinks) in product(PACKAGES[::2], cases):
        server = Card(device, packages)
        engine = engine_attention(version, server, latent=latent, sinks=sinks)
        said = table_says(version, device, parse_problem(text), {}, set(packages))
        assert said == engine, (packages, text)


def engine_vision(version: str, card: Card) -> str:
    """What a layer of an image encoder runs where neither the server nor its model says."""
    settings = SimpleNamespace(mm_attention_backend=None)
    names = {
        **card.names(),
        "global_server_args_dict": {"mm_attention_backend": None},
        "get_global_server_args": lambda: settings,
        "get_server_args": lambda: settings,
        "get_mm": lambda: settings,
        "is_cuda": lambda: True,
        "is_blackwell": lambda: card.is_major(10),
    }
    name = "_determine_attention_backend"
    chosen = functions(version, "srt/layers/attention/vision.py", {name}, names)[name](None, None)
    known = {"fa3": "FlashAttention 3", "fa4": "FlashAttention 4", "triton_attn": "Triton"}
    return known[chosen]


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("card", CARDS)
def test_image_encoders_run_what_the_engine_determines(version, card):
    device = find_device(card)
    image = parse_problem("prefill_attention:q_heads=8,kv_heads=8,Lq=64,Lv=64,dtype=bfloat16")
    engine = engine_vision(version, Card(device, frozenset()))
    assert table_says(version, device, image, {}, set()) == engine


def engine_moe(version: str, card: Card, backend: str, dispatcher: str) -> str:
    """The runner that the release's own method for fp8 experts makes."""
    utils = "srt/layers/moe/utils.py"
    helper = {"_MoeRunnerBackendPredicates"} if version == "0.5.23" else set()
    enums = functions(version, utils, {"MoeRunnerBackend", "MoeA2ABackend", *helper}, {})
    made: list[Any] = []
    runner, spread = enums["MoeRunnerBackend"](backend), enums["MoeA2ABackend"](dispatcher)
    names = card.names() | {
        "MoeRunnerBackend": enums["MoeRunnerBackend"],
        "MoeRunner": lambda chosen, config: made.append(chosen),
        "get_moe_runner_backend": lambda: runner,
        "get_moe_a2a_backend": lambda: spread,
        "deep_gemm_wrapper": SimpleNamespace(ENABLE_JIT_DEEPGEMM="deep_gemm" in card.packages),
        "_is_hip": False,
        "_is_npu": False,
        "_use_hip_int4": False,
    }
    wanted = {"create_moe_runner", "is_deepgemm_moe_runner_backend_enabled"}
    space = functions(version, "srt/layers/quantization/fp8.py", wanted, names)
    method = SimpleNamespace(
        is_deepgemm_moe_runner_backend_enabled=space["is_deepgemm_moe_runner_backend_enabled"],
        is_fp4_expert=False,
    )
    space["create_moe_runner"](method, None, None)
    known = {"triton": "Triton", "deep_gemm": "DeepGEMM", "flashinfer_trtllm": "FlashInfer"}
    return known[made[0].value]


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(
    ("backend", "dispatcher"),
    [("auto", "none"), ("auto", "deepep"), ("triton", "none"), ("deep_gemm", "none")],
)
def test_fp8_experts_go_where_the_engine_sends_them(version, backend, dispatcher):
    moe = parse_problem("fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128")
    h100 = find_device("H100")
    server = Card(h100, frozenset({"deep_gemm"}))
    flags = {"--moe-runner-backend": backend, "--moe-a2a-backend": dispatcher}
    said = table_says(version, h100, moe, flags, {"deep_gemm"})
    assert said == engine_moe(version, server, backend, dispatcher)
