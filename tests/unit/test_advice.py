"""Advice: leave it, these files, or these files and these flags, and never from partial data."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import pytest
from advice_cases import (
    CHANNEL,
    DECODE,
    EXTEND,
    GEMM,
    MOE,
    NONE,
    OTHER_GEMM,
    OWN,
    SERVED,
    TUNED,
    Served,
    entries,
    winners,
)

from tuner.backends.registry import Backend
from tuner.devices.table import find_device
from tuner.engines.dispatch_table import NOT_KNOWN
from tuner.engines.engine import Engine
from tuner.engines.settings import of_model, server_settings
from tuner.errors import BadInput
from tuner.export.advice import Advice, Verdict, advise, advise_all, flags_to_start
from tuner.export.plan import ModelPlan, Reads, plan_model
from tuner.export.servers import for_servers
from tuner.problems.points import Config, Problem, ServerSettings
from tuner.problems.registry import parse_problem
from tuner.problems.results import Entry, Incumbent, Status
from tuner.tuning.gains import CLEAR_GAIN, NOISE

H200, H100 = map(find_device, ("H200", "H100"))
ON_TRITON = {"--attention-backend": "triton"}


@pytest.fixture
def kernel_0_4_6(monkeypatch):
    """The version of the backends that is installed here."""
    monkeypatch.setattr(Backend, "version", "sglang-kernel 0.4.6")
    monkeypatch.setattr(Backend, "apart", True)


def asked(
    problem: Problem,
    some: list[Entry],
    flags: Mapping[str, str] | None = None,
    device: str = "H200",
    served: tuple[str, str] = SERVED,
    **place: str,
) -> Advice:
    found = winners(problem, some, device, **place)
    return advise(problem, found, find_device(device), served, flags or {})


def left(advice: Advice) -> str:
    """Why a problem is left alone."""
    assert (advice.verdict, advice.winners, advice.flags) == (Verdict.LEAVE, (), {})
    return advice.reason


# Servers that run Triton


def test_files_are_advised_where_they_are_faster_than_tritons_own():
    advice = asked(MOE, entries(MOE))
    assert (advice.verdict, advice.flags, advice.gain) == (Verdict.FILES, {}, pytest.approx(2))
    assert str(advice) == (
        f"{MOE.spec()}: these files: 2.00x as fast (geometric mean of 2 sizes), over the server's "
        "own choice: Triton's default configurations"
    )
    assert advice.as_json() == {
        "problem": MOE.spec(),
        "advice": "these files",
        "reason": advice.reason,
        "gain": pytest.approx(2),
        "flags": {},
    }
    assert {winner.entry.without_us for winner in advice.winners} == {"default"}


@pytest.mark.parametrize("status", [Status.OK, Status.PREDICTED])
def test_nothing_is_written_where_tritons_own_stays(status):
    kept = entries(MOE, 20.0, 20.0, config=OWN, status=status)
    assert "nothing was found that is faster" in left(asked(MOE, kept))
    untuned = [replace(one, incumbents={}, status=Status.INCUMBENT) for one in entries(MOE)]
    assert "nothing was found that is faster" in left(asked(MOE, untuned))


def test_a_size_that_is_slower_keeps_what_runs():
    some = [*entries(MOE, sizes=(1,)), *entries(MOE, 21.0, 20.0, sizes=(8,))]
    advice = asked(MOE, some)
    assert advice.verdict is Verdict.FILES
    assert [(w.entry.config, w.status) for w in advice.winners] == [
        *[(TUNED, Status.OK)] * 2,
        *[(OWN, Status.INCUMBENT)] * 2,
    ]
    assert "stays" in advice.winners[-1].entry.reason
    assert left(asked(MOE, entries(MOE, 21.0, 20.0))).startswith("nothing was found")


@pytest.mark.parametrize("problem", [MOE, EXTEND])
def test_files_that_are_as_fast_within_the_noise_are_not_advised(problem):
    for tuned_us in (20.0 * (1 + NOISE / 2), 20.0, 20.0 * (1 - NOISE / 2)):
        assert left(asked(problem, entries(problem, tuned_us, 20.0), ON_TRITON))
    one = [*entries(MOE, 20.05, 20.0, sizes=(1,)), *entries(MOE, sizes=(8,))]
    assert asked(MOE, one).verdict is Verdict.FILES


def test_attention_with_a_slower_size_is_left_alone():
    some = [*entries(DECODE, sizes=(1,)), *entries(DECODE, 21.0, 20.0, sizes=(8,))]
    said = left(asked(DECODE, some, ON_TRITON))
    assert said.startswith("tuned Triton is slower at 1 of 2 sizes, 0.95x as fast at 8x1+1024, ")


def test_what_the_engine_cannot_run_is_replaced():
    advice = asked(MOE, entries(MOE, own=None))
    assert (advice.verdict, advice.gain) == (Verdict.FILES, None)
    assert "cannot run" in advice.reason


@pytest.mark.parametrize("status", [Status.NOT_RECORDED, Status.CRASHED, Status.TIMED_OUT])
def test_what_was_not_compared_with_the_engines_own_does_not_replace_it(status):
    """No time of the engine's configuration is no proof that it cannot run."""
    known = Incumbent(OWN, status)
    unheld = [replace(one, incumbents={"default": known}) for one in entries(MOE, sizes=(8,))]
    advice = asked(MOE, [*entries(MOE, sizes=(1,)), *unheld])
    assert [(w.entry.config, w.status) for w in advice.winners] == [
        *[(TUNED, Status.OK)] * 2,
        *[(OWN, Status.INCUMBENT)] * 2,
    ]
    assert "not compared with the server's own choice" in advice.winners[-1].entry.reason
    # One gemm that cannot run stops the layer, whatever is known of the other one.
    down = replace(unheld[1], incumbents={"default": Incumbent(OWN, Status.OUT_OF_RESOURCES)})
    advice = asked(MOE, [unheld[0], down])
    assert {winner.entry.config for winner in advice.winners} == {TUNED}
    # An entry of attention is for several sizes, so all of them stay.
    some = entries(DECODE)
    some[0] = replace(some[0], incumbents={"default": known})
    said = "no time is known of the server's own choice at 1x1+1024"
    assert left(asked(DECODE, some, ON_TRITON)) == said


