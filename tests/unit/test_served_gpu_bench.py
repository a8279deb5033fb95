"""The script that compares servers of models on a GPU: the lengths that it tunes attention for."""

from types import SimpleNamespace

import pytest
from benchmark_scripts import load_script

from benchmarks.served.loads import parse_loads
from tuner.families.attention.workloads import read_workload


@pytest.fixture(scope="module")
def bench():
    return load_script("served_gpu.py")


def test_attention_is_tuned_at_the_lengths_of_the_loads(bench, tmp_path):
    path = tmp_path / "workload.toml"
    path.write_text(bench.workload(parse_loads("1x1024+64,64x1024+64,8x20000+32")))
    sizes = [point.size for point in read_workload(path).points]
    assert [size for size in sizes if size[1] == 1] == [(1, 1, 1056), (64, 1, 1056), (8, 1, 20016)]
    assert [size for size in sizes if size[1] > 1] == [
        *((1, 1024, 0), (8, 1024, 0)),
        *((1, 8192, 0), (1, 8192, 8192), (1, 3616, 16384)),
    ]


def test_what_tunes_attention_gets_the_workload(bench, tmp_path):
    words = ["m --effort quick", "m --family attention"]
    given = {"tune": words, "device": "H100", "loads": "1x8+8", "rounds": 1}
    args = SimpleNamespace(**given, args="", database=None, shelf=False)
    moe, attention, *_ = bench.commands("qwen3-30b-a3b", tmp_path, args)
    assert "--workload" not in moe
    assert attention[-2:] == ["--workload", str(tmp_path / "workload.toml")]
    (all_, *_) = bench.commands(
        "qwen3-30b-a3b", tmp_path, SimpleNamespace(**{**vars(args), "tune": None})
    )
    assert "--all" in all_ and "--workload" in all_
    stored = SimpleNamespace(**{**vars(args), "database": "sqlite:///x.db"})
    assert [w[0] for w in bench.commands("qwen3-30b-a3b", tmp_path, stored)] == [
        "export",
        "compare",
    ]


def test_the_logs_say_which_backends_the_servers_chose(bench):
    log = """
[01:02] Attention backend not specified. Use fa3 backend by default.
[01:02] server_args=ServerArgs(attention_backend='fa3', decode_attention_backend=None, other='x')
[01:03] Using default MoE kernel config. Performance might be sub-optimal!
[01:04] Capture cuda graph end.
[01:05] Rollback to implementation from sgl-kernel
"""
    assert bench.chosen(log + log) == [
        "Attention backend not specified. Use fa3 backend by default.",
        "attention_backend='fa3'",
        "decode_attention_backend=None",
        "[01:03] Using default MoE kernel config. Performance might be sub-optimal!",
        "[01:05] Rollback to implementation from sgl-kernel",
    ]
