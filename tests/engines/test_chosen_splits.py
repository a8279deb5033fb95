"""What the plugin writes and launches for one backend, beside a stand-in for the backend."""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from interpreter import run_interpreted
from tiers import only

from tuner.bindings.sglang.plugin import launches, splits_kernel
from tuner.bindings.sglang.plugin.chosen_splits import ChosenSplits, choose_splits
from tuner.bindings.sglang.plugin.files import AttentionFile
from tuner.bindings.sglang.plugin.splits import SplitsRow, SplitsTable
from tuner.families.attention.problem import parse_attention

HEADS, COLUMNS, ENGINES = 4, 32, 8
PROBLEM = parse_attention("decode_attention:q_heads=4,kv_heads=2,Lq=32,Lv=32,dtype=float16")
TABLE = SplitsTable(
    (
        SplitsRow(1, 64, ((1024, 8), (32768, 64))),
        SplitsRow(8, 16, ((1024, 2), (32768, 16))),
        SplitsRow(32, 0, ()),
        SplitsRow(128, 4, ((1024, 1), (32768, 4))),
    )
)


class Backend:
    """Has the engine's methods, which note what they are given."""

    max_kv_splits = ENGINES
    enable_deterministic = skip_prefill = static_kv_splits = use_mla = False
    sliding_window_size = split_tile_size = None
    device_core_count, dcp_size, page_size = 132, 1, 1
    num_head, num_kv_head, v_head_dim, device = HEADS, 2, COLUMNS, "cpu"

    def __init__(self, **changes):
        vars(self).update(changes)
        self.launched = []
        self.decode_attention_fwd = self._decode

    def get_num_kv_splits(self, num_kv_splits, seq_lens, uneven_batch=None):
        num_kv_splits.fill_(ENGINES)
        if uneven_batch is not None:
            uneven_batch.fill_(1)

    def _decode(
        self, q, k_buffer, v_buffer, o, kv_indptr, kv_indices, attn_logits, attn_lse,
        num_kv_splits, max_kv_splits, sm_scale, logit_cap=0.0, sinks=None, has_mla=False,
    ):  # fmt: skip
        assert max_kv_splits == attn_logits.shape[2] == attn_lse.shape[2]
        self.launched.append((attn_logits, attn_lse, max_kv_splits, launches._room.splits))


def layer(heads=HEADS, key_heads=2, Lq=COLUMNS, Lv=COLUMNS, cap=0.0, window=-1):
    """One of sglang's RadixAttention."""
    return SimpleNamespace(
        tp_q_head_num=heads, tp_k_head_num=key_heads, qk_head_dim=Lq, v_head_dim=Lv, logit_cap=cap,
        sliding_window_size=window,
    )  # fmt: skip


def runner(*layers, sinks=False, **changes):
    model = SimpleNamespace(
        modules=lambda: [SimpleNamespace(qk_head_dim=192), *layers],  # DeepSeek's own have one
        named_parameters=lambda: [("layers.0.attn.sinks" if sinks else "layers.0.qkv", None)],
    )
    usual = {"dtype": "torch.float16", "kv_cache_dtype": "torch.float16", "is_draft_worker": False}
    return SimpleNamespace(model=model, **{**usual, **changes})


RUNNER = runner(layer(), layer())


class PlainKernel:
    """Writes what the kernel does, without Triton, which decides on import whether to interpret."""

    def __getitem__(self, grid):
        return self.launch

    def launch(
        self, splits, seq_lens, rows, lengths, numbers, sequences, most, ROWS, LENGTHS, BLOCK
    ):
        assert numbers.shape == (ROWS + 1, LENGTHS + 1) and sequences <= BLOCK
        for place, held in enumerate(seq_lens.tolist()):
            row = bisect_right(rows.tolist(), seq_lens.sum().item() / held)
            column = bisect_right(lengths.tolist(), held)
            splits[place] = min(numbers[row][column].item(), most)


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    if not INTERPRETED:
        monkeypatch.setattr(splits_kernel, "write_splits", PlainKernel())


@pytest.mark.skipif(INTERPRETED, reason="this runs it")
@pytest.mark.slow
@pytest.mark.parametrize("tests", ["not slow", "slow"])
def test_the_kernel_itself_passes_all_these_tests(tests):
    words = ["-q", "-n0", "-p", "no:cacheprovider", "-m", tests, __file__]
    done = run_interpreted(Path(pytest.__file__).with_name("__main__.py"), *words)
    assert done.returncode == 0, done.stdout


def install(table=TABLE, most=1024, **changes):
    backend = Backend(**changes)
    ChosenSplits(backend, PROBLEM, table, most).install()
    return backend


def written(backend, lengths, *, rows=None):
    numbers = torch.full((rows or len(lengths),), -1, dtype=torch.int32)
    backend.get_num_kv_splits(numbers, torch.tensor(lengths))
    return numbers.tolist()


