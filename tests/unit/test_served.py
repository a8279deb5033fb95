"""The parts of a comparison in a live engine that need no process."""

import json
import math
from dataclasses import replace
from itertools import product

import pytest
from advice_cases import DECODE, EXTEND, SERVED, entries
from advice_cases import winners as measured
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.served.dummy_model import write_dummy_model
from benchmarks.served.loads import Arrival, Load, Speed, median_speed, parse_loads, speed_of
from benchmarks.served.outputs import TOKENS, Answers, check_outputs
from benchmarks.served.request import Advised, Gpu, _name, _visible, advised_for, fits_twice
from benchmarks.served.result import (
    COLUMNS,
    LoadGain,
    ServedComparison,
    Subject,
    backend_advice,
    gains_of,
)
from benchmarks.served.server import Answer, ServerLaunch, flag_value, server_of
from tuner.deploy.bench_report.samples import Key, LoadKind, Pair, Spread, interval, metric, missed
from tuner.devices.table import find_device
from tuner.errors import BadInput, MalformedCheckpoint
from tuner.problems.points import Problem
from tuner.problems.results import Winner

LOAD = Load(2, 8192, 5)


def test_loads_are_read_as_they_are_written():
    loads = parse_loads("1x1024+128, 64x32768+32")
    assert loads == [Load(1, 1024, 128), Load(64, 32768, 32)]
    assert ",".join(map(str, loads)) == "1x1024+128,64x32768+32"


@pytest.mark.parametrize("text", ["", "1x1024", "0x8+1", "1x8+0", "1x8+1,1x8+1", "axb+c", "1X8+1"])
def test_other_loads_are_refused(text):
    with pytest.raises(BadInput, match="load"):
        parse_loads(text)


def test_prompts_are_equal_for_equal_keys_and_begin_differently():
    prompts = LOAD.prompts(3)
    assert prompts == LOAD.prompts(3) != LOAD.prompts(4)
    assert [len(prompt) for prompt in prompts] == [8192, 8192]
    assert prompts[0][:8] != prompts[1][:8]


def test_speed_of_arrivals():
    # Two sequences of five tokens; the second begins late, and the first ends early.
    first = [Arrival(2.0 + 0.5 * at, at + 1) for at in range(5)]
    second = [Arrival(3.0 + 0.5 * at, at + 1) for at in range(5)]
    speed = speed_of(LOAD, 1.0, [first, second])
    assert speed.prefill_tok_s == 2 * 8192 / 2.0
    assert speed.ttft_ms == pytest.approx(1500.0)
    assert speed.tpot_ms == pytest.approx(500.0)
    # From 3.0 s to 4.0 s, each answered two more.
    assert speed.decode_tok_s == pytest.approx(4.0)
    assert speed.total_s == pytest.approx(4.0)


def test_the_median_of_runs_leaves_out_figures_that_a_run_lacks():
    runs = [Speed(1.0, 9.0, None, None, 1.0), Speed(2.0, 8.0, 4.0, 3.0, 2.0)]
    assert median_speed([*runs, Speed(9.0, 7.0, 6.0, 1.0, 3.0)]) == Speed(2.0, 8.0, 5.0, 2.0, 2.0)
    assert median_speed(runs[:1]) == runs[0]


def test_one_token_has_no_decode_speed():
    speed = speed_of(Load(1, 8, 1), 0.0, [[Arrival(1.0, 1)]])
    assert (speed.decode_tok_s, speed.tpot_ms) == (None, None)
    assert {gain.column.field for gain in gains_of(LOAD, [speed], [speed])} == {
        *("prefill_tok_s", "ttft_ms")
    }


def test_tokens_that_arrive_together_count_together():
    speed = speed_of(Load(1, 8, 9), 0.0, [[Arrival(1.0, 1), Arrival(2.0, 5), Arrival(3.0, 9)]])
    assert (speed.decode_tok_s, speed.tpot_ms) == (4.0, 250.0)


def test_gains_are_of_pairs_and_above_1_for_less_time():
    before = [Speed(100.0 * n, 40.0 / n, 10.0, 8.0, 1.0) for n in (1, 2, 4, 3, 5, 6)]
    after = [Speed(150.0 * n, 20.0 / n, 10.0, 16.0, 1.0) for n in (1, 2, 4, 3, 5, 6)]
    prefill, decode, ttft, tpot = gains_of(LOAD, before, after)
    assert (prefill.pair.gain, prefill.pair.gain_low, prefill.pair.gain_high) == (1.5, 1.5, 1.5)
    assert prefill.verdict == "faster"
    assert (ttft.pair.gain, ttft.verdict) == (2.0, "faster")
    assert (decode.pair.gain, decode.verdict) == (1.0, "same")
    assert (tpot.pair.gain, tpot.verdict) == (0.5, "slower")