# Servers that run another backend


def test_a_store_with_only_tritons_times_advises_no_flag():
    """Tuned decode is twice as fast as Triton's default, and FlashAttention 3 was not measured."""
    for problem in (DECODE, EXTEND):
        assert left(asked(problem, entries(problem))) == (
            "servers run FlashAttention 3, which was not measured beside Triton"
        )


def test_flags_are_advised_where_triton_is_faster_at_every_point():
    advice = asked(DECODE, entries(DECODE, others={"fa3": 40.0}))
    assert (advice.verdict, advice.gain) == (Verdict.FLAGS, pytest.approx(2))
    assert advice.flags == {"--decode-attention-backend": "triton"}
    assert str(advice) == (
        f"{DECODE.spec()}: these files and these flags, --decode-attention-backend triton: 2.00x "
        "as fast (geometric mean of 2 sizes), over the server's own choice: FlashAttention 3"
    )
    assert {winner.entry.without_us for winner in advice.winners} == {"fa3"}


def test_prefill_and_decode_are_advised_apart():
    """As on an H100: prefill through Triton is 2.7 times as slow, and decode is faster."""
    slow = winners(EXTEND, entries(EXTEND, 2483.0, 2786.0, {"fa3": 922.0}), "H100")
    fast = winners(DECODE, entries(DECODE, 20.0, 90.0, {"fa3": 54.0}), "H100")
    decode, extend = advise_all([*slow, *fast], H100, SERVED)
    assert decode.verdict is Verdict.FLAGS
    assert decode.flags == {"--decode-attention-backend": "triton"}
    said = left(extend)
    assert said.startswith("tuned Triton is slower at 2 of 2 sizes, 0.37x as fast at 1x1+1024, ")
    assert said.endswith("over the server's own choice: FlashAttention 3")


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (1 - 0.9 * NOISE, Verdict.FLAGS),  # as fast, within the noise
        (1 - 1.1 * NOISE, Verdict.LEAVE),
    ],
)
def test_a_difference_within_the_noise_is_none(ratio, verdict):
    some = [
        *entries(DECODE, others={"fa3": 60.0}, sizes=(1,)),
        *entries(DECODE, others={"fa3": 20.0 * ratio}, sizes=(8,)),
    ]
    assert asked(DECODE, some).verdict is verdict


