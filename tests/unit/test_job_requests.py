"""Requests of jobs: what they stand for, as JSON and as a key."""

from dataclasses import replace
from typing import Any

import pytest
from cases import new_request

from tuner.errors import BadInput, BadProblem, UnsupportedKernel
from tuner.families.attention.family import AttentionSelection
from tuner.families.attention.problem import AttentionPart
from tuner.families.attention.workloads import WorkPoint, usual_workload
from tuner.families.fused_moe.family import MoeSelection
from tuner.families.fused_moe.problem import BATCH_SIZES, Gemm
from tuner.jobs.job import read_request, refuse_undoable
from tuner.problems.points import Point, ServerSettings
from tuner.problems.registry import parse_problem
from tuner.tuning.request import Effort

LAYER = new_request(parse_problem("fused_moe:E=8,N=512,K=1024,top_k=2,dtype=bfloat16"), "L40S")
DECODE = new_request(
    parse_problem("decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"), "H200"
)
OWN = (WorkPoint(64, 1, 4096, 2.0), WorkPoint(8, 1, 512))


@pytest.mark.parametrize(
    "request_",
    [
        LAYER,
        replace(LAYER, server=ServerSettings("NemotronHForCausalLM")),
        replace(LAYER, server=ServerSettings("", "fp8_w8a8 fp8", "--moe-runner-backend triton")),
        replace(LAYER, selection=MoeSelection((1, 2), (Gemm.DOWN,))),
        replace(LAYER, measure="gpu", effort=Effort.QUICK, wide=True, seed=2**62),
        DECODE,
        replace(DECODE, selection=AttentionSelection("offline")),
        replace(DECODE, selection=AttentionSelection(OWN)),
    ],
)
def test_a_request_comes_back_from_json(request_):
    assert read_request(request_.as_json()) == request_


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "fused_moe:E=999999999,N=999999999,K=999999999,top_k=1,dtype=bfloat16",
            "GiB, and the card has 48 GiB",
        ),
        ("block_gemm:N=1048576,K=1048576,dtype=fp8_w8a8,block=128x128", "needs 1,024"),
        ("decode_attention:q_heads=1048576,kv_heads=1048576,Lq=1024,Lv=1024,dtype=float16", "GiB"),
    ],
)
def test_a_problem_of_which_no_launch_fits_into_the_card_is_refused(text, said):
    with pytest.raises(BadProblem, match="does not fit on NVIDIA_L40S: its smallest launch") as no:
        refuse_undoable(new_request(parse_problem(text), "L40S"))
    assert said in str(no.value)


@pytest.mark.parametrize(
    "text",
    [
        "fused_moe:E=8,N=256,K=512,top_k=2,dtype=fp8_w8a8",
        "block_gemm:N=1536,K=2048,dtype=fp8_w8a8,block=128x128",
    ],
)
def test_a_card_without_the_type_of_the_weights_is_refused_at_once(text):
    problem = parse_problem(text)
    with pytest.raises(UnsupportedKernel, match="sm_80 has no 8-bit floats.*serve 16-bit or int8"):
        refuse_undoable(new_request(problem, "A100"))
    refuse_undoable(new_request(problem, "L40S"))


def test_what_fits_in_part_is_not_refused():
    """The largest points may be too large for a card; the others are tuned all the same."""
    for request in (
        LAYER,
        DECODE,
        replace(DECODE, device="NVIDIA_L4"),
        replace(LAYER, device="NVIDIA_L4"),
    ):
        refuse_undoable(request)
    large = replace(LAYER, selection=MoeSelection((1, 1 << 19), (Gemm.DOWN,)))
    refuse_undoable(large)


def test_a_stored_layer_s_request_keeps_its_key():
    """Equal to what versions without attention made of it, so that their jobs still answer."""
    assert LAYER.key == "ad5868f6098a0fdefeef5add881e58b11bbc5a0e22f7c29a747872c98fc3ece3"
    assert LAYER.as_json().keys() == {
        *("problem", "device", "engine", "measure", "batch_sizes", "gemms"),
        *("effort", "wide", "seed", "model"),
    }


def test_every_workload_is_another_job():
    ways: list[Any] = ["", "chat", "offline", OWN, OWN[:1], (replace(OWN[0], weight=3.0), OWN[1])]
    keys = {replace(DECODE, selection=AttentionSelection(way)).key for way in ways}
    assert len(keys) == len(ways)


@pytest.mark.parametrize(
    ("request_", "change", "said"),
    [
        (LAYER, {"gemms": ["upp"]}, "'upp'.*'up'"),
        *((LAYER, {"batch_sizes": sizes}, "batch") for sizes in ([], [0], [1 << 20])),
        *((LAYER, {"seed": seed}, "seed") for seed in (-1, 1 << 63)),
        (LAYER, {"device": "L40X"}, "L40"),
        (LAYER, {"measure": "guess"}, "guess"),
        (LAYER, {"gemms": []}, "gemm"),
        (DECODE, {"workload": "chatt"}, "'chatt'.*chat"),
        (
            DECODE,
            {"workload": [{"batch_size": 4, "new_tokens": 512}]},
            "the workload has no point of decode",
        ),
    ],
)
def test_what_no_worker_could_run_is_refused(request_, change, said):
    with pytest.raises(BadInput, match=said) as caught:
        read_request({**request_.as_json(), **change})
    assert "\n" not in str(caught.value)


def test_the_points_of_a_request():
    assert LAYER.points == {Point(size, gemm) for size in BATCH_SIZES for gemm in Gemm}
    assert replace(LAYER, selection=MoeSelection((4,), (Gemm.UP,))).points == {Point(4, Gemm.UP)}
    assert replace(DECODE, selection=AttentionSelection(OWN)).points == {
        Point(size, part, 1, cached)
        for size, cached in ((64, 4096), (8, 512))
        for part in (AttentionPart.DECODE, AttentionPart.REDUCE)
    }
    usual = usual_workload(DECODE.problem.phase).points
    assert {point.batch_size for point in DECODE.points} == {at.batch_size for at in usual}


@pytest.mark.parametrize("request_", [LAYER, DECODE])
def test_a_recording_says_its_points_itself(request_):
    assert replace(request_, measure="replay:x.csv").points == set()


def test_the_class_of_a_model_is_a_part_of_the_key_only_where_it_is_known():
    """Jobs of programs before have no class, and are found by their keys."""
    assert "architecture" not in LAYER.as_json()
    of_class = replace(LAYER, server=ServerSettings("NemotronHForCausalLM"))
    assert of_class.key != LAYER.key == read_request(LAYER.as_json()).key


def test_a_request_has_the_tables_name_of_its_device():
    with pytest.raises(BadInput, match="H200 is NVIDIA_H200 in the device table"):
        replace(LAYER, device="H200")