@pytest.mark.parametrize(
    ("high", "low", "verdict"),
    [
        (0.997, 0.995, "same"),
        (0.994, 0.99, "slower"),
        (1.004, 1.001, "same"),
        (1.01, 1.006, "faster"),
    ],
)
def test_an_interval_that_is_shown_to_reach_one_tells_nothing(high, low, verdict):
    assert gain("1x8192+5", "decode_tok_s", low, high).verdict == verdict


def test_the_interval_of_7_holds_all_and_of_9_leaves_out_the_extremes():
    assert interval([4, 1, 7, 3, 2, 6, 5]) == (1, 7)
    assert interval([*range(9)]) == (1, 7)
    assert interval([5.0]) == (5.0, 5.0)


@pytest.mark.parametrize(("n", "cases"), [(6, 2), (7, 2), (8, 2), (9, 20), (12, 158)])
def test_an_interval_misses_the_median_as_often_as_it_is_said_to(n, cases):
    """Each value is above or below the median with equal chance, so there are 2^n cases."""
    low, high = interval(range(n))
    below = [sum(sides) for sides in product((0, 1), repeat=n)]
    outside = sum(number <= low or number > high for number in below)
    assert (outside, missed(n)) == (cases, cases / 2**n)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=40))
def test_an_interval_holds_the_median(values):
    low, high = interval(values)
    assert low <= sorted(values)[len(values) // 2] <= high


# Outputs

SAME = Answer((-1.0, -2.0, -3.0), tuple(range(TOKENS)), (-0.5,) * TOKENS)


def shifted(answer: Answer, by: float) -> Answer:
    return replace(answer, prompt=tuple(one + by for one in answer.prompt))


def test_outputs_are_alike_within_what_one_server_differs_by():
    noisy = Answers([SAME], [shifted(SAME, 0.1)])
    check = check_outputs(noisy, Answers([shifted(SAME, 0.1)], [SAME]))
    assert check.ok and check.own_mean > 0.0 and check.equal_tokens == TOKENS
    exact = Answers([SAME], [SAME])
    assert check_outputs(exact, exact).ok
    far = Answers([shifted(SAME, 0.5)], [shifted(SAME, 0.5)])
    assert not check_outputs(exact, far).ok
    assert not check_outputs(far, exact).ok


def test_one_token_that_is_far_off_counts():
    many = replace(SAME, prompt=(-1.0,) * 4000)
    broken = replace(many, prompt=(*many.prompt[1:], -9.0))
    check = check_outputs(Answers([many], [many]), Answers([broken], [broken]))
    assert check.mean < 0.01 and not check.ok


def test_what_is_no_number_or_lacks_tokens_is_not_alike():
    good = Answers([SAME], [SAME])
    nan = replace(SAME, chosen=(math.nan,) * TOKENS)
    short = replace(SAME, prompt=SAME.prompt[1:])
    for answer in (nan, short):
        check = check_outputs(good, Answers([answer], [answer]))
        assert not check.ok
        json.dumps(check.as_json(), allow_nan=False)


def test_greedy_tokens_count_up_to_the_first_difference():
    other = replace(
        SAME, tokens=(0, 1, 99, *range(3, TOKENS)), chosen=(-0.5, -0.5, -0.51, *(-5,) * 13)
    )
    check = check_outputs(Answers([SAME], [SAME]), Answers([other], [other]))
    assert check.equal_tokens == 2
    assert check.ok  # what follows another token is another answer


# The report

SUBJECT = Subject(
    **{"model": "Qwen3-30B-A3B", "device": "NVIDIA_H100_80GB_HBM3", "engine": "sglang"},
    **{"engine_version": "0.5.16", "driver": "580.65.06", "tp": 8, "weights": "20 layers of dummy"},
    **{"files": "0" * 64, "before_args": "", "after_args": "", "rounds": 7, "sides": "in turn"},
)


def gain(load: str, field: str, low: float, high: float) -> LoadGain:
    column = next(one for one in COLUMNS if one.field == field)
    (parsed,) = parse_loads(load)
    known = metric(column.metric)
    assert known is not None
    sides = [Spread(value, value, value, 7) for value in (123456.7, 234567.8)]
    pair = Pair(Key(LoadKind.SERVING, 1), known, *sides, high, low, high, run_by_run=True)
    return LoadGain(parsed, column, (123456.7,) * 7, (234567.8,) * 7, pair)


def comparison(*gains: LoadGain, loading: tuple[str, ...] = ()) -> ServedComparison:
    outputs = check_outputs(Answers([SAME], [SAME]), Answers([SAME], [SAME]))
    return ServedComparison(SUBJECT, gains, outputs, loading)


def test_a_report_fits_80_columns():
    found = comparison(
        gain("64x32768+1024", "prefill_tok_s", 1.011, 1.022),
        gain("64x32768+1024", "decode_tok_s", 11.64, 11.79),
        gain("1x1024+128", "tpot_ms", 0.90, 0.99),
    )
    assert all(len(line) <= 80 for line in found.as_text().splitlines()), found.as_text()
    assert found.verdict() == "NOT PROVEN: 2 of 3 faster, 1 slower, 0 within the spread"


def test_few_rounds_prove_nothing():
    """Five rounds hold the median in 94 of 100 cases at most."""
    few = [Speed(100.0, 10.0, 50.0, 8.0, 1.0)] * 5
    slow = [Speed(50.0, 20.0, 25.0, 16.0, 1.0)] * 5
    found = comparison(*gains_of(LOAD, few, slow))
    assert {one.verdict for one in found.gains} == {"same"} and not found.proven
    assert found.verdict().endswith("; too few rounds")
    assert found.as_json()["notes"] == ["5 rounds cannot tell faster from slower: 6 can (--rounds)"]
    enough = comparison(*gains_of(LOAD, few + few[:1], slow + slow[:1]))
    assert {one.verdict for one in enough.gains} == {"slower"}
    assert "rounds" not in enough.verdict()


def test_a_report_of_many_cells_says_what_chance_calls_faster_or_slower():
    speeds = [Speed(100.0, 10.0, 50.0, 8.0, 1.0)] * 6
    loads = [Load(sequences, 1024, 64) for sequences in range(1, 7)]
    many = comparison(*(one for load in loads for one in gains_of(load, speeds, speeds)))
    said = "of 24 unchanged cells, chance calls about 0.8 faster or slower"
    assert said in many.as_text().splitlines()
    assert not comparison(*many.gains[:4]).as_json()["notes"]


def test_what_is_proven():
    good = gain("1x8+4", "tpot_ms", 0.9, 1.1)
    assert comparison(good).proven
    assert not comparison(good, loading=("x: default",)).proven
    assert not comparison(good, gain("1x8+4", "ttft_ms", 0.8, 0.99)).proven


# Backends

BEFORE, AFTER = ["--attention-backend", "fa3"], ["--attention-backend=triton"]


def advice(prefill: LoadGain, decode: LoadGain, before: list[str] = BEFORE) -> str:
    (line,) = backend_advice(server_of("sglang"), before, AFTER, [prefill, decode])
    return line


def test_advice_names_the_backend_of_each_load():
    slower, faster = (0.5, 0.6), (1.5, 1.6)
    prefill = {one: gain("1x8192+128", "prefill_tok_s", *one) for one in (slower, faster)}
    decode = {one: gain("1x8192+128", "decode_tok_s", *one) for one in (slower, faster)}
    same = gain("1x8192+128", "decode_tok_s", 0.9, 1.1)
    assert advice(prefill[slower], decode[slower]) == (
        "1x8192+128: use --attention-backend fa3 here"
    )
    assert "--attention-backend triton here" in advice(prefill[faster], same)
    assert advice(prefill[slower], decode[faster]).endswith(
        "use --prefill-attention-backend fa3 --decode-attention-backend triton here"
    )
    own = advice(prefill[slower], decode[slower], before=[])
    assert own.endswith("leave the attention backend to the engine's own choice here")
    assert backend_advice(server_of("sglang"), AFTER, AFTER, [same]) == []


def test_the_last_flag_counts():
    words = ["--a", "1", "--b=2", "--a=3"]
    assert [flag_value(words, "--a"), flag_value(words, "--b"), flag_value(words, "--c")] == [
        *("3", "2", None)
    ]
    assert flag_value([], "--a") is None


# Servers


def test_advised_flags_replace_what_a_command_says_of_them():
    advised = Advised({"--a": "triton", "--b": "", "NAME": "0"})
    words = ["--x", "1", "--a", "fa3", "--b=2", "--ab", "3", "--a=fa4", "--y"]
    assert advised.added_to(words) == ["--x", "1", "--ab", "3", "--y", "--a", "triton"]
    assert advised.variables == {"NAME": "0"}
    assert Advised().added_to(words) == words
    assert advised.needed_in(words) == words  # a server starts without them
    needed = Advised(needs={"--q": "int8"})
    assert needed.needed_in(words) == needed.added_to(words) == [*words, "--q", "int8"]


def test_the_store_says_the_flags_of_the_server_with_the_files():
    """Prefill was left alone, so decode's flag is the only one."""

    def advised(winners: list[Winner], exported: list[Problem], words: str = "") -> Advised:
        specs = {problem.spec() for problem in exported}
        return advised_for(specs, winners, find_device("H200"), SERVED, words.split())

    fast = measured(DECODE, entries(DECODE, others={"fa3": 40.0}))
    assert advised(fast, [DECODE]) == Advised({"--decode-attention-backend": "triton"})
    # Servers that run Triton already need no flag.
    assert advised(fast, [DECODE], "--attention-backend triton") == Advised()
    slow = advised(measured(EXTEND, entries(EXTEND, others={"fa3": 5.0})), [EXTEND])
    (note,) = slow.notes
    assert not slow.flags
    assert note.startswith(
        f"files that are not advised for these servers: {EXTEND.spec()}: leave it: tuned Triton is "
        "slower"
    )
    unknown = advised(fast, [DECODE, EXTEND])
    assert unknown.flags == {"--decode-attention-backend": "triton"}
    assert "no times of 1 of 2 exported problems" in unknown.notes[0]
    assert advised([], []) == Advised()


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_flags_of_a_user_come_last(engine):
    launch = ServerLaunch("0.24.0", "/m", 8000, 2, ("--x", "1"), dummy=True, memory=0.42)
    words = server_of(engine).command(launch)
    assert words[0] == f"benchmarks.served.{engine}_dummy"
    assert words[-2:] == ["--x", "1"]
    assert {"/m", "8000", "2", "dummy", "0.42"} <= {*words}


def test_memory_for_two():
    gpus = [Gpu(0, "a", "1", 80_000, 80_000), Gpu(1, "a", "1", 80_000, 40_000)]
    assert fits_twice(gpus, 8 * 2**30, 1, (0.42, 0.42))
    assert not fits_twice(gpus, 9 * 2**30, 1, (0.42, 0.42))
    assert fits_twice(gpus, 16 * 2**30, 2, (0.42, 0.42))


def test_the_gpus_that_servers_see():
    gpus = [Gpu(number, "a", "1", 1, 1) for number in range(3)]
    shown = {
        text: [gpu.index for gpu in _visible(gpus, text)] for text in ("", "2, 0", "7", "GPU-1")
    }
    assert shown == {"": [0, 1, 2], "2, 0": [2, 0], "7": [], "GPU-1": [0, 1, 2]}


def test_a_model_is_called_by_its_folder_or_file(tmp_path):
    for name in ("config.json", "rank.json"):
        (tmp_path / "m").mkdir(exist_ok=True)
        (tmp_path / "m" / name).touch()
    paths = [tmp_path / "m", tmp_path / "m/config.json", tmp_path / "m/rank.json"]
    assert [_name(str(path)) for path in paths] == ["m", "m", "rank"]
    assert _name("Qwen/Qwen3-30B-A3B") == "Qwen/Qwen3-30B-A3B"


# Dummy models

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_deepseek.Config"},
    "num_hidden_layers": 4,
    "vocab_size": 32,
    "layer_types": ["a", "b", "c", "d"],
    "quantization_config": {"ignored_layers": ["w", "x", "y", "z"]},
}