def test_a_flag_needs_a_clear_gain():
    as_fast = entries(DECODE, others={"fa3": 20.0 * (1 + 0.9 * CLEAR_GAIN)})
    assert left(asked(DECODE, as_fast)) == ("servers run FlashAttention 3, and Triton is no faster")


def test_every_point_must_be_measured_beside_the_other_backend():
    whole = entries(DECODE, others={"fa3": 40.0})
    half = [*whole[:2], *entries(DECODE, sizes=(8,))]
    assert left(asked(DECODE, half)).endswith("was not measured beside Triton at 1 of 2 sizes")
    for status in (Status.PREDICTED, Status.INCUMBENT):
        weaker = [*whole[:2], *(replace(one, status=status) for one in whole[2:])]
        assert left(asked(DECODE, weaker)).endswith("at 1 of 2 sizes")
    other = {"fa3": Incumbent(NONE, Status.CRASHED, None, backend="fa3")}
    crashed = [replace(one, incumbents={**one.incumbents, **other}) for one in whole]
    assert "was not measured" in left(asked(DECODE, crashed))


# Servers that run Triton where a file has an entry

NEWEST = "0.5.23"
SHIPPED = Config({"X": 3})


def by_file(
    some: list[Entry], flags: Mapping[str, str] | None = None, device: str = "L40S"
) -> Advice:
    return asked(CHANNEL, some, flags, device, ("sglang", NEWEST), engine_version=NEWEST)


def chosen(advice: Advice) -> list[tuple[Config, Status]]:
    return [(winner.entry.config, winner.status) for winner in advice.winners]


def with_shipped_entry(some: list[Entry], us: float | None) -> list[Entry]:
    known = {"shipped": Incumbent(SHIPPED, Status.OK if us else Status.INCUMBENT, us)}
    return [replace(one, incumbents={**one.incumbents, **known}) for one in some]


@pytest.mark.parametrize("device", ["H200", "L40S"])
def test_an_entry_is_advised_where_it_is_faster_than_the_kernel_that_runs_without_it(device):
    some = [
        *entries(CHANNEL, others={"cutlass": 20.0}, sizes=(1,)),
        *entries(CHANNEL, others={"cutlass": 9.0}, sizes=(8,)),
        *entries(CHANNEL, sizes=(64,)),  # twice as fast as the default, which does not run
    ]
    advice = by_file(some, device=device)
    assert chosen(advice) == [(TUNED, Status.OK), *[(NONE, Status.INCUMBENT)] * 2]
    assert (advice.verdict, advice.flags, advice.gain) == (Verdict.FILES, {}, pytest.approx(2))
    off = {"SGLANG_ENABLE_FP8_GEMM_CONFIG_TUNE": "0"}
    assert "files are read only without" in left(by_file(some, off, device))


def test_no_file_is_advised_where_no_entry_was_faster_than_the_kernel_that_runs_without_it():
    cutlass = "servers run CUTLASS (sgl_kernel's fp8_scaled_mm), which was not measured"
    assert left(by_file(entries(CHANNEL))) == cutlass
    copied = [replace(one, incumbents={}, status=Status.COPIED) for one in entries(CHANNEL)]
    assert left(by_file(copied)) == cutlass
    slower = entries(CHANNEL, others={"cutlass": 9.0})
    assert left(by_file(slower)) == "nothing was found that is faster than the server's own choice"


def test_the_entry_that_the_engine_ships_stays_unless_it_is_beaten():
    some = [
        *with_shipped_entry(entries(CHANNEL, sizes=(1,)), 30.0),
        *with_shipped_entry(entries(CHANNEL, others={"cutlass": 20.0}, sizes=(8,)), 9.0),
        *with_shipped_entry(entries(CHANNEL, sizes=(64,)), None),
    ]
    advice = by_file(some)
    assert chosen(advice) == [(TUNED, Status.OK), *[(SHIPPED, Status.INCUMBENT)] * 2]
    assert advice.gain == pytest.approx(3)
    assert "over the server's own choice: Triton's shipped configurations" in advice.reason


