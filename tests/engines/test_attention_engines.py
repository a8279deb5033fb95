"""What is read from sglang about attention, against the sources of its releases."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from real_sglang import RELEASES, package

from tuner.backends.operands import AttentionOperands, Unsupported
from tuner.bindings.sglang.attention.kv_splits import engine_kv_splits
from tuner.bindings.sglang.attention.serving import SHARES_SINCE
from tuner.devices.target import cuda_target
from tuner.engines.dispatch_table import dispatch_table
from tuner.engines.engine import find_engine, release_of
from tuner.errors import BadProblem
from tuner.families.attention.batch import operands_of
from tuner.families.attention.engine import attention_engine
from tuner.families.attention.inputs import compared, make_inputs, output_of, reference
from tuner.families.attention.kernels import AttentionKernels
from tuner.families.attention.problem import ENGINE_KV_SPLITS, parse_attention
from tuner.families.attention.splits import Lengths
from tuner.measure.timing import Reference
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
    @pytest.mark.parametrize("version", RELEASES)
    @given(st.integers(0, 400))
    def test_latent_attention_has_the_engine_s_splits(self, version, processors):
        cap, usual, long = engine_cap(version), ENGINE_KV_SPLITS, 1 << 22
        ours = engine_kv_splits(latent=True, engine_version=version, sm_count=processors)
        assert ours == (cap(usual, processors, long) if cap else usual)

    @pytest.mark.parametrize("version", RELEASES)
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

    @pytest.mark.parametrize("version", RELEASES)
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
        assert engine_kv_splits(latent=True, engine_version="0.5.16", sm_count=142) == 256
        with pytest.raises(BadProblem, match="not an engine version"):
            engine_kv_splits(latent=True, engine_version="newest", sm_count=132)


MODULES = {
    "Gpt": "gpt_oss",
    "Gemma2": "gemma2",
    "Gemma3": "gemma3_causal",
    "Gemma4": "gemma4_causal",
}


@pytest.mark.parametrize("version", RELEASES)
def test_ranks_of_merged_weights_are_refused_as_the_release_does(version):
    files = (sources(version) / name for name in ("server_args.py", "arg_groups/model_hook.py"))
    text = "".join(file.read_text() for file in files if file.exists())
    shares = "expected_attn_tp_size % effective_attn_tp_size != 0" in text
    each_its_own = "effective_attn_tp_size != expected_attn_tp_size" in text
    assert shares + each_its_own == ("requires effective attention TP" in text)
    if shares or each_its_own:
        assert shares == (release_of(version) >= SHARES_SINCE)


class TestWindows:
    @pytest.mark.parametrize("version", RELEASES)
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


# Libraries read the same batch as Triton's kernels: one cache that holds the new tokens, too

HEADS = "q_heads=4,kv_heads=2,Lq=16,Lv=16,dtype=bfloat16"
LATENT = "q_heads=4,kv_heads=1,Lq=288,Lv=256,dtype=bfloat16"
CASES = {
    "nothing cached": (f"extend_attention:{HEADS}", Lengths((5, 1, 9), (0, 0, 0))),
    "a cached prefix": (f"extend_attention:{HEADS}", Lengths((5, 1, 9), (7, 0, 33))),
    "decode": (f"decode_attention:{HEADS}", Lengths((1, 1, 1), (7, 1, 33))),
}


@pytest.fixture(scope="module")
def kernels() -> AttentionKernels:
    return attention_engine(find_engine("sglang==0.5.16")).lift(cuda_target(9, 0).platform)


def attended(one: AttentionOperands) -> torch.Tensor:
    """Attend row by row in float64, to the operands that libraries get."""
    rows = []
    group = one.q_heads // one.kv_heads
    q_parts, slot_parts = one.q.split(list(one.new)), one.slots.split(list(one.total))
    for q, slots in zip(q_parts, slot_parts, strict=True):
        k = one.k_cache[slots.long()].double().repeat_interleave(group, dim=1)
        v = one.v_cache[slots.long()].double().repeat_interleave(group, dim=1)
        before = len(k) - len(q)
        for at, row in enumerate(q.double()):
            seen = before + at + 1
            logits = torch.einsum("hc,khc->hk", row, k[:seen]) * one.scale
            rows.append(torch.einsum("hk,khc->hc", logits.softmax(1), v[:seen]))
    return torch.stack(rows).to(one.q.dtype)


@pytest.mark.parametrize("name", CASES)
def test_a_library_attends_to_what_the_reference_attends_to(name, kernels):
    text, lengths = CASES[name]
    problem = parse_attention(text)
    inputs = make_inputs(kernels, problem, lengths, device="cpu", seed=3, cores=100)
    found = inputs.with_output(attended(operands_of(inputs)))
    for sequence in compared(inputs):
        expected = Reference(reference(inputs, sequence))
        assert expected.worst_error(output_of(found, sequence)) < 0.03


def test_values_of_latent_attention_are_the_first_columns_of_its_keys(kernels):
    problem = parse_attention(f"extend_attention:{LATENT}")
    lengths = Lengths((5, 2), (7, 0))
    inputs = make_inputs(kernels, problem, lengths, device="cpu", seed=3, cores=100)
    one = operands_of(inputs)
    assert one.latent
    assert one.columns == (288, 256)
    assert one.v_cache.data_ptr() == one.k_cache.data_ptr()
    new = one.slots.split([12, 2])[0][7:].long()  # the first sequence's new tokens
    assert (one.k_cache[new] == inputs.tensors["k_extend"][:5]).all()


def test_an_image_s_tokens_have_no_cache(kernels):
    problem = parse_attention(f"prefill_attention:{HEADS}")
    inputs = make_inputs(kernels, problem, Lengths((5,), (0,)), device="cpu", seed=3, cores=100)
    with pytest.raises(Unsupported, match="with a cache alone"):
        operands_of(inputs)
