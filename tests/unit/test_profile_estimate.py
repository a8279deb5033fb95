"""What tuning can gain: shares, stored results, the order of what is worth it, the pictures."""

from dataclasses import replace

import pytest
from attention_cases import DECODE as DECODE_PROBLEM
from attention_cases import EXTEND as EXTEND_PROBLEM
from attention_cases import entry, point, published
from profile_traces import CUBLAS, DECODE, EXTEND, MOE, REDUCE, TraceWriter

from tuner.families.attention.problem import Stage
from tuner.problems.results import Status
from tuner.profile import GAPS, Phase, read
from tuner.profile.estimate import estimate
from tuner.profile.headroom import Basis
from tuner.profile.render import render_estimate

MYSTERY = "void mystery_of_a_plugin<int>(int*)"


@pytest.fixture
def profile(tmp_path):
    """40 % of decode is attention, 40 % MoE, and 20 % nothing that can be tuned."""
    trace = TraceWriter()
    trace.step((EXTEND, 60.0), (CUBLAS, 40.0), mark="step[EXTEND bs=1 toks=512]")
    for sequences, count in ((1, 6), (8, 4)):
        for _ in range(count):
            kernels = (DECODE, 35.0), (REDUCE, 5.0), (MOE, 40.0), (CUBLAS, 19.0), (MYSTERY, 1.0)
            trace.step(*kernels, mark=f"step[DECODE bs={sequences}]", graph=True)
    return read([trace.write(tmp_path / "a.trace.json")])


def rows(found, phase):
    return {row.family: row for one in found.phases if one.phase is phase for row in one.rows}


def decode_winners(status=Status.OK, us=100.0):
    """At 1 sequence 1.5 times as fast as the engine's own, at 8 not faster."""
    found = []
    for part in DECODE_PROBLEM.parts:
        for sequences, gain in ((1, 1.5), (8, 1.0)):
            one = entry(point(part, sequences, 1, 1000), status, us=us)
            own = replace(one.incumbents["default"], median_us=one.median_us * gain)
            found.append(published(DECODE_PROBLEM, replace(one, incumbents={"default": own})))
    return found


def test_a_trace_without_kernels_that_are_tuned_concludes_so(tmp_path, profile):
    trace = TraceWriter()
    trace.step((CUBLAS, 40.0), (MYSTERY, 10.0), mark="step[DECODE bs=1]", graph=True)
    told = "No kernel of this trace is of a kind that is tuned"
    text = render_estimate(estimate(read([trace.write(tmp_path / "b.trace.json")])))
    assert told in text
    assert "--before-args" in text
    assert told not in render_estimate(estimate(profile))


def test_what_can_be_saved_is_share_times_headroom(profile):
    found = estimate(profile)
    decode = rows(found, Phase.DECODE)
    moe = decode["fused_moe"]
    assert moe.share == pytest.approx(0.4)
    assert moe.headroom.basis is Basis.ELSEWHERE
    assert moe.saved == pytest.approx(0.4 * (1 - 1 / moe.headroom.gain))
    assert decode["cublas"].headroom is None
    assert decode["cublas"].saved == 0
    (phase,) = (one for one in found.phases if one.phase is Phase.DECODE)
    assert phase.gain == pytest.approx(1 / (1 - sum(row.saved for row in decode.values())))


def test_stored_results_count_at_the_sizes_that_occur(profile):
    found = estimate(profile, decode_winners())
    room = rows(found, Phase.DECODE)["attention_decode"].headroom
    assert room.basis is Basis.MEASURED
    # 6 of 10 steps become 1.5 times as fast, the others stay.
    assert room.gain == pytest.approx(10 / (6 / 1.5 + 4), rel=0.02)


def test_the_reduction_of_more_splits_counts_against_decode(profile):
    """Both parts are chosen together, so the winner of one may be slower."""
    found = []
    for part, own_us, tuned_us in ((Stage.DECODE, 330.0, 30.0), (Stage.REDUCE, 6.0, 18.0)):
        one = replace(entry(point(part, 1, 1, 1000)), median_us=tuned_us)
        own = replace(one.incumbents["default"], median_us=own_us)
        found.append(published(DECODE_PROBLEM, replace(one, incumbents={"default": own})))
    room = rows(estimate(profile, found), Phase.DECODE)["attention_decode"].headroom
    assert room.gain == pytest.approx(336 / 48)