def test_a_plan_says_that_files_are_read_where_entries_decide():
    server = Served()
    server.version = NEWEST
    some = entries(CHANNEL, others={"cutlass": 20.0}, without_us="cutlass")

    def planned(flags: Mapping[str, str]) -> ModelPlan:
        found = winners(CHANNEL, some, engine_version=NEWEST)
        return plan_model([CHANNEL], cast("Engine", server), H200, flags, found, lambda _: None)

    (one,) = planned({}).problems
    assert (one.reads, one.to_tune, one.gain) == (Reads.YES, True, pytest.approx(2))
    assert "Triton by a file" in planned({}).as_text().replace("\n", " ")
    (one,) = planned({"SGLANG_ENABLE_FP8_GEMM_CONFIG_TUNE": "0"}).problems
    assert (one.reads, one.to_tune) == (Reads.NO, False)


# Stale data


def test_times_of_another_release_or_card_advise_nothing():
    some = entries(MOE)
    assert left(asked(MOE, some, engine_version="0.5.12")) == (
        "it was tuned for sglang 0.5.12, and the servers run sglang 0.5.16"
    )
    assert "servers run sglang 0.5.23" in left(asked(MOE, some, served=("sglang", "0.5.23")))
    elsewhere = advise(MOE, winners(MOE, some, "H100"), H200, SERVED)
    assert left(elsewhere) == f"it was tuned on {H100.name}"


@pytest.mark.usefixtures("kernel_0_4_6")
def test_times_beside_another_version_of_the_backend_advise_no_flag():
    some = entries(DECODE, others={"fa3": 40.0})
    there, here = "flashinfer-python 0.6.14, sglang-kernel 0.4.5", "sglang-kernel 0.4.6"
    assert left(asked(DECODE, some, backends=there)) == (
        f"FlashAttention 3 was measured as of {there}, and {here} is installed here"
    )
    assert asked(DECODE, some, backends=here).verdict is Verdict.FLAGS


# Flags of servers


def test_files_for_a_release_older_than_all_that_were_read_are_advised_with_the_doubt():
    """0.5.16 runs FlashAttention 3 here; what 0.5.12 runs nobody knows, nor its flags."""
    advice = asked(DECODE, entries(DECODE), engine_version="0.5.12", served=("sglang", "0.5.12"))
    assert (advice.verdict, advice.flags, advice.gain) == (Verdict.FILES, {}, pytest.approx(2))
    assert "the server's own choice was not measured" in advice.reason
    assert "(by the rules of 0.5.16, the oldest release read)" in advice.reason
    assert advice.reason.endswith("whether it reads tuned files is not known")


def test_a_plan_for_a_release_older_than_all_that_were_read_promises_nothing():
    old = Served()
    old.version = "0.5.12"
    (planned,) = plan_model([DECODE], cast("Engine", old), H200, {}, [], lambda _: None).problems
    assert (planned.reads, planned.to_tune) == (Reads.UNKNOWN, True)
    assert "not known" in ModelPlan(H200, [planned]).as_text()


def test_server_args_decide_what_files_are_over():
    some = entries(DECODE, others={"fa3": 5.0})
    assert "slower" in left(asked(DECODE, some))
    advice = asked(DECODE, some, ON_TRITON)
    assert (advice.verdict, advice.flags, advice.gain) == (Verdict.FILES, {}, pytest.approx(2))
    assert "FlashInfer" not in (said := left(asked(DECODE, some, {"--attention-backend": "fa3"})))
    assert "slower" in said


def test_another_flag_makes_other_times_count():
    """Measured beside FlashAttention 3, and the servers are told to run FlashInfer."""
    some = entries(DECODE, others={"fa3": 40.0})
    flags = {"--attention-backend": "flashinfer"}
    assert left(asked(DECODE, some, flags)) == (
        "servers run FlashInfer, which was not measured beside Triton"
    )
    both = entries(DECODE, others={"fa3": 4.0, "flashinfer": 40.0})
    advice = asked(DECODE, both, flags)
    assert advice.verdict is Verdict.FLAGS
    assert advice.flags == {"--decode-attention-backend": "triton"}