def launch(backend, sequences, buffered=None, **more):
    buffered = buffered or sequences
    logits = torch.zeros(buffered, HEADS, ENGINES, COLUMNS)
    lse = torch.zeros(buffered, HEADS, ENGINES)
    q, indptr = torch.zeros(sequences, HEADS, COLUMNS), torch.zeros(sequences + 1)
    numbers = torch.zeros(sequences, dtype=torch.int32)
    keys = torch.zeros(9, 2, COLUMNS)
    given = {"has_mla": False, **more}
    backend.decode_attention_fwd(
        q, keys, keys, None, indptr, None, logits, lse, numbers, ENGINES, 1.0, **given
    )
    return logits, lse, *backend.launched[-1]


@pytest.mark.parametrize(
    ("lengths", "numbers"),
    [
        ([500], [8]),
        ([40_000], [64]),
        ([900] * 8, [2] * 8),
        ([20_000] * 8, [16] * 8),
        # The long one makes up most of the batch: as many as alone, but as a launch has room for.
        ([20_000, *[100] * 7], [16, *[1] * 7]),
        ([900] * 30, [8] * 30),  # the engine's own rule
        ([900] * 100, [1] * 100),
        ([1] * 30, [8] * 30),
    ],
)
def test_each_sequence_gets_its_number(lengths, numbers):
    assert written(install(), lengths) == numbers


@pytest.mark.parametrize("step", only([13], [13, 1]))
def test_no_number_exceeds_the_room_of_a_launch_of_as_many_sequences(step):
    backend = install()
    for sequences in range(1, 200, step):
        lengths = torch.randint(1, 60_000, (sequences,)).tolist()
        *_, room, _ = launch(backend, sequences)
        numbers = written(backend, lengths)
        assert 1 <= min(numbers) <= max(numbers) <= room


def test_drafts_of_several_tokens_have_the_engines_numbers_within_the_room():
    assert written(install(), [900, 900], rows=8) == [8] * 8
    small = SplitsTable((SplitsRow(8, 4, ((1024, 4),)),))
    assert written(install(small), [900, 900], rows=8) == [4] * 8


def test_numbers_of_sequences_that_no_row_is_near_have_the_engines_rule():
    backend = install()
    assert written(backend, [900] * 3) == [ENGINES] * 3
    assert written(backend, [900] * 300) == [ENGINES] * 300
    assert [launch(backend, n)[-2] for n in (2, 3, 4, 17, 300)] == [64, 8, 16, 8, 8]


