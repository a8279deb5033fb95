"""The watch list: read, refused, and spread out into requests."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.errors import MalformedWatchList
from tuner.families.fused_moe.family import MoeSelection
from tuner.jobs.job import JobRequest
from tuner.tuning.request import Effort
from workers.watches import (
    REVALIDATE,
    LeftAlone,
    Unresolved,
    Watch,
    read_watch,
    read_watch_list,
)

FULL = """
revalidate = 3

[[watch]]
models = ["deepseek-r1"]
devices = ["L40S", "H200"]
tp = [8, 16]
dtypes = ["int8_w8a8"]
batch_sizes = [1, 2]
engine = "sglang==0.5.16"
measure = "predict"
effort = "quick"
server_args = "--moe-runner-backend triton"

[[watch]]
models = ["fused_moe:E=8,N=512,K=1024,top_k=2,dtype=bfloat16"]
devices = ["A100"]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "nightly.toml"
    path.write_text(text)
    return path


def test_a_list_is_read(tmp_path):
    found = read_watch_list(written(tmp_path, FULL))
    assert found.revalidate == 3
    first, second = found.watches
    assert first == Watch(
        models=("deepseek-r1",),
        devices=("L40S", "H200"),
        tp=(8, 16),
        dtypes=("int8_w8a8",),
        batch_sizes=(1, 2),
        engine="sglang==0.5.16",
        measure="predict",
        effort="quick",
        server_args="--moe-runner-backend triton",
    )
    assert (second.tp, second.ep, second.measure) == ((1,), (1,), "gpu")
    assert read_watch_list(written(tmp_path, "")).revalidate == REVALIDATE


def test_a_watch_comes_back_from_json():
    watch = Watch(("deepseek-r1",), ("L40S",), tp=(8,), dtypes=("int8_w8a8",))
    assert read_watch(watch.as_json()) == watch
    assert watch.key != Watch(("deepseek-r1",), ("L40S",), tp=(16,)).key


def test_a_watch_without_flags_has_the_key_of_before_there_were_any():
    watch = Watch(("deepseek-r1",), ("L40S",))
    assert watch.as_json().keys().isdisjoint({"architecture", "checkpoint", "server_args"})
    assert watch.key != replace(watch, server_args="--ep 2").key


def test_problems_of_a_watch_are_hidden(tmp_path):
    (_, second) = read_watch_list(written(tmp_path, FULL)).watches
    (problem,) = second.models
    (_, hiding) = read_watch_list(written(tmp_path, f'{FULL}hidden = ["{problem}"]')).watches
    assert (hiding.hidden, list(hiding.requests())) == ((problem,), [])
    assert len(list(second.requests())) == 1
    assert hiding.key == second.key  # an equal watch is not added twice
    assert read_watch(hiding.as_json()) == hiding


def test_a_watch_stands_for_every_combination(tmp_path):
    watch = read_watch_list(written(tmp_path, FULL)).watches[0]
    requests = [one for one in watch.requests() if isinstance(one, JobRequest)]
    assert {(one.device, one.problem.N) for one in requests} == {
        ("NVIDIA_L40S", 256),
        ("NVIDIA_L40S", 128),
        ("NVIDIA_H200", 256),
        ("NVIDIA_H200", 128),
    }
    assert {(one.measure, one.effort, one.selection, one.model) for one in requests} == {
        ("predict", Effort.QUICK, MoeSelection((1, 2)), "deepseek-r1")
    }


def test_one_that_cannot_be_does_not_stop_the_others():
    watch = Watch(
        ("deepseek-r1", "no-such-model"),
        ("L40S",),
        tp=(8, 7),
        dtypes=("int8_w8a8",),
        families=("fused_moe",),
    )
    found = list(watch.requests())
    assert sum(isinstance(one, JobRequest) for one in found) == 1
    refused = [one for one in found if isinstance(one, Unresolved)]
    reasons = {f"{one.model} on {one.device}": str(one.error) for one in refused}
    assert "no-such-model" in reasons["no-such-model TP 8 EP 1 int8_w8a8 on L40S"]
    assert "7" in reasons["deepseek-r1 TP 7 EP 1 int8_w8a8 on L40S"]


def test_times_that_nothing_predicts_do_not_stop_the_others():
    decode = "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
    found = list(Watch((decode, "deepseek-r1"), ("L40S",), measure="predict").requests())
    assert isinstance(found[0], Unresolved)  # a problem that was named
    assert "the times of attention are not predicted" in str(found[0].error)
    jobs = [one.spec.partition(":")[0] for one in found if isinstance(one, JobRequest)]
    assert set(jobs) == {"fused_moe", "block_gemm"}
    left = [one for one in found if isinstance(one, LeftAlone)]  # of a model, the others are tuned
    assert {one.what.partition(":")[0] for one in left} == {"extend_attention", "decode_attention"}
    assert all("the times of attention are not predicted" in one.why for one in left)
    assert len(found) == 1 + len(jobs) + len(left)