def test_what_was_installed_when_it_was_tuned_settles_what_runs():
    """DeepGEMM where it is installed: the rules alone cannot say."""
    assert "it is not known which of them" in left(asked(GEMM, entries(GEMM)))
    triton = asked(GEMM, entries(GEMM, without_us="default"))
    assert triton.verdict is Verdict.FILES
    slower = entries(GEMM, others={"deep_gemm": 7.0}, without_us="deep_gemm")
    assert left(asked(GEMM, slower)).startswith("tuned Triton is slower at 2 of 2 sizes, 0.70x")
    faster = entries(GEMM, others={"deep_gemm": 14.0}, without_us="deep_gemm")
    advice = asked(GEMM, faster)
    assert (advice.verdict, advice.flags) == (Verdict.FLAGS, {"--fp8-gemm-backend": "triton"})
    mixed = [*entries(GEMM, sizes=(1,), without_us="default"), *faster[1:]]
    assert "it is not known which of them" in left(asked(GEMM, mixed))
    # With other flags, what was seen without flags is no answer.
    flags = {"--fp8-gemm-backend": "cutlass"}
    assert asked(GEMM, entries(GEMM, without_us="default"), flags).verdict is Verdict.LEAVE


# Winners know the servers that they were found for

INT8 = parse_problem("fused_moe:E=8,N=512,K=1024,top_k=2,dtype=int8_w8a8,per_channel_quant")
STORED = "int8_w8a8 compressed-tensors int8"
INT8_FLAG = {"--quantization": "w8a8_int8"}


def of_server(some: list[Entry], *server: str) -> list[Entry]:
    return [replace(one, server=ServerSettings(*server)) for one in some]


def test_flags_without_which_servers_do_not_start_are_told_with_the_files():
    own = of_server(entries(INT8), "", STORED)
    advice = asked(INT8, own)
    assert (advice.verdict, advice.flags, advice.presumed) == (Verdict.FLAGS, INT8_FLAG, True)
    assert "over the server's own choice with --quantization w8a8_int8: Triton's" in advice.reason
    assert asked(INT8, own, INT8_FLAG).verdict is Verdict.FILES  # the servers have it
    # Whatever else the flag changes, servers of this checkpoint have it.
    both = [*winners(INT8, own), *winners(GEMM, entries(GEMM))]
    advice = advise_all(both, H200, SERVED, wanted=[GEMM, OTHER_GEMM])
    assert flags_to_start(advice, of_one_model=True) == ["--quantization w8a8_int8"]
    # Servers of another model, whose files are exported beside them, would stop with it.
    other = advise_all([*winners(INT8, own), *winners(MOE, entries(MOE))], H200, SERVED)
    (only,) = flags_to_start(other, of_one_model=False)
    assert only == f"--quantization w8a8_int8 (only servers of {INT8.spec()})"


def test_a_checkpoint_that_is_not_known_is_said_to_be_so():
    old = asked(INT8, entries(INT8))
    assert old.verdict is Verdict.FILES
    assert old.reason.endswith(f"Triton's default configurations; {NOT_KNOWN}")
    for known in (of_server(entries(INT8), "", STORED), of_server(entries(INT8), "MixtralFor")):
        assert NOT_KNOWN not in asked(INT8, known).reason


def test_a_model_that_is_named_counts_before_the_winners_own():
    own = of_server(entries(INT8), "", STORED, "--moe-runner-backend flashinfer_cutlass")
    other = of_model({}, "deepseek-r1-channel-int8")
    advice = asked(INT8, own, other)
    assert (advice.verdict, advice.flags) == (Verdict.FILES, {})


def test_flags_of_the_servers_that_were_tuned_for_are_told_with_the_files():
    own = of_server(entries(DECODE), "Qwen3ForCausalLM", "", "--attention-backend triton")
    advice = asked(DECODE, own)
    assert (advice.verdict, advice.flags) == (Verdict.FLAGS, ON_TRITON)
    # A server of that model without the flag runs FlashAttention 3.
    assert "was not measured" in left(asked(DECODE, own, of_model({}, "qwen3-32b")))