@pytest.mark.parametrize(("hip", "flag"), [("6.4", 1), (None, 0)])
def test_amds_flag_of_uneven_lengths_is_written_too(hip, flag, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", hip)
    backend = install()
    numbers, uneven = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    backend.get_num_kv_splits(numbers, torch.tensor([40_000]), uneven)
    assert (numbers.tolist(), uneven.tolist()) == ([64], [flag])


@pytest.mark.parametrize("more", [{"logit_cap": 30.0}, {"sinks": torch.zeros(HEADS)}])
def test_a_launch_of_another_shape_ends_the_tables_use_and_has_room_for_what_was_written(
    more, caplog
):
    backend = install()
    assert written(backend, [40_000]) == [64]
    *_, room, told = launch(backend, 1, **more)
    assert (room, told) == (64, 0)  # no constants of a table
    assert written(backend, [40_000]) == [ENGINES]
    *_, room, told = launch(backend, 8, **more)
    assert (room, told) == (ENGINES, 0)
    assert caplog.text.count("a layer is of another shape") == 1


@pytest.mark.parametrize(
    ("problem", "layers", "sinks", "used"),
    [
        ("", [layer()], False, True),
        # What a model has besides: latent attention with all heads, at prefill alone.
        ("", [layer(), layer(heads=8, key_heads=8, Lq=48)], False, True),
        ("", [layer(Lq=48)], False, False),
        ("", [layer(cap=30.0)], False, False),
        ("", [layer(window=127)], False, False),
        ("", [layer(), layer(cap=30.0)], False, False),
        ("", [layer()], True, False),
        ("", [], False, False),  # nothing is known of the model
        (",logit_cap=30", [layer(cap=30.0)], False, True),
        (",logit_cap=30", [layer()], False, False),
        (",sinks", [layer()], True, True),
        (",sinks", [layer()], False, False),
        (",window=127", [layer()], False, False),
    ],
)
def test_a_table_belongs_to_the_whole_shape_of_the_models_layers(problem, layers, sinks, used):
    made = file(parse_attention(f"{PROBLEM.spec()}{problem}"))
    said = choose_splits(Backend(), runner(*layers, sinks=sinks), [made], ENGINES)
    assert said.startswith(f"{made.title}: up to 64") if used else said == ""


def test_a_failure_leaves_the_engines_own_numbers_and_is_logged_once(monkeypatch, caplog):
    small = SplitsTable((SplitsRow(1, 4, ((1024, 4),)),))
    backend = install(small)

    def failing(*_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(ChosenSplits, "_choose", failing)
    with caplog.at_level(logging.INFO):
        assert [written(backend, [900]) for _ in range(2)] == [[4], [4]]  # within the room
    assert caplog.text.count("sglang's own KV splits stay") == 1


def test_the_results_of_the_splits_lie_in_the_engines_buffers_where_these_are_large_enough():
    backend = install()
    logits, lse, used, used_lse, room, told = launch(backend, 1, buffered=16)
    assert used.shape == (1, HEADS, 64, COLUMNS) and used_lse.shape == (1, HEADS, 64)
    assert (room, told) == (64, 64)
    assert used.data_ptr() == logits.data_ptr() and used_lse.data_ptr() == lse.data_ptr()
    assert used.is_contiguous() and used_lse.is_contiguous()
    logits, lse, used, used_lse, _, _ = launch(backend, 1)  # room for 8 splits
    assert used.shape == (1, HEADS, 64, COLUMNS) and used.data_ptr() != logits.data_ptr()
    logits, lse, used, used_lse, room, told = launch(backend, 32)  # the engine's own rule
    assert used is logits and used_lse is lse
    assert room == told == ENGINES
    assert launches._room.splits == 0


def test_the_room_is_bounded_by_memory_and_by_a_flag(monkeypatch):
    part_bytes = HEADS * COLUMNS * 4
    monkeypatch.setattr("tuner.families.attention.splits.ROOM_BYTES", 32 * part_bytes)
    assert ChosenSplits(Backend(), PROBLEM, TABLE, 1024).room(1) == 32
    assert ChosenSplits(Backend(), PROBLEM, TABLE, 1024).room(8) == ENGINES
    monkeypatch.undo()
    assert [ChosenSplits(Backend(), PROBLEM, TABLE, 1024).room(n) for n in (1, 8, 32, 128)] == [
        64, 16, ENGINES, 4,
    ]  # fmt: skip
    assert ChosenSplits(Backend(), PROBLEM, TABLE, 2).room(1) == 2


def file(problem=PROBLEM, table=TABLE):
    names = ("device", "engine", "engine_version", "triton", "kernel_hash")
    return AttentionFile(
        problem, **dict.fromkeys(names, "x"), entries=(), server_flags={}, splits=table
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "up to 64 KV splits, sglang's own 8"),
        ({"enable_deterministic": True}, "because of deterministic inference"),
        ({"enable_deterministic": None}, "because of deterministic inference"),
        ({"sliding_window_size": 127}, "because of a sliding window"),
        ({"dcp_size": 2}, "because of decode context parallelism"),
        ({"skip_prefill": True}, "because of a draft model"),
        ({"static_kv_splits": True}, "because of SGLANG_TRITON_DECODE_ATTN_STATIC_KV_SPLITS"),
        ({"split_tile_size": 256}, "because of --triton-attention-split-tile-size"),
        ({"device_core_count": 0}, "because of an unknown number of processors"),
        ({"num_head": 8}, ""),
        ({"num_kv_head": 4}, ""),
        ({"v_head_dim": 64}, ""),
        ({"use_mla": True}, ""),
        ({"page_size": 64}, ""),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_table_is_for_one_kind_of_backend(changes, said):
    backend = Backend(**changes)
    answer = choose_splits(backend, RUNNER, [file()], ENGINES)
    assert said in answer if said else answer == ""
    assert ("get_num_kv_splits" in vars(backend)) == ("up to" in answer)


def test_other_types_drafts_and_launchers_keep_the_engines_splits():
    fp8 = runner(layer(), kv_cache_dtype="torch.float8_e4m3fn")
    assert choose_splits(Backend(), fp8, [file()], ENGINES) == ""
    draft = runner(layer(), is_draft_worker=True)
    assert "a draft model" in choose_splits(Backend(), draft, [file()], ENGINES)
    backend = Backend()
    backend.decode_attention_fwd = lambda q, kv_indptr: None
    assert "unknown decode_attention_fwd" in choose_splits(backend, RUNNER, [file()], ENGINES)
    own = SplitsTable((SplitsRow(1, 0, ()),))
    said = choose_splits(Backend(), RUNNER, [file(table=own)], ENGINES)
    assert "sglang's own KV splits were the fastest" in said
    assert choose_splits(Backend(), RUNNER, [file(table=None)], ENGINES) == ""


def test_latent_attention_has_one_key_head_whatever_the_engine_counts():
    latent = parse_attention("decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=float16")
    backend = Backend(use_mla=True, num_head=16, num_kv_head=16, v_head_dim=512, max_kv_splits=256)
    absorbed = runner(layer(16, 1, 576, 512), layer(16, 16, 192, 128))
    assert "sglang's own 256" in choose_splits(backend, absorbed, [file(), file(latent)], ENGINES)


@pytest.mark.parametrize(("flag", "most"), [(8, 64), (16, 16), (4, 4), (512, 64)])
def test_a_flag_that_a_user_set_is_the_upper_bound(flag, most):
    assert f"up to {most} KV splits" in choose_splits(Backend(), RUNNER, [file()], flag)
