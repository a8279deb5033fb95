"""Reading and writing engines' config files, and their names."""

import json
from pathlib import Path

import pytest
from cases import config
from hypothesis import given
from hypothesis import strategies as st

from tuner.engines.config_files import (
    FIELDS,
    config_file_text,
    launch_config,
    read_config_file,
    read_lenient,
)
from tuner.errors import MalformedConfigFile
from tuner.families.fused_moe.engine import MoeFileKey, format_file_name, parse_file_name
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Config

GOOD = {**config(16, 64, 128)}


def changed(**fields: object) -> str:
    return json.dumps({"1": GOOD, "16": {**GOOD, **fields}})


def without(*names: str) -> str:
    return json.dumps({"1": GOOD, "16": {k: v for k, v in GOOD.items() if k not in names}})


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "file.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_good_file_keeps_its_order(tmp_path):
    file = read_config_file(write(tmp_path, json.dumps({"16": GOOD, "1": GOOD})))
    assert list(file.entries.items()) == [(16, Config(GOOD)), (1, Config(GOOD))]
    assert file.oddities == ()


def test_what_engines_allow_is_allowed(tmp_path):
    read_config_file(write(tmp_path, without("num_warps", "num_stages")))  # Triton's defaults
    file = read_config_file(write(tmp_path, changed(USE_TMA=True, num_ctas=1)))
    assert file.entries[16]["USE_TMA"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        (" \n", "the file is empty"),
        ("{}", "it holds no batch sizes"),
        ("[]", r"must be an object of batch sizes, not \[\]"),
        ("null", "must be an object of batch sizes, not null"),
        ('{"1": {', "not JSON: .*line 1"),
        (b"\xff\xfe{}", "not JSON"),
        ("[" * 100_000, "not JSON: .*recursion"),
        ('{"1": ' + "9" * 5_000 + "}", "not JSON|not 999"),
        (json.dumps({"M16": GOOD}), "key 'M16' is not a batch size"),
        (json.dumps({"1.5": GOOD}), "key '1.5' is not a batch size"),
        (json.dumps({"-1": GOOD}), "key '-1' is not a batch size"),
        (json.dumps({"016": GOOD}), "key '016' is not a batch size"),
        (json.dumps({"1_6": GOOD}), "key '1_6' is not a batch size"),
        (json.dumps({"\u0661": GOOD}), "is not a batch size"),
        (json.dumps({"0": GOOD}), "key '0' is not from 1 to"),
        (json.dumps({"9999999": GOOD}), "key '9999999' is not from 1 to"),
        (f'{{"16": {json.dumps(GOOD)}, "16": {json.dumps(GOOD)}}}', "key '16' is given twice"),
        (
            '{"16": {"BLOCK_SIZE_M": 1, "BLOCK_SIZE_M": 2}}',
            "key '16': field 'BLOCK_SIZE_M' is given twi",
        ),
        ('{"16": [1]}', "key '16' must hold a configuration, not"),
        (without("BLOCK_SIZE_K"), "key '16': lacks field 'BLOCK_SIZE_K'"),
        (without("GROUP_SIZE_M", "BLOCK_SIZE_M"), "lacks field 'BLOCK_SIZE_M', 'GROUP_SIZE_M'"),
        (without("num_stages"), "key '16': lacks field 'num_stages'"),
        (without("num_warps"), "key '16': lacks field 'num_warps'"),
        (
            changed(BLOCK_SIZE_M="16"),
            "key '16': field 'BLOCK_SIZE_M' must be a whole number, not \"16\"",
        ),
        (changed(num_warps=4.0), "field 'num_warps' must be a whole number, not 4.0"),
        (changed(num_warps=None), "field 'num_warps' must be a whole number, not null"),
        (changed(num_warps=True), "field 'num_warps' must be a whole number, not true"),
        (changed(num_warps={}), "field 'num_warps' must be a whole number, not an object"),
        (changed(USE_TMA=1), "field 'USE_TMA' must be true or false, not 1"),
        (changed(num_warps=float("nan")), "not JSON: NaN"),
        (changed(num_warps=float("inf")), "not JSON: Infinity"),
        (changed(num_warps=0), "field 'num_warps' must be from 1 to"),
        (changed(BLOCK_SIZE_M=-16), "field 'BLOCK_SIZE_M' must be from 1 to"),
        (changed(BLOCK_SIZE_M=1 << 40), "field 'BLOCK_SIZE_M' must be from 1 to"),
        (changed(num_warp=4), "key '16': unknown field 'num_warp'; did you mean 'num_warps'"),
        (changed(cluster_dims=1), "unknown field 'cluster_dims'"),
        (changed(kpack=0), "field 'kpack' must be from 1 to"),
        (" " * 2_000_000, "larger than 1 MiB"),
    ],
)
def test_malformed_files_are_refused_in_one_line(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(MalformedConfigFile, match=message) as raised:
        read_config_file(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < len(str(path)) + 200


def test_a_file_that_cannot_be_opened(tmp_path):
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(MalformedConfigFile, match="cannot be read"):
            read_config_file(path)


def test_a_lenient_reading_reports_what_a_strict_one_refuses(tmp_path):
    file = read_lenient(write(tmp_path, changed(zzz=2)))
    assert file.entries[16]["zzz"] == 2
    assert file.oddities == ("key '16': unknown field 'zzz'",)


def test_options_of_amds_compiler_are_read_and_written_last(tmp_path):
    """0 asks the compiler to choose."""
    options = {"waves_per_eu": 0, "matrix_instr_nonkdim": 16, "kpack": 2}
    file = read_config_file(write(tmp_path, changed(**options)))
    assert file.entries[16] == Config({**GOOD, **options})
    written = json.loads(config_file_text(file.entries))["16"]
    assert list(written)[-3:] == list(options)


def test_an_entry_without_options_has_tritons_defaults_of_its_backend():
    bare = Config({k: v for k, v in GOOD.items() if not k.startswith("num_")})
    assert launch_config(bare, "hip") == Config({**GOOD, "num_warps": 4, "num_stages": 2})
    assert launch_config(Config({**bare, "num_stages": 1}), "hip")["num_stages"] == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*FIELDS, "1", "16", "x"]) | st.text(max_size=3), inner, max_size=7
        )
    ),
    max_leaves=30,
)


