"""Traces become profiles: steps, families, gaps; broken files become one clear error."""

import gzip
import json
import random
from dataclasses import replace

import pytest
from profile_traces import COPY, CUBLAS, DECODE, EXTEND, FLASH, MOE, NCCL, REDUCE, TraceWriter

from tuner.errors import MalformedTrace
from tuner.profile import GAPS, Phase, Step, read
from tuner.profile.profile import FamilyTime

PREFILL_STEP = ((CUBLAS, 10.0), (EXTEND, 100.0), (MOE, 50.0))
DECODE_STEP = ((CUBLAS, 3.0), (DECODE, 20.0), (REDUCE, 2.0), (MOE, 30.0), (NCCL, 4.0), (COPY, 1.0))
SAMPLING = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>(float*, int)"


def served(marks=True):
    """A prompt of 512 tokens, then three decode steps of eight sequences."""
    trace = TraceWriter()
    trace.step(*PREFILL_STEP, mark="step[EXTEND bs=1 toks=512]" if marks else "")
    for _ in range(3):
        trace.idle(5)
        mark = "step[DECODE bs=8]" if marks else ""
        trace.step(*DECODE_STEP, mark=mark, graph=True, gap=0.5)
        trace.step((SAMPLING, 3.0))
    return trace


@pytest.mark.parametrize("name", ["a.trace.json", "a.trace.json.gz"])
def test_a_marked_trace_gives_times_by_family_and_phase(tmp_path, name):
    profile = read([served().write(tmp_path / name)])
    assert profile.device == "NVIDIA H100 80GB HBM3"
    assert profile.times(Phase.PREFILL) == pytest.approx(
        {"attention_extend": 100, "fused_moe": 50, "cublas": 10}
    )
    assert profile.times(Phase.DECODE) == pytest.approx(
        {"fused_moe": 90, "attention_decode": 66, "nccl": 12, "cublas": 9, "sampling": 9,
         "copies": 3, GAPS: 24}
    )  # fmt: skip
    assert [replace(step, families={}) for step in profile.steps] == [
        Step(Phase.DECODE, 8, 0, 3, pytest.approx(187.5)),
        Step(Phase.PREFILL, 1, 512, 1, pytest.approx(160)),
    ]
    decode = profile.steps[0].families
    assert decode["fused_moe"] == FamilyTime(3, pytest.approx(90))
    assert "sampling" not in decode  # it runs between two steps


def test_a_step_counts_once_where_something_is_launched_outside_of_its_mark(tmp_path):
    """An H100 ran it while it drew the step's mark."""
    trace = TraceWriter()
    for _ in range(8):
        trace.step(*DECODE_STEP, mark="step[DECODE bs=8]", graph=True)
        trace.now -= 5  # while the step is drawn
        trace.step((SAMPLING, 3.0))
        trace.now += 50
    (step,) = read([trace.write(tmp_path / "a.trace.json")]).steps
    assert step.count == 8


def test_phases_are_told_by_kernels_where_the_engine_marks_no_steps(tmp_path):
    marked = read([served().write(tmp_path / "marked.trace.json")])
    plain = read([served(marks=False).write(tmp_path / "plain.trace.json")])
    assert plain.kernels == marked.kernels
    assert plain.steps == ()
    assert "names of attention's kernels" in plain.told_by


def test_attention_in_a_graph_is_decode_where_both_phases_run_one_kernel(tmp_path):
    trace = TraceWriter()
    trace.step((CUBLAS, 7.0), (FLASH, 100.0))
    trace.step((CUBLAS, 3.0), (FLASH, 20.0), graph=True)
    profile = read([trace.write(tmp_path / "a.trace.json")])
    assert profile.times(Phase.PREFILL) == pytest.approx({"flash_attention": 100, "cublas": 7})
    assert profile.times(Phase.DECODE) == pytest.approx({"flash_attention": 20, "cublas": 3})


def test_nothing_is_guessed_where_nothing_tells_the_phase(tmp_path):
    trace = TraceWriter()
    trace.step((CUBLAS, 7.0), (FLASH, 100.0))
    profile = read([trace.write(tmp_path / "a.trace.json")])
    assert set(profile.times(Phase.UNKNOWN)) == {"flash_attention", "cublas"}
    assert profile.told_by.startswith("nothing")


def test_steps_of_vllm_may_hold_prompts_and_decode_at_once(tmp_path):
    trace = TraceWriter()
    trace.step(*PREFILL_STEP, mark="execute_context_1(512)_generation_0(0)")
    trace.step(*PREFILL_STEP, mark="execute_context_2(700)_generation_3(3)")
    trace.step(*DECODE_STEP, mark="execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_8(sq8sk9)")
    profile = read([trace.write(tmp_path / "a.trace.json")])
    assert {(s.phase, s.sequences, s.new_tokens) for s in profile.steps} == {
        (Phase.PREFILL, 1, 512),
        (Phase.MIXED, 5, 700),
        (Phase.DECODE, 8, 0),
    }


