"""MiniMax's sparse attention, beyond what test_chunk_scan.py has of any scan."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from interpret_scans import CASES
from interpreter import interpreted
from tiers import only

from tuner.devices.table import find_device
from tuner.engines.dispatch import what_runs
from tuner.engines.engine import find_engine
from tuner.errors import (
    BadProblem,
    IndivisibleShape,
    LacksLayers,
    MalformedCheckpoint,
    UnsupportedFamily,
)
from tuner.families.minimax_sparse import inputs
from tuner.families.minimax_sparse.models import resolve, resolve_config
from tuner.families.minimax_sparse.problem import SparseKernel, parse_minimax_sparse
from tuner.families.minimax_sparse.stages import SCAN
from tuner.families.scans import gpu
from tuner.families.scans.batch import ScanBatches
from tuner.families.scans.engine import scan_engine
from tuner.families.scans.files import ScanEntry, ScanFile
from tuner.families.scans.space import scan_space
from tuner.measure.messages import point_fields
from tuner.models.serving import Serving
from tuner.problems.points import Config, Point
from tuner.problems.results import Status

H100 = find_device("H100")
M3 = parse_minimax_sparse(
    "minimax_sparse:heads=16,kv_heads=1,head_dim=128,index_dim=128,block=128,topk=16"
)
SMALL = parse_minimax_sparse(
    "minimax_sparse:heads=4,kv_heads=2,head_dim=16,index_dim=8,block=16,topk=3"
)
KERNELS = {
    engine: scan_engine(find_engine(engine), "minimax_sparse").lift()
    for engine in ("sglang==0.5.16", "sglang==0.5.23")
}


@pytest.mark.parametrize("engine", only(["sglang==0.5.16"], [*KERNELS]))
def test_the_kernels_attend_as_the_reference_does(engine, tmp_path):
    errors = interpreted("interpret_scans.py", engine, "minimax_sparse", tmp_path)
    assert errors.keys() == CASES["minimax_sparse"].keys()
    for case, found in errors.items():
        assert found.keys() == {*(part.value for part in SparseKernel), "chain"}
        assert max(found.values()) < 1e-3, case  # the rounding of float16
        assert found["minimax_scores"] < 1e-6  # of float32
        assert found["minimax_choice"] == 0.0


@pytest.mark.parametrize(("sequences", "tokens"), [(1, 75), (2, 64)])
def test_the_reference_reads_the_blocks_with_the_highest_scores(sequences, tokens, monkeypatch):
    monkeypatch.setattr(inputs, "_AT_ONCE", 2000)  # some queries at once
    point = Point(sequences, SparseKernel.ATTENTION, tokens)
    prompt = inputs.make_prompt(SMALL, point, device="cpu", seed=3)
    found, about = inputs.reference(SMALL, point, prompt), inputs.layout(SMALL, point, "cpu")
    for row in range(sequences * tokens):
        sequence, at = divmod(row, tokens)
        slots = about["pages"][about["rows"][sequence], : at + 1].long()
        for h in range(2):
            products = prompt.index_k[slots, 0].float() @ prompt.index_q[row, h].float()
            scores = [part.max().item() for part in products.split(16)]
            before = sorted(range(at // 16), key=lambda b: -scores[b])[:2]
            chosen = sorted([*before, at // 16])
            assert [b for b in found["topk"][h, row].tolist() if b >= 0] == chosen
            bits = torch.tensor(scores) / math.log(2) / math.sqrt(8)
            assert torch.allclose(found["score"][h, row, : len(bits)], bits, atol=1e-5)
            assert found["score"][h, row, len(bits) :].isneginf().all()
            read = torch.cat([slots[b * 16 : (b + 1) * 16] for b in chosen])
            q = prompt.q[row, 2 * h : 2 * h + 2].float()
            weights = (q @ prompt.k[read, h].float().T / 4).softmax(1)
            out = weights @ prompt.v[read, h].float()
            assert torch.allclose(found["out"][row, 2 * h : 2 * h + 2], out, atol=1e-5)
    made = inputs.outputs(SMALL, point, "meta")
    assert {name: tensor.shape for name, tensor in found.items()} == {
        name: tensor.shape for name, tensor in made.items()
    }


def test_attention_is_compared_over_the_choice_of_the_kernels_themselves():
    point = Point(1, SparseKernel.ATTENTION, 80)
    prompt = inputs.make_prompt(SMALL, point, device="cpu", seed=3)
    own = torch.arange(80, dtype=torch.int32).div(16, rounding_mode="floor")
    topk = torch.full((2, 80, 3), -1, dtype=torch.int32)
    topk[:, :, 0] = own
    found = inputs.reference(SMALL, point, prompt, topk)["out"]
    first = inputs.layout(SMALL, point, "cpu")["pages"][1, own * 16].long()  # of its block
    assert torch.allclose(found[::16, 0], prompt.v[first[::16], 0].float(), atol=1e-5)
    assert not torch.allclose(found, inputs.reference(SMALL, point, prompt)["out"], atol=1e-2)


def test_a_wrong_block_is_an_error_and_the_order_is_none():
    point = Point(1, SparseKernel.CHOICE, 80)
    batch = ScanBatches(SMALL, KERNELS["sglang==0.5.16"], seed=1, l2_bytes=1, device="cpu").at(
        point
    )
    chosen = batch.copies[0]["topk"]
    chosen.copy_(chosen.flip(2))
    assert batch.error({"topk"}) == 0.0
    chosen[1, 70, 0] = 1 if 1 not in chosen[1, 70] else 0
    assert batch.error({"topk"}) == math.inf
    batch.clear({"score", "topk", "out"})
    assert batch.error({"score"}) > 0.3  # nothing was written
    assert (chosen == -1).all()
    assert batch.error({"out"}) == math.inf
    batch.restore({"score", "topk", "out"})
    assert batch.error({"score", "topk"}) == 0.0


@pytest.mark.parametrize("engine", KERNELS)
def test_what_the_engine_chooses_among_is_read_from_its_source(engine):
    kernels = KERNELS[engine]
    for part, count in zip(SparseKernel, (4, 8, 9), strict=True):
        listed = kernels.listed(M3, part, H100.target)
        assert len(listed) == count  # five of nine tiles are narrower than a block of keys
        assert kernels.constants(M3, part, H100.target) is None
        space = scan_space(M3, part, H100)
        assert all(map(space.legal, listed))
        for config in [*space.configs()][::7]:
            (launch,) = kernels.launches(M3, Point(8, part, 2048), config, H100.target)
            variant = launch.binding.variant()
            assert {**variant.constants, **variant.options}.items() >= config.items()
            assert variant.options.keys() == {"num_warps", "num_stages"}
    assert kernels.first_tokens(M3) == 128
    narrow = replace(M3, block=64)
    assert len(kernels.listed(narrow, SparseKernel.SCORES, H100.target)) == 9
    assert len(kernels.listed(replace(M3, topk=64), SparseKernel.CHOICE, H100.target)) == 7


def test_launches_of_other_layers_are_told_apart():
    def tensor(*shape: int, dtype: str = "bfloat16") -> SimpleNamespace:
        return SimpleNamespace(shape=shape, dtype=f"torch.{dtype}")

    common = {"k_cache_ptr": tensor(9999, 1, 128), "sink_ptr": None, "topk": 16, "block_size": 128}
    common |= {"max_topk": 16, "BLOCK_SIZE_Q": 1, "BLOCK_SIZE_K": 128, "sample_interval": 1}
    common |= {"s_ptr": tensor(1, 8192, 256), "SCORE_TYPE": "max", "DISABLE_INDEX_VALUE": True}
    index = {**common, "q_ptr": tensor(8192, 1, 128)}
    whole = {**common, "q_ptr": tensor(8192, 16, 128), "loc_mapping_ptr": None}
    for part, named, length in (
        (SparseKernel.SCORES, index, 8192),
        (SparseKernel.CHOICE, index, 256),  # blocks, of a prompt that has a prefix
        (SparseKernel.ATTENTION, whole, 8192),
    ):
        assert SCAN.stages[part].seen(named) == (SCAN.stages[part].shows(M3), length), part
    fp8 = {"k_cache_ptr": tensor(9999, 1, 128, dtype="float8_e4m3fn")}
    for part, named in (
        (SparseKernel.SCORES, {**index, "DISABLE_INDEX_VALUE": False}),
        (SparseKernel.SCORES, {**index, "SCORE_TYPE": "lse"}),
        (SparseKernel.SCORES, {**index, **fp8}),
        (SparseKernel.CHOICE, {**index, "sample_interval": 16}),
        (SparseKernel.ATTENTION, {**whole, **fp8}),
        (SparseKernel.ATTENTION, {**whole, "sink_ptr": tensor(16, 128)}),
        (SparseKernel.ATTENTION, {**whole, "loc_mapping_ptr": tensor(9999)}),
        (SparseKernel.ATTENTION, {**whole, "BLOCK_SIZE_Q": 4}),
    ):
        assert SCAN.stages[part].seen(named) is None


def test_the_choice_is_found_by_the_longest_sequence_and_other_kernels_by_all_tokens():
    facts = "NVIDIA_H100_80GB_HBM3", "sglang", "0.5.16", "3.6.0", "kernels"
    entries = tuple(
        ScanEntry(Point(n, part, tokens), Config({"num_warps": 4, "num_stages": 2}), Status.OK)
        for part in SparseKernel
        for n, tokens in ((1, 8192), (8, 2048))
    )
    file = ScanFile(M3, *facts, entries)
    assert file.title == "sparse attention, 16/1 heads of 128, 16x128 keys"
    for part, size in ((SparseKernel.CHOICE, (1, 8192)), (SparseKernel.ATTENTION, (8, 2048))):
        entry = file.pick(part, 14000)
        assert entry
        assert (entry.point.batch_size, entry.point.new_tokens) == size


@pytest.mark.parametrize("engine", KERNELS)
def test_the_plugin_answers_the_engines_autotuners(engine, tmp_path):
    tiles = {"BLOCK_SIZE_Q": 32, "BLOCK_SIZE_K": 16}, {"BLOCK_SIZE_K": 64}, {}
    launch = {"num_warps": 2, "num_stages": 1}
    entries = tuple(
        ScanEntry(Point(2, part, 32), Config({**tile, **launch}), Status.OK)
        for part, tile in zip(SparseKernel, tiles, strict=True)
    )
    facts = "NVIDIA_H200", "sglang", "0.5.16", version("triton"), "kernels"
    file = ScanFile(SMALL, *facts, entries)
    path = file.path_under(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(file.text())
    found = find_engine(engine)
    environ = {**os.environ, "TUNER_SCAN_CONFIG_DIR": str(tmp_path)}
    environ |= {"TUNER_ENGINE_PATH": str(found.root.parents[1])}
    environ |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    program = Path(__file__).with_name("serve_sparse.py")
    done = subprocess.run(
        [sys.executable, str(program), found.version, SMALL.spec()],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
    )
    assert done.returncode == 0, done.stderr
    launched = json.loads(done.stdout)
    for (part, stage), tile in zip(SCAN.stages.items(), tiles, strict=True):
        own = launched[stage.calls[0].kernel]
        assert own.items() >= {**tile, **launch}.items(), part
    grids = [launched[stage.calls[0].kernel]["grid"] for stage in SCAN.stages.values()]
    assert grids == [[1, 4], [32, 2, 2], [32, 2, 2]]


def test_a_models_config_gives_the_heads_of_a_rank():
    found = resolve("minimax-m3", Serving(tp=4))
    assert found.problems == (M3,)
    assert found.notes == ("57 layers of sparse attention",)
    (shared,) = resolve("minimax-m3", Serving(tp=8)).problems
    assert (shared.heads, shared.kv_heads) == (8, 1)
    (apart,) = resolve("minimax-m3", Serving(tp=8, options={"dp": 8})).problems
    assert (apart.heads, apart.kv_heads) == (64, 4)
    flags = [0] * 3 + [1] * 57
    sparse = {
        **{"sparse_num_index_heads": 4, "sparse_index_dim": 128, "sparse_block_size": 128},
        **{"sparse_topk_blocks": 16, "sparse_init_block": 0, "sparse_local_block": 1},
        **{"sparse_attention_freq": flags, "sparse_disable_index_value": flags},
    }
    text = {"num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128}
    text |= {"hidden_size": 6144, "num_hidden_layers": 60, "sparse_attention_config": sparse}
    config = {"architectures": ["MiniMaxM3SparseForConditionalGeneration"], "text_config": text}
    assert resolve_config(json.dumps(config).encode(), "mine", Serving(tp=4)) == found
    with pytest.raises(IndivisibleShape, match="nearest that works is tp=2"):
        resolve("minimax-m3", Serving(tp=3))
    with pytest.raises(LacksLayers, match="no sparse attention is known of minimax-m2"):
        resolve("minimax-m2", Serving())
    with pytest.raises(UnsupportedFamily, match="minimax_sparse is not tuned for vllm"):
        resolve("minimax-m3", Serving(engine="vllm"))
    for change, message in (
        ({"sparse_score_type": "lse"}, "with sparse_score_type=max, not 'lse'"),
        ({"sparse_num_index_heads": 8}, "with sparse_num_index_heads=4, not 8"),
        ({"sparse_disable_index_value": None}, "all layers of its index have values"),
        ({"sparse_topk_blocks": None}, "lacks sparse_topk_blocks"),
    ):
        text["sparse_attention_config"] = {**sparse, **change}
        with pytest.raises(MalformedCheckpoint, match=message):
            resolve_config(json.dumps(config).encode(), "mine", Serving())
    del text["sparse_attention_config"]
    with pytest.raises(MalformedCheckpoint, match="no sparse attention is known of mine: name"):
        resolve_config(json.dumps(config).encode(), "mine", Serving())
    for change in ({"block": 96}, {"heads": 3, "kv_heads": 2}, {"topk": 512}):
        with pytest.raises(BadProblem):
            replace(M3, **change)


def test_what_runs_beside_triton_is_told():
    blackwell = find_device("B200")
    for device, flags, kernels, words in (
        (H100, {}, ["Triton"], "it reads tuned files"),
        (H100, {"--kv-cache-dtype": "fp8_e4m3"}, ["Triton"], "at most for its index"),
        (blackwell, {}, ["fmha_sm100", "Triton"], "count for the index, and for all with SGLANG"),
        (blackwell, {"SGLANG_DISABLE_MSA": "1"}, ["Triton"], "it reads tuned files"),
    ):
        found = what_runs("sglang", "0.5.23", M3, device, flags)
        assert found
        assert [one.name for one in found.kernels] == kernels
        assert words in found.line()


def test_a_small_part_of_a_chain_is_raced_alone(monkeypatch):
    """Measured on an H100, the choice at 1x8192 was 3 us of 1,530 us, and a race told 0.01 us."""
    takes = {SparseKernel.SCORES: 115.0, SparseKernel.ATTENTION: 1400.0}
    batch = SimpleNamespace(copies=[{}], expected={}, restore=lambda names: None)
    session = SimpleNamespace(
        _problem=M3,
        _batches=SimpleNamespace(at=lambda point: batch),
        _beside=lambda point: [takes.get(point.part, 0.0)],
        _load=lambda point, config: [config["us"]],
    )
    monkeypatch.setattr(gpu, "_chain", lambda loaded, tensors: loaded)
    monkeypatch.setattr(gpu, "capture_chains", lambda chains: sum(chains[0]))
    # The rest alone happens to take 0.5 % more than in chains.
    noisy = {sum(takes.values()): 1.005}
    monkeypatch.setattr(
        gpu, "race", lambda graphs, rounds: [[us * noisy.get(us, 1.0)] * rounds for us in graphs]
    )
    request = {**point_fields(Point(1, SparseKernel.CHOICE, 8192)), "rounds": 3}
    raced = gpu.ScanOnGpu.race(session, {**request, "configs": [{"us": 3.0}, {"us": 4.0}]})
    assert [one["median_us"] for one in raced["measurements"]] == [3.0, 4.0]