@pytest.mark.parametrize(
    ("call_us", "gain"),
    [
        (3200.0, 2.1),  # it reads prompts by the first problem alone
        (10_100.0, 1.1),
        (6700.0, (3200 + 10_200) / (3200 / 2.1 + 10_200 / 1.1)),  # it runs one after the other
    ],
)
def test_the_time_of_a_call_tells_which_of_a_models_problems_ran(tmp_path, call_us, gain):
    """Latent attention reads prompts in two ways, and a step takes one of them."""
    trace = TraceWriter()
    trace.step(*[(EXTEND, call_us)] * 4, mark="step[EXTEND bs=1 toks=8192]")
    found = []
    for heads, own_us, faster in ((2, 3200.0, 2.1), (4, 10_200.0, 1.1)):
        one = replace(entry(point(Stage.EXTEND, 1, 8192, 0)), median_us=own_us / faster)
        own = replace(one.incumbents["default"], median_us=own_us)
        problem = replace(EXTEND_PROBLEM, q_heads=heads * EXTEND_PROBLEM.kv_heads)
        found.append(published(problem, replace(one, incumbents={"default": own})))
    known = estimate(read([trace.write(tmp_path / "b.trace.json")]), found)
    assert rows(known, Phase.PREFILL)["attention_extend"].headroom.gain == pytest.approx(gain)


def test_predicted_results_count_where_none_is_measured(profile):
    predicted = decode_winners(Status.PREDICTED)
    both = [*predicted, *decode_winners(us=149.0)]
    assert rows(estimate(profile, predicted), Phase.DECODE)["attention_decode"].headroom.basis is (
        Basis.PREDICTED
    )
    assert rows(estimate(profile, both), Phase.DECODE)["attention_decode"].headroom.basis is (
        Basis.MEASURED
    )


def test_results_of_another_phase_say_nothing(profile):
    extend = published(EXTEND_PROBLEM, entry(point(Stage.EXTEND, 1, 512, 0)))
    found = estimate(profile, [extend])
    assert rows(found, Phase.PREFILL)["attention_extend"].headroom.basis is Basis.MEASURED
    assert rows(found, Phase.DECODE)["attention_decode"].headroom.basis is Basis.ELSEWHERE


def test_files_in_use_leave_nothing_to_gain(profile):
    found = estimate(profile, decode_winners(), in_use=["decode_attention"])
    row = rows(found, Phase.DECODE)["attention_decode"]
    assert (row.headroom.basis, row.saved) == (Basis.IN_USE, 0)
    assert "decode_attention" not in found.worth()
    assert "tuned file in use" in render_estimate(found)


def test_an_engine_without_a_family_has_nothing_to_tune_there(profile):
    found = estimate(profile, tunable=["fused_moe"])
    assert rows(found, Phase.DECODE)["attention_decode"].headroom is None
    assert list(found.worth()) == ["fused_moe"]


def test_the_most_valuable_kind_comes_first(profile):
    assert list(estimate(profile).worth()) == ["decode_attention", "fused_moe", "extend_attention"]


def test_the_table_fits_80_columns_and_names_what_it_does_not_know(profile):
    text = render_estimate(estimate(profile, decode_winners()))
    assert max(map(len, text.splitlines())) <= 80
    assert "decode: 1.0 ms, 91%, 10 steps of 1 to 8 sequences" in text
    assert MYSTERY in text
    assert "Families know 99.1% of the kernels' time." in text


def test_json_has_all_kernels_and_steps(profile):
    found = estimate(profile).as_json()
    assert found["device"] == "NVIDIA H100 80GB HBM3"
    assert found["engine"] == "sglang"
    assert {kernel["name"] for kernel in found["kernels"]} >= {MOE, MYSTERY, DECODE}
    assert [s["sequences"] for s in found["steps"] if s["phase"] == "decode"] == [1, 8]
    shares = [row["share"] for row in found["phases"][0]["families"]]
    assert sum(shares) == pytest.approx(1)
    assert GAPS not in {row["family"] for row in found["phases"][1]["families"]}