def test_a_pause_without_requests_is_no_gap(tmp_path):
    trace = TraceWriter()
    trace.step(*DECODE_STEP, mark="step[DECODE bs=8]")
    trace.idle(2_000_000)
    trace.step(*DECODE_STEP, mark="step[DECODE bs=8]")
    profile = read([trace.write(tmp_path / "a.trace.json")])
    assert GAPS not in profile.times()
    assert profile.idle_us == pytest.approx(2_000_000)


def test_time_of_kernels_that_run_side_by_side_is_counted_once(tmp_path):
    trace = TraceWriter()
    trace.step((NCCL, 100.0), mark="step[DECODE bs=8]")
    trace.now -= 60
    trace.step((MOE, 80.0), mark="step[DECODE bs=8]")
    times = read([trace.write(tmp_path / "a.trace.json")]).times()
    assert times == pytest.approx({"nccl": 100, "fused_moe": 20})


def test_a_folder_stands_for_its_lowest_rank(tmp_path):
    for rank in (1, 2):
        served().write(tmp_path / f"1732-TP-{rank}.trace.json.gz")
    (tmp_path / "server_args.json").write_text("{}")
    assert read([tmp_path]).kernels == read([tmp_path / "1732-TP-1.trace.json.gz"]).kernels


def test_traces_of_stages_add_up(tmp_path):
    for stage, steps in (("EXTEND", PREFILL_STEP), ("DECODE", DECODE_STEP)):
        trace = TraceWriter()
        trace.step(*steps, mark=f"step[{stage} bs=4]")
        trace.write(tmp_path / f"1732-TP-0-{stage}.trace.json.gz")
    profile = read([tmp_path])
    assert profile.time_us(Phase.PREFILL) == pytest.approx(160)
    assert profile.time_us(Phase.DECODE) == pytest.approx(60)


def test_values_that_span_the_windows_of_the_reader_are_read_whole(tmp_path, monkeypatch):
    path = served().write(tmp_path / "a.trace.json.gz")
    whole = read([path])
    for size in (1, 7, 64):
        monkeypatch.setattr("tuner.profile.events._CHUNK", size)
        assert read([path]) == whole


def test_a_list_of_events_is_a_trace_too(tmp_path):
    path = served().write(tmp_path / "a.trace.json")
    events = tmp_path / "list.json"
    events.write_text(json.dumps(json.loads(path.read_text())["traceEvents"]))
    assert read([events]).kernels == read([path]).kernels


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "this is no trace"),
        (b"hello", "this is no trace"),
        (b'{"traceEvents": 3}', "traceEvents is no list"),
        (b'{"traceEvents": []}', "holds no events"),
        (b'{"config": 1}', "holds no events"),
        (b'{"traceEvents": [{"ph": "X"}', "ends in the middle"),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a"}]}', "holds no kernel"),
        (gzip.compress(b'{"traceEvents": [' * 50, mtime=0)[:-9], "ends in the middle"),
        (b'{"traceEvents": []} {}', "more text"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_next_step(tmp_path, content, says):
    path = tmp_path / "a.trace.json"
    path.write_bytes(content)
    with pytest.raises(MalformedTrace, match=says):
        read([path])


def test_a_missing_file_and_a_folder_without_traces_are_refused(tmp_path):
    with pytest.raises(MalformedTrace, match="cannot be read: No such file"):
        read([tmp_path / "none.json"])
    with pytest.raises(MalformedTrace, match="has no trace"):
        read([tmp_path])


def test_no_broken_input_gets_past_the_reader(tmp_path):
    """Bytes are changed, cut and doubled at random; each file is read or refused."""
    path = tmp_path / "a.trace.json"
    good = served().write(path).read_bytes()
    dice, refused = random.Random(17), 0  # noqa: S311
    for _ in range(200):
        data = bytearray(good)
        for _ in range(dice.randint(1, 6)):
            at = dice.randrange(len(data))
            data[at : at + dice.choice((0, 1, 1, 40))] = dice.choice(
                (b"", b'"', b"}", b"[", b"\xff", b"1e999", b"-", b"null", b"\x00", b"9" * 5000)
            )
        if dice.random() < 0.3:
            data = data[: dice.randrange(len(data))]
        packed = gzip.compress(data, 1)
        if dice.random() < 0.3:
            packed = packed[: dice.randrange(len(packed))]
        path.write_bytes(packed if dice.random() < 0.5 else bytes(data))
        try:
            read([path])
        except MalformedTrace:
            refused += 1
    assert refused > 50


def test_events_with_absurd_fields_are_left_out(tmp_path):
    path = served().write(tmp_path / "a.trace.json")
    trace = json.loads(path.read_text())
    kernel = next(e for e in trace["traceEvents"] if e["cat"] == "kernel")
    absurd = [
        {**kernel, "ts": "soon"}, {**kernel, "dur": -4}, {**kernel, "dur": None},
        {**kernel, "name": 4}, {**kernel, "args": 4, "ts": 1e300}, "text", None, [],
        {**kernel, "dur": 0, "args": {"correlation": "x", "device": -5, "graph id": 1 << 90}},
    ]  # fmt: skip
    whole = read([path])
    trace["traceEvents"] += absurd
    path.write_text(json.dumps(trace))
    assert read([path]).time_us() == pytest.approx(whole.time_us())
