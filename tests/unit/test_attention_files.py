"""Attention files: what is written is read back, and nothing malformed gets as far as a kernel."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from plugin_cases import attention_file, put

from tuner.bindings.sglang.plugin.files import (
    AttentionEntry,
    attention_root,
    file_name,
    find_attention_files,
    read_attention_file,
)
from tuner.bindings.sglang.plugin.splits import SplitsRow, SplitsTable
from tuner.errors import MalformedConfigFile
from tuner.families.attention.problem import AttentionPart
from tuner.problems.points import Config
from tuner.problems.registry import parse_problem
from tuner.problems.results import Status

EXTEND = parse_problem("extend_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16")
DECODE = parse_problem(
    "decode_attention:q_heads=48,kv_heads=2,Lq=128,Lv=128,dtype=bfloat16,kv_splits=16"
)
CHOSEN = parse_problem("decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16")
LATENT = replace(CHOSEN, kv_splits=8)
BLOCKS = Config({"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2})


def extend(batch_size: int, new_tokens: int) -> AttentionEntry:
    return AttentionEntry(AttentionPart.EXTEND, batch_size, new_tokens, BLOCKS, Status.OK, 71_680)


def file(problem=EXTEND, entries=None, **changes):
    return attention_file(problem, entries or (extend(4, 256),), **changes)


def decode_entries() -> tuple[AttentionEntry, ...]:
    decode = Config({"BLOCK_N": 32, "BLOCK_H": 8, "num_warps": 4, "num_stages": 3})
    return (
        AttentionEntry(AttentionPart.DECODE, 64, 1, decode, Status.PREDICTED),
        AttentionEntry(AttentionPart.REDUCE, 64, 1, Config({"num_warps": 2}), Status.INCUMBENT, 0),
    )


def latent_entries(*sizes: int) -> tuple[AttentionEntry, ...]:
    decode = Config({"BLOCK_N": 32, "BLOCK_H": 16, "num_warps": 4, "num_stages": 3})
    return tuple(AttentionEntry(AttentionPart.DECODE, n, 1, decode, Status.OK) for n in sizes)


TABLE = SplitsTable(
    (
        SplitsRow(1, 64, ((1024, 8), (8192, 32), (32768, 64))),
        SplitsRow(8, 0, ()),  # the engine's own rule
        SplitsRow(64, 32, ((1024, 2), (8192, 4))),
    )
)


@pytest.mark.parametrize(
    "written",
    [
        file(),
        file(CHOSEN, latent_entries(1, 8, 64), splits=TABLE),
        file(entries=(extend(1, 8192), extend(4, 256), extend(4, 512))),
        file(DECODE, decode_entries(), server_flags={"--triton-attention-num-kv-splits": 16}),
        file(
            parse_problem(
                "extend_attention:q_heads=8,kv_heads=1,Lq=64,Lv=64,dtype=float16,"
                "page_size=64,window=127,sinks,logit_cap=30"
            )
        ),
    ],
    ids=["extend", "chosen splits", "several", "decode", "all traits"],
)
def test_a_file_is_read_back_from_where_it_belongs(written, tmp_path):
    path = put(tmp_path, written)
    assert find_attention_files(tmp_path) == [path]
    assert read_attention_file(path) == written


def test_where_a_file_goes():
    path = file().path_under(Path("/r"))
    assert path.parent == Path("/r/attention/triton_3_6_0")
    assert path.name == file_name(EXTEND, "NVIDIA_H200")
    assert path.name == (
        "extend_attention,q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16,"
        "device_name=NVIDIA_H200.json"
    )


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"TUNER_ATTENTION_CONFIG_DIR": ""}, None),
        ({"SGLANG_MOE_CONFIG_DIR": "/moe"}, ("SGLANG_MOE_CONFIG_DIR", Path("/moe"))),
        (
            {"SGLANG_MOE_CONFIG_DIR": "/moe", "TUNER_ATTENTION_CONFIG_DIR": "/a"},
            ("TUNER_ATTENTION_CONFIG_DIR", Path("/a")),
        ),
    ],
)
def test_the_environment_says_where_files_are(environ, expected):
    assert attention_root(environ) == expected


def test_the_nearest_bucket_is_nearest_in_factors():
    buckets = (extend(1, 128), extend(1, 8192), extend(16, 128), extend(16, 1024))
    written = file(entries=buckets)

    def picked(batch_size, new_tokens):
        entry = written.pick(AttentionPart.EXTEND, batch_size, new_tokens)
        return entry.batch_size, entry.new_tokens

    assert picked(1, 128) == (1, 128)
    assert picked(1, 250) == (1, 128)
    assert picked(12, 700) == (16, 1024)
    assert picked(22, 180) == (16, 128)  # both by a half
    assert written.pick(AttentionPart.REDUCE, 1) is None
    between = file(entries=(extend(1, 128), extend(2, 64)))
    assert between.pick(AttentionPart.EXTEND, 1, 64) == extend(1, 128)  # the smaller batch


@pytest.mark.parametrize(
    "size", [(1, 257), (1, 63), (3, 128), (2, 130), (4, 256), (1, 900), (1, 4000), (64, 1024)]
)
def test_sizes_more_than_an_octave_from_every_entry_have_none(size):
    """Extend attention tuned at 4 x 256 alone was 0.44x as fast at 1 x 1,024 (an H200)."""
    written = file(entries=(extend(1, 128), extend(1, 8192), extend(16, 1024)))
    assert written.pick(AttentionPart.EXTEND, *size) is None


def test_what_may_be_launched_leaves_out_the_engines_own():
    other = Config({**BLOCKS, "num_stages": 1})
    own = AttentionEntry(AttentionPart.EXTEND, 4, 128, other, Status.INCUMBENT)
    assert file(entries=(extend(1, 128), extend(2, 128), own)).configs(AttentionPart.EXTEND) == [
        BLOCKS
    ]


def changed(**changes):
    fields = json.loads(file().text())
    return json.dumps({**fields, **changes})


def with_entry(**changes):
    fields = json.loads(file().text())
    fields["entries"][0] |= changes
    return json.dumps(fields)


def with_config(problem=None, **changes):
    fields = json.loads((file(problem, decode_entries()) if problem else file()).text())
    fields["entries"][0]["config"] |= changes
    return json.dumps(fields)


def without(name):
    fields = json.loads(file().text())
    del fields["entries"][0]["config"][name]
    return json.dumps(fields)


def chosen(**changes) -> str:
    fields = json.loads(file(CHOSEN, latent_entries(1, 8, 64), splits=TABLE).text())
    return json.dumps({**fields, **changes})


def rows(at: int = 0, **changes) -> list:
    table = TABLE.as_json()
    table[at] |= changes
    return table


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[]", "must be an object"),
        ("[" * 100_000, "not JSON"),
        (changed(format=3), "its format is 3; this version of the tuner reads 1 and 2"),
        (changed(problem="extend_atention:q_heads=1"), "did you mean 'extend_attention'?"),
        (changed(problem="fused_moe:E=8,N=64,K=64,top_k=2,dtype=bfloat16"), "is no attention"),
        (changed(problem=7), "'problem' must be text"),
        (changed(device=None), "'device' must be text"),
        (changed(entries=[]), "it holds no entries"),
        (changed(entries={}), "it holds no entries"),
        (changed(entries=[3]), "entry 0 must be an object"),
        (changed(entries=json.loads(file().text())["entries"] * 2), "same part and size"),
        (changed(server_flags=[]), "server_flags must be an object"),
        (changed(server_flags={"rm": 1}), "'rm' is no flag"),
        (with_entry(part="decode"), "part must be extend, not 'decode'"),
        (with_entry(part=["extend"]), "part must be extend"),
        (with_entry(batch_size=0), "batch_size must be a whole number from 1"),
        (with_entry(batch_size=True), "batch_size must be a whole number from 1"),
        (with_entry(new_tokens="4"), "new_tokens must be a whole number"),
        (with_entry(status="crashed"), "status must be ok or predicted or copied or incumbent"),
        (with_entry(config=None), "config must be an object"),
        (with_config(BLOCK_K=4), "unknown 'BLOCK_K'; did you mean 'BLOCK_N'?"),
        (with_config(BLOCK_H=4), "unknown 'BLOCK_H'"),
        (with_config(BLOCK_M=48), "BLOCK_M must be a power of two, not 48"),
        (with_config(num_stages=0), "num_stages must be a whole number from 1"),
        (without("num_warps"), "lacks num_warps"),
        (with_config(DECODE, HAS_MLA=1), "unknown 'HAS_MLA'"),
        (with_config(LATENT, HAS_MLA=2), "HAS_MLA must be 0 or 1, not 2"),
        (with_config(LATENT, HAS_MLA=-1), "HAS_MLA must be a whole number from 0"),
        (with_config(DECODE, BLOCK_H=16), "does not divide the 24 heads that share a key"),
        # Tables of KV splits
        (chosen(format=1), "needs a table of KV splits"),
        (chosen(problem=LATENT.spec()), "has no table of KV splits"),
        (chosen(kv_splits=None), "kv_splits must be a list of rows"),
        (chosen(kv_splits=[]), "kv_splits must be a list of rows"),
        (chosen(kv_splits=[1]), "kv_splits row 0 must be an object"),
        (chosen(kv_splits=rows(batch_size=0)), "batch_size must be a whole number from 1"),
        (chosen(kv_splits=rows(batch_size=8)), "each batch_size once, the smallest first"),
        (chosen(kv_splits=rows(batch_size=2)), "are for different batch sizes"),
        (chosen(kv_splits=rows(room=0)), "which is empty if room is 0"),
        (chosen(kv_splits=rows(1, room=8)), "which is empty if room is 0"),
        (chosen(kv_splits=rows(room=1 << 20)), "room must be at most 1024"),
        (chosen(kv_splits=rows(room=32)), "more splits than its room of 32"),
        (chosen(kv_splits=rows(by_cached_tokens={"1024": 0})), "splits must be a whole number"),
        (chosen(kv_splits=rows(by_cached_tokens={"1k": 8})), "'1k' is no number of cached tokens"),
        (chosen(kv_splits=rows(by_cached_tokens={"64": 8, "32": 4})), "the shortest length first"),
    ],
)
def test_a_malformed_file_is_refused_by_name(text, says, tmp_path):
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(MalformedConfigFile) as caught:
        read_attention_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(MalformedConfigFile, match="cannot be read"):
        read_attention_file(tmp_path / "none.json")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe{}")
    with pytest.raises(MalformedConfigFile, match="not JSON"):
        read_attention_file(binary)
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (1 << 21))
    with pytest.raises(MalformedConfigFile, match="larger than"):
        read_attention_file(large)


@pytest.mark.parametrize(
    ("problem", "field", "value"),
    [
        # Latent attention may load its values or take them out of keys.
        *((LATENT, "HAS_MLA", flag) for flag in (0, 1)),
        # The kernel reads these blocks of heads rightly.
        *((DECODE, "BLOCK_H", heads) for heads in (1, 2, 4, 8, 32)),
    ],
)
def test_what_the_kernel_takes_is_read(problem, field, value, tmp_path):
    path = tmp_path / "some.json"
    path.write_text(with_config(problem, **{field: value}))
    assert read_attention_file(path).entries[0].config[field] == value


# Tables of KV splits


def test_the_nearest_length_of_the_nearest_number_of_sequences_counts():
    numbers = (1, 2, 4, 8, 16, 32, 100, 128)
    assert [TABLE.row(n).batch_size for n in numbers] == [1, 1, 8, 8, 8, 64, 64, 64]
    assert all(TABLE.row(n).engines for n in (3, 17, 31, 129, 500))  # no row is so near
    lengths = (1, 1024, 2896, 2897, 8192, 16384, 16385, 10**6)
    assert [TABLE.rows[0].at(n) for n in lengths] == [8, 8, 8, 32, 32, 32, 64, 64]
    assert TABLE.most == 64


def test_the_grid_says_what_the_rows_say():
    grid = TABLE.grid()
    assert len(grid.numbers) == len(TABLE.chosen) == len(grid.rows) + 1
    for length in (1, 1023, 2896, 2897, 5000, 16384, 16385, 40_000):
        column = sum(bound <= length for bound in grid.lengths)
        assert [row[column] for row in grid.numbers] == [row.at(length) for row in TABLE.chosen]
    assert [sum(bound <= n for bound in grid.rows) for n in (1, 8, 9, 64)] == [0, 0, 1, 1]
