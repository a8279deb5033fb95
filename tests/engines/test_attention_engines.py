"""What is read from sglang about attention, against the sources of its releases."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_sglang import VERSIONS, package

from tuner.engines.dispatch_table import dispatch_table
from tuner.engines.sglang.attention.kv_splits import engine_kv_splits
from tuner.errors import BadProblem
from tuner.families.attention.problem import ENGINE_KV_SPLITS
from tuner.models.attention_json import WINDOWED
from tuner.problems.registry import parse_problem

CAP = "_mla_decode_kv_splits_cap"


def sources(version: str) -> Path:
    return package(version) / "srt"


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def function(file: Path, name: str, scope: dict[str, Any]) -> Any:
    """A function of the engine, with the module's plain constants; None if it has none such."""
    body = parsed(file).body
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not found:
        return None
    plain = [
        node
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    ]
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, *plain, *found], []), str(file), "exec"), scope)  # noqa: S102
    return scope[name]


def engine_cap(version: str) -> Any:
    """The engine's own rule for latent attention's splits, or None."""
    backend = sources(version) / "layers" / "attention" / "triton_backend.py"
    utils = sources(version) / "utils"
    file = utils / "common.py" if utils.is_dir() else sources(version) / "utils.py"
    power = function(file, "next_power_of_2", {})
    triton = SimpleNamespace(cdiv=lambda a, b: -(-a // b))
    return function(backend, CAP, {"next_power_of_2": power, "triton": triton})


class TestSplits:
    @pytest.mark.parametrize("version", VERSIONS)
    @given(st.integers(0, 400), st.integers(1, 1 << 22), st.integers(1, 1024))
    def test_latent_attention_has_the_engine_s_splits(self, version, processors, context, asked):
        cap = engine_cap(version)
        ours = engine_kv_splits(
            latent=True,
            engine_version=version,
            sm_count=processors,
            context_length=context,
            asked=asked,
        )
        assert ours == (cap(asked, processors, context) if cap else asked)

    @pytest.mark.parametrize("version", VERSIONS)
    def test_the_engine_raises_them_for_latent_attention_alone(self, version):
        backend = sources(version) / "layers" / "attention" / "triton_backend.py"
        guards = [
            ast.unparse(node.test)
            for node in ast.walk(parsed(backend))
            if isinstance(node, ast.If)
            and any(CAP in ast.unparse(inner) for inner in node.body)
            and "self" in ast.unparse(node)
        ]
        assert all(guard.startswith("self.use_mla") for guard in guards)
        assert bool(guards) == (version in ("0.5.12", "0.5.16", "0.5.23"))
        assert engine_kv_splits(latent=False, engine_version=version, sm_count=132) == 8

    @pytest.mark.parametrize("version", VERSIONS)
    def test_the_command_line_s_default(self, version):
        files = [sources(version) / "server_args.py"]
        files += (sources(version) / "arg_groups").glob("fields/*.py")
        fields = [
            node
            for file in files
            for node in ast.walk(parsed(file))
            if isinstance(node, ast.AnnAssign)
            and getattr(node.target, "id", "") == "triton_attention_num_kv_splits"
        ]
        assert [ast.literal_eval(node.value) for node in fields if node.value] == [ENGINE_KV_SPLITS]

    def test_what_is_not_known_leaves_the_command_line_s(self):
        assert engine_kv_splits(latent=True, engine_version=None, sm_count=132) == 8
        assert engine_kv_splits(latent=True, engine_version="0.5.16", sm_count=None) == 8
        # A context that is not known is long.
        assert engine_kv_splits(latent=True, engine_version="0.5.16", sm_count=142) == 256
        with pytest.raises(BadProblem, match="not an engine version"):
            engine_kv_splits(latent=True, engine_version="newest", sm_count=132)


MODULES = {
    "Gpt": "gpt_oss",
    "Gemma2": "gemma2",
    "Gemma3": "gemma3_causal",
    "Gemma4": "gemma4_causal",
}


class TestWindows:
    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("architecture", sorted(WINDOWED))
    def test_a_class_takes_off_the_window_what_we_do(self, version, architecture):
        field, less = WINDOWED[architecture]
        models = sources(version) / "models"
        if architecture.startswith("MiMo"):
            file = models / "mimo_v2.py"
            assert not file.exists() or f"sliding_window_size=config.{field}" in file.read_text()
            assert not less
            return
        module = next(m for start, m in MODULES.items() if architecture.startswith(start))
        file = models / f"{module}.py"
        if file.exists():
            window = function(file, "get_attention_sliding_window_size", {})
            assert window(SimpleNamespace(**{field: 4096})) == 4096 - less

    def test_newest_release_has_every_class(self):
        text = "".join(file.read_text() for file in (sources("0.5.23") / "models").glob("*.py"))
        for architecture in WINDOWED:
            assert f"class {architecture}(" in text


@pytest.mark.parametrize("version", ("0.5.2", "0.5.12", "0.5.16", "0.5.23"))
def test_the_classes_that_a_release_refuses_to_run_with_triton(version):
    """Each refusal is an assertion in a branch that names its classes."""
    table = dispatch_table("sglang")
    problem = parse_problem("decode_attention:q_heads=8,kv_heads=8,Lq=128,Lv=128,dtype=bfloat16")
    known = {name for one in table.refusals for name in one.classes}
    refused = set()
    for file in [sources(version) / "server_args.py", *sources(version).glob("arg_groups/*.py")]:
        for node in ast.walk(parsed(file)):
            body = node.body if isinstance(node, ast.If | ast.FunctionDef) else []
            for inner in body:
                text = ast.unparse(inner)
                if isinstance(inner, ast.Assert) and "support triton attention backend" in text:
                    named = ast.unparse(node.test) if isinstance(node, ast.If) else text
                    refused |= {name for name in known if f"'{name}'" in named or name in text}
    assert refused == {
        name for name in known if any(one.holds(version, problem, name) for one in table.refusals)
    }