@given(tree=json_values | st.binary(max_size=50))
def test_any_file_is_read_or_refused(tmp_path_factory, tree):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(tree if isinstance(tree, bytes) else json.dumps(tree).encode())
    try:
        file = read_config_file(path)
    except MalformedConfigFile:
        return
    assert json.loads(config_file_text(file.entries)).keys() == {str(k) for k in file.entries}


def test_what_is_written_is_what_engines_read():
    entries = {64: Config({**GOOD, "USE_TMA": 1}), 8: Config({k: GOOD[k] for k in reversed(GOOD)})}
    text = config_file_text(entries)
    assert text.startswith(
        '{\n    "8": {\n        "BLOCK_SIZE_M": 16,\n        "BLOCK_SIZE_N": 64,'
    )
    assert text.endswith('"num_stages": 3,\n        "USE_TMA": true\n    }\n}\n')
    read = {int(key): value for key, value in json.loads(text).items()}  # as the loader does
    assert read == {8: GOOD, 64: {**GOOD, "USE_TMA": True}}
    assert list(read) == [8, 64]


@given(
    st.dictionaries(
        st.integers(1, 5000),
        st.fixed_dictionaries(
            {name: st.integers(1, 512) for name in GOOD}, optional={"USE_TMA": st.just(1)}
        ).map(Config),
        min_size=1,
    )
)
def test_a_written_file_reads_back(tmp_path_factory, entries):
    path = tmp_path_factory.getbasetemp() / "written.json"
    path.write_text(config_file_text(entries))
    assert read_config_file(path).entries == entries


def test_launch_config_makes_tritons_defaults_explicit():
    bare = Config({k: v for k, v in GOOD.items() if not k.startswith("num_")})
    assert launch_config(bare) == Config({**GOOD, "num_warps": 4, "num_stages": 3})
    assert launch_config(Config({**GOOD, "num_stages": 5}))["num_stages"] == 5


# Names


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("E=8,N=3584,device_name=NVIDIA_L40S.json", MoeFileKey(8, 3584, "NVIDIA_L40S")),
        (
            "E=256,N=128,device_name=NVIDIA_H20-3e,dtype=fp8_w8a8,block_shape=[128, 128]_down.json",
            MoeFileKey(256, 128, "NVIDIA_H20-3e", "fp8_w8a8", (128, 128), gemm=Gemm.DOWN),
        ),
        (
            "E=257,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True.json",
            MoeFileKey(257, 64, "NVIDIA_L40S", "int8_w8a8", per_channel_quant=True),
        ),
        (
            "E=64,N=8,device_name=Intel(R)_Arc_down.json",
            MoeFileKey(64, 8, "Intel(R)_Arc", gemm=Gemm.DOWN),
        ),
        ("E=384,N=128,device_name=,dtype=int4_w4a16.json", MoeFileKey(384, 128, "", "int4_w4a16")),
    ],
)
def test_names(name, key):
    assert parse_file_name(name) == key
    assert format_file_name(key) == name


def test_int4_names_count_packed_columns():
    """Two elements lie in a byte of the weight whose shape the engine reads N from."""
    key = parse_file_name("E=384,N=128,device_name=NVIDIA_H200,dtype=int4_w4a16.json")
    assert key.intermediate_size == 256


@pytest.mark.parametrize(
    "name",
    [
        "",
        "file.json",
        "E=8,N=3584.json",
        "E=8,N=3584,device_name=NVIDIA_L40S",
        "E=08,N=3584,device_name=NVIDIA_L40S.json",
        "E=8,N=x,device_name=NVIDIA_L40S.json",
        "E=8,N=1,device_name=NVIDIA_L40S,block_shape=[128,128].json",
        "E=8,N=1,device_name=NVIDIA_L40S,per_channel_quant=False.json",
        "E=8,N=1,device_name=NVIDIA_L40S.json\n",
        "E=8,N=1,device_name=NVIDIA_L40S,later=1.json",
    ],
)
def test_names_that_no_engine_asks_for(name):
    with pytest.raises(MalformedConfigFile, match="is not a config file's name"):
        parse_file_name(name)