def test_a_dummy_model_is_cut_and_runs_no_code_of_the_folder(tmp_path):
    path = tmp_path / "config.json"
    pattern = {"hybrid_override_pattern": "ME*E", "other": "four"}
    text_config = {"num_hidden_layers": 4, "n": [1] * 4, **pattern}
    path.write_text(json.dumps({**CONFIG, "text_config": text_config}))
    write_dummy_model(path, 2, tmp_path / "made")
    made = json.loads((tmp_path / "made/config.json").read_text())
    assert made["num_hidden_layers"] == 2 and made["layer_types"] == ["a", "b"]
    cut = {"num_hidden_layers": 2, "n": [1, 1], "hybrid_override_pattern": "ME", "other": "four"}
    assert made["text_config"] == cut
    assert made["quantization_config"] == CONFIG["quantization_config"]
    assert "auto_map" not in made
    words = json.loads((tmp_path / "made/tokenizer.json").read_text())["model"]["vocab"]
    assert words["t17"] == 17 and len(words) == 32


@pytest.mark.parametrize(
    ("config", "layers", "said"),
    [(CONFIG, 5, "the model has 4 layers"), (CONFIG, 0, "4 layers"), ({}, None, "vocab_size")],
)
def test_other_configs_are_refused(tmp_path, config, layers, said):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(MalformedCheckpoint, match=said):
        write_dummy_model(tmp_path, layers, tmp_path / "made")
    assert not (tmp_path / "made").exists()