def test_a_flag_must_be_good_for_all_that_it_changes():
    faster = winners(GEMM, entries(GEMM, others={"deep_gemm": 14.0}, without_us="deep_gemm"))
    some = entries(OTHER_GEMM, others={"deep_gemm": 7.0}, without_us="deep_gemm")
    slower = winners(OTHER_GEMM, some)
    (alone,) = advise_all(faster, H200, SERVED)
    assert alone.verdict is Verdict.FLAGS
    both = advise_all([*faster, *slower], H200, SERVED)
    assert {one.verdict for one in both} == {Verdict.LEAVE}
    (untuned,) = advise_all(faster, H200, SERVED, wanted=[GEMM, OTHER_GEMM])
    assert f"--fp8-gemm-backend triton also changes {OTHER_GEMM.spec()}" in left(untuned)
    (apart,) = advise_all(faster, H200, SERVED, wanted=[GEMM, MOE])
    assert apart.verdict is Verdict.FLAGS


def test_a_kernel_that_no_flag_replaces_is_left_alone():
    some = entries(MOE, others={"marlin": 40.0})
    place = {"engine": "vllm", "engine_version": "0.33.0"}
    advice = asked(MOE, some, device="A100", served=("vllm", "0.33.0"), **place)
    assert "no option makes it run Triton" in left(advice)


def test_reports_say_what_servers_run_with_their_flags():
    some = winners(DECODE, entries(DECODE))
    assert {one.entry.without_us for one in for_servers(some, H200, SERVED, {})} == {"fa3"}
    told = for_servers(some, H200, SERVED, ON_TRITON)
    assert {one.entry.without_us for one in told} == {"default"}
    gemms = winners(GEMM, entries(GEMM, without_us="default"))
    kept = for_servers(gemms, H200, SERVED, {})
    assert {one.entry.without_us for one in kept} == {"default"}
    other = for_servers(gemms, H200, SERVED, {"--fp8-gemm-backend": "cutlass"})
    assert {one.entry.without_us for one in other} == {""}  # the server refuses it here


def test_flags_and_variables_are_read_from_one_text():
    assert server_settings("SGLANG_USE_AITER=0 --attention-backend triton --quiet") == {
        "SGLANG_USE_AITER": "0",
        "--attention-backend": "triton",
        "--quiet": "1",
    }
    with pytest.raises(BadInput, match="cannot read the server's flags"):
        server_settings("--a 'b")


@pytest.mark.usefixtures("kernel_0_4_6")
def test_all_environments_of_mixed_winners_count():
    some = entries(DECODE, others={"fa3": 40.0})
    fresh = winners(DECODE, some[:1], backends="sglang-kernel 0.4.6")
    stale = winners(DECODE, some[1:], backends="sglang-kernel 0.4.5")
    advice = advise(DECODE, [*fresh, *stale], H200, SERVED)
    assert "measured as of sglang-kernel 0.4.5" in left(advice)
    told = for_servers([*fresh, *stale], H200, SERVED, {})
    assert "fa3" in told[0].entry.incumbents
    assert not any("fa3" in one.entry.incumbents for one in told[len(fresh) :])


@pytest.mark.usefixtures("kernel_0_4_6")
def test_a_plan_shows_no_gain_over_another_version():
    some = entries(DECODE, others={"fa3": 40.0}, without_us="fa3")
    plans = {
        version: plan_model(
            [DECODE],
            cast("Engine", Served()),
            H200,
            {},
            winners(DECODE, some, backends=f"sglang-kernel {version}"),
            lambda problem: None,
        )
        for version in ("0.4.5", "0.4.6")
    }
    assert plans["0.4.6"].problems[0].gain_words.endswith("measured")
    assert plans["0.4.5"].problems[0].gain_words == "unknown"
    assert "no gain is known of decode_attention" in plans["0.4.5"].as_text()


def test_a_plan_shows_no_gain_over_triton_s_own_where_another_kernel_runs():
    """As `tune` and `export` say: the server's own choice was not measured."""

    def gain(flags: Mapping[str, str]) -> str:
        found = winners(DECODE, entries(DECODE))
        made = plan_model([DECODE], cast("Engine", Served()), H200, flags, found, lambda _: None)
        return made.problems[0].gain_words

    assert gain({}) == "unknown"  # FlashAttention 3 runs
    assert gain(ON_TRITON) == "2.00x measured"