def test_a_watch_names_families():
    dense = Watch(("qwen3-32b",), ("H200",), tp=(4,), engine="sglang==0.5.16")
    found = list(dense.requests())
    assert all(isinstance(one, LeftAlone) for one in found)  # other kernels run by themselves
    named = replace(dense, families=("attention",))
    assert {one.problem.family for one in named.requests()} == {
        "extend_attention",
        "decode_attention",
    }
    every = list(replace(dense, families="all").requests())
    assert len(every) == len(found)
    left = [one for one in every if isinstance(one, LeftAlone)]
    assert [one.what for one in left] == ["quantised dense GEMMs"]  # its weights are not quantised
    flags = "--attention-backend triton"
    triton = list(replace(dense, server_args=flags).requests())
    read = [one for one in triton if isinstance(one, JobRequest)]
    assert {one.problem.family for one in read} == {"extend_attention", "decode_attention"}
    assert {one.server.server_args for one in read} == {flags}
    for watch in (dense, named, replace(dense, families="all")):
        assert read_watch(json.loads(json.dumps(watch.as_json()))) == watch
    assert "families" not in dense.as_json()  # its key is that of an earlier program


@pytest.mark.parametrize(
    ("families", "said"),
    [('"every"', "must be a list of names, or all"), ('["fused_mo"]', "did you mean 'fused_moe'")],
)
def test_families_that_are_not_known_are_refused(tmp_path, families, said):
    path = tmp_path / "nightly.toml"
    path.write_text(f"[[watch]]\nmodels = ['a']\ndevices = ['L40S']\nfamilies = {families}\n")
    with pytest.raises(MalformedWatchList, match=said):
        read_watch_list(path)


def test_a_night_asks_for_no_file_that_it_would_not_read():
    (found,) = Watch((".",), ("L40S",)).requests()
    assert isinstance(found, Unresolved)
    assert str(found.error).startswith("no preset is called '.'; see `tuner list models`")
    assert found.error.in_api_words().endswith("'.'; GET /v1/models lists the presets")


def test_an_engine_of_no_such_name_is_said_of_each_of_its_models():
    found = list(Watch(("deepseek-r1", "no-such-model"), ("L40S",), engine="sglong").requests())
    assert [(one.model, one.device) for one in found] == [
        (f"{model} TP 1 EP 1", "L40S") for model in ("deepseek-r1", "no-such-model")
    ]
    assert all("did you mean 'sglang'" in str(one.error) for one in found)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("revalidate = ", "not TOML"),
        ("revalidate = -1", "revalidate must be 0 to 1000"),
        ("watches = 1", "unknown field watches; did you mean 'watch'"),
        ("[watch]\nmodels = ['a']", r"write \[\[watch\]\]"),
        ("[[watch]]\nmodels = ['deepseek-r1']", "watch 1: .*device"),
        ("[[watch]]\nmodel = ['a']\ndevices = ['L40S']", "toml: .*did you mean 'models'"),
        ("[[watch]]\nmodels = ['a']\ndevices = ['L40X']", "toml: watch 1: .*did you mean 'L40'"),
        ("[[watch]]\nmodels = 'a'\ndevices = ['L40S']", "watch 1.models must be a list"),
        ("[[watch]]\nmodels = ['a']\ndevices = ['L40S']\ntp = [0]", "watch 1.tp"),
        ("[[watch]]\nmodels = ['a']\ndevices = ['L40S']\ntp = [true]", "watch 1.tp"),
        ("[[watch]]\nmodels = ['a']\ndevices = ['L40S']\ndtype = 'fp8'", "did you mean 'dtypes'"),
        ("[[watch]]\nmodels = ['a']\ndevices = ['L40S']\nmeasure = 'guess'", "guess"),
        ("[[watch]]\nmodels = ['a']\ndevices = ['L40S']\ndtypes = ['fp9']", "fp9"),
        ("[[watch]]\nmodels = ['a']\ndevices = ['L40S']\nserver_args = '-a \"b'", "server's flags"),
    ],
)
def test_a_malformed_list_is_refused(tmp_path, text, reason):
    with pytest.raises(MalformedWatchList, match=reason) as caught:
        read_watch_list(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_list_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(MalformedWatchList, match="No such file"):
        read_watch_list(tmp_path / "none.toml")


def test_a_watch_of_very_many_is_refused():
    many = list(range(1, 100))
    with pytest.raises(MalformedWatchList, match="4096"):
        read_watch({"models": ["a"], "devices": ["L40S"], "tp": many, "ep": many})
