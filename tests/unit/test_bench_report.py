"""Bench report: the users' own ratios, every form of result, noise."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from draws import times
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.deploy.bench_report import (
    as_dict,
    compare,
    read_results,
    read_samples,
    render_summary,
    render_text,
    summarise,
)
from tuner.deploy.bench_report.readers import parse_samples
from tuner.deploy.bench_report.samples import Comparison, Key, LoadKind
from tuner.deploy.bench_report.tables import summary_dict
from tuner.errors import MalformedBenchmark
from tuner.render import gain_text

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data/cluster/bench"
FORMS = ("decode.log", "bench_serving.txt")
BEFORE = [DATA / f"l40s-32gpu-before-{form}" for form in FORMS]
AFTER = [DATA / f"l40s-32gpu-after-{form}" for form in FORMS]
SWEEP = DATA / "h20-2node-sglang-sweep.md"
SERVING = Key(LoadKind.SERVING, 128, 200, 200, "128")


def compare_files(before: Iterable[Path], after: Iterable[Path]) -> Comparison:
    return compare(
        [s for path in before for s in read_samples(path)],
        [s for path in after for s in read_samples(path)],
    )


def gains() -> dict[tuple[str, int], str]:
    pairs = compare_files(BEFORE, AFTER).pairs
    return {(p.metric.name, p.key.concurrency): gain_text(p.gain) for p in pairs}


def test_the_users_own_ratios():
    found = gains()
    decode = {n: found["decode_throughput", n] for n in (128, 32, 4, 1)}
    assert decode == {128: "1.37x", 32: "1.75x", 4: "3.64x", 1: "1.88x"}
    assert found["output_throughput", 128] == "1.49x"


def decode(running: int, throughput: float, rank: str = "TP0") -> str:
    return (
        f"[2026-11-21 10:00:00 {rank}] Decode batch, #running-req: {running}, #token: 9000, token "
        f"usage: 0.10, cuda graph: True, gen throughput (token/s): {throughput}, #queue-req: 0, "
    )


def prefill(running: int, rank: str = "TP0") -> str:
    return (
        f"[2026-11-21 10:00:00 {rank}] Prefill batch, #new-seq: 1, #new-token: 8192, #cached-token:"
        f" 0, token usage: 0.00, #running-req: {running}, #queue-req: 0, cuda graph: False"
    )


def test_decode_lines_that_count_a_pause_are_left_out_and_counted(tmp_path):
    """The lines of a server that served, paused twice, and took a second prompt while it served."""
    log = tmp_path / "server.log"
    lines = [prefill(0), decode(1, 0.9), decode(1, 254.0), prefill(1), decode(2, 410.0)]
    lines += [prefill(0), decode(1, 4.2), decode(1, 256.0)]
    log.write_text("\n".join(lines))
    results = read_results(log)
    assert [(s.key.concurrency, s.value) for s in results.samples] == [
        (1, 254.0),
        (2, 410.0),
        (1, 256.0),
    ]
    assert results.after_pauses == 2
    assert next(results.notes(log)).startswith(f"{log}: 2 decode lines left out")


@pytest.mark.parametrize(("second", "told"), [(1600.23, True), (1440.0, False)])
def test_before_and_after_in_one_text_are_not_taken_for_runs_of_one_server(tmp_path, second, told):
    runs = [
        f"{name}\n============ Serving Benchmark Result ============\n"
        f"Max request concurrency: 64\nOutput token throughput (tok/s): {value}\n"
        for name, value in (("Before this PR:", 1437.23), ("After:", second))
    ]
    (tmp_path / "pr.md").write_text("".join(runs))
    notes = [*read_results(tmp_path / "pr.md").notes(tmp_path / "pr.md")]
    assert len(notes) == told
    if told:
        lines = (tmp_path / "pr.md").read_text().splitlines()
        head = int(notes[0].partition("head -n ")[2].split()[0])
        assert f"tail -n +$(({head} + 1)) " in notes[0]
        sides = [parse_samples(part) for part in (lines[:head], lines[head:])]
        assert [side[0].value for side in sides] == [1437.23, second]


@pytest.mark.parametrize(
    ("command", "lines", "bad"),
    [
        ("--num-prompts 3000", "Successful requests: 1648", 1352),
        ("", "Successful requests: 98\nFailed requests: 2", 2),
        ("--num-prompts 100", "Successful requests: 98\nFailed requests: 2", 2),
        ("--num-prompts=100", "Successful requests: 100\nFailed requests: 0", 0),
    ],
)
def test_failed_requests_are_told(tmp_path, command, lines, bad):
    log = tmp_path / "run.txt"
    head = "============ Serving Benchmark Result ============"
    log.write_text(f"{command}\n{head}\n{lines}\nOutput token throughput (tok/s): 1915.40\n")
    notes = [*read_results(log).notes(log)]
    assert len(notes) == (bad > 0)
    assert not bad or f"{bad:,} requests failed" in notes[0]


def vllm_run(folder, **changes):
    """A folder with the JSON of a run, as the bench of vLLM saves it."""
    folder.mkdir()
    run = {
        **{"max_concurrency": 64, "num_prompts": 128, "completed": 128, "failed": 0},
        **{"total_input_tokens": 128 * 128, "total_output_tokens": 128 * 128},
        **{"median_ttft_ms": 800.0, "output_throughput": 100.0},
        **changes,
    }
    (folder / "run-1.json").write_text(json.dumps(run, indent=1))
    return folder


@pytest.mark.parametrize(
    "lacks", [{"failed": 64}, {"failed": None}], ids=["counted", "by the prompts asked for"]
)
def test_failed_requests_of_json_make_no_gain(tmp_path, lacks):
    before = vllm_run(tmp_path / "before")
    half = {"completed": 64, "total_input_tokens": 64 * 128, "total_output_tokens": 64 * 128}
    after = vllm_run(tmp_path / "after", **half, median_ttft_ms=400.0, **lacks)
    done = CliRunner().invoke(app, ["bench-report", str(before), str(after)])
    assert done.exit_code == 1
    assert "64 requests failed (run-1.json:1)" in " ".join(done.stderr.split())
    assert "2.00x ?" in done.stdout
    (pair, *_) = compare(read_samples(before), read_samples(after)).pairs
    assert pair.verdict == "unclear"


def test_a_run_in_which_all_requests_failed_is_told(tmp_path):
    zero = {"completed": 0, "failed": 128, "median_ttft_ms": 0.0, "output_throughput": 0.0}
    after = vllm_run(tmp_path / "after", total_input_tokens=0, total_output_tokens=0, **zero)
    assert "128 requests failed" in [*read_results(after).notes(after)][0]
    done = CliRunner().invoke(app, ["bench-report", str(vllm_run(tmp_path / "before")), str(after)])
    assert done.exit_code == 1
    assert "nothing was measured at equal load" in " ".join(done.stderr.split())


def test_arguments_that_a_client_prints_say_what_was_asked_for(tmp_path):
    log = tmp_path / "run.txt"
    log.write_text(
        "benchmark_args=Namespace(backend='sglang-oai', num_prompts=128, seed=1)\n"
        "============ Serving Benchmark Result ============\n"
        "Successful requests: 32\nOutput token throughput (tok/s): 140.0\n"
    )
    assert "96 requests failed" in [*read_results(log).notes(log)][0]


def test_loads_whose_mean_lengths_differ_by_a_token_are_one_load(tmp_path):
    lengths = {"total_input_tokens": 128 * 224}
    before = vllm_run(tmp_path / "before", total_output_tokens=round(128 * 213.4), **lengths)
    after = vllm_run(tmp_path / "after", total_output_tokens=round(128 * 213.6), **lengths)
    comparison = compare(read_samples(before), read_samples(after))
    assert not comparison.only_before
    assert not comparison.only_after
    done = CliRunner().invoke(app, ["bench-report", str(before), str(after)])
    assert done.exit_code == 0, done.output
    other = vllm_run(tmp_path / "other", total_output_tokens=128 * 256, **lengths)
    assert not compare(read_samples(before), read_samples(other)).pairs


def test_a_pause_of_one_rank_leaves_the_lines_of_others_alone(tmp_path):
    log = tmp_path / "server.log"
    lines = [prefill(0, "DP1 TP0"), decode(1, 250.0, "DP0 TP0"), decode(1, 0.2, "DP1 TP0")]
    log.write_text("\n".join(lines))
    assert [s.value for s in read_results(log).samples] == [250.0]


def test_lower_latency_is_a_gain():
    assert gains()["median_ttft_ms", 128] == "2.83x"
    backwards = compare_files(AFTER, BEFORE).pairs
    ttft = next(p for p in backwards if p.metric.name == "median_ttft_ms")
    assert ttft.gain == pytest.approx(6769.52 / 19216.02)
    assert ttft.verdict == "worse"


def test_a_gain_is_cut_not_rounded():
    assert [gain_text(x) for x in (1.8854, 1.999, 1.15, 0.999, 2.0)] == [
        "1.88x",
        "1.99x",
        "1.15x",
        "0.99x",
        "2.00x",
    ]


def test_a_printed_table():
    samples = {s.metric: s for s in read_samples(BEFORE[1])}
    assert samples["output_throughput"].value == 391.47
    assert samples["max_itl_ms"].value == 16077.21
    assert samples["median_e2e_ms"].value == 64974.27
    assert {s.key for s in samples.values()} == {SERVING}
    assert "concurrency" not in samples


def test_a_sweep_s_markdown_table():
    samples = read_samples(SWEEP)
    assert len(samples) == 26 * 4
    row = {s.metric: s.value for s in samples if s.key == Key(LoadKind.SERVING, 128, 256, 256)}
    assert row == {
        "mean_ttft_ms": 1205.51,
        "input_throughput": 505.17,
        "output_throughput": 505.17,
        "mean_tpot_ms": 249.58,
    }


def test_a_folder_is_read_whole(tmp_path):
    for path in AFTER:
        (tmp_path / path.name).write_text(path.read_text())
    assert len(read_samples(tmp_path)) == sum(len(read_samples(p)) for p in AFTER)


def test_decode_lines_of_later_releases():
    line = (
        "[2026-11-01 10:00:00 DP1 TP0] Decode batch [77], #running-req: 12, #full token: 9, "
        "full token usage: 0.1, accept len: 2.1, cuda graph: True, "
        "gen throughput (token/s): 321.50, #queue-req: 3"
    )
    (sample,) = parse_samples([line], "server.log")
    assert (sample.key.concurrency, sample.value) == (12, 321.5)
    assert sample.source == "server.log:1"


def sglang_run(**changes: object) -> dict[str, object]:
    return {
        "backend": "sglang",
        "request_rate": float("inf"),
        "max_concurrency": 16,
        "completed": 64,
        "total_input_tokens": 64 * 128,
        "total_output_tokens": 64 * 256,
        "output_throughput": 100.0,
        "median_ttft_ms": 50.0,
        "p99_e2e_latency_ms": 900.0,
        "std_ttft_ms": 3.0,
        "concurrency": 15.2,
        "accept_length": None,
        "server_info": {"tp_size": 16},
        **changes,
    }


def test_sglang_and_vllm_json_pair_up():
    vllm = {
        "date": "20261101-100000",
        "endpoint_type": "vllm",
        "request_rate": "inf",
        "max_concurrency": 16,
        "completed": 64,
        "failed": 0,
        "total_input_tokens": 64 * 128,
        "total_output_tokens": 64 * 256,
        "output_throughput": 150.0,
        "total_token_throughput": 225.0,
        "median_ttft_ms": 25.0,
        "p99_e2el_ms": 600.0,
        "rtfx": 0.0,
    }
    comparison = compare(
        parse_samples([json.dumps(sglang_run())]), parse_samples([json.dumps(vllm)])
    )
    assert {p.metric.name: gain_text(p.gain) for p in comparison.pairs} == {
        "output_throughput": "1.50x",
        "median_ttft_ms": "2.00x",
        "p99_e2e_ms": "1.50x",
    }
    assert comparison.pairs[0].key == Key(LoadKind.SERVING, 16, 128, 256, "inf")


def test_json_over_several_lines():
    text = json.dumps([sglang_run(), sglang_run(max_concurrency=32)], indent=2)
    assert len({s.key for s in parse_samples(text.splitlines())}) == 2


def test_runs_that_repeat_are_paired_in_order():
    before = [json.dumps(sglang_run(output_throughput=v)) for v in (100.0, 200.0, 300.0)]
    after = [json.dumps(sglang_run(output_throughput=v)) for v in (150.0, 220.0, 330.0)]
    (pair, *_) = compare(parse_samples(before), parse_samples(after)).pairs
    assert pair.run_by_run
    assert (pair.gain, pair.gain_low, pair.gain_high) == pytest.approx((1.1, 1.1, 1.5))
    assert (pair.before.median, pair.before.low, pair.before.n) == (200, 100, 3)
    assert pair.verdict == "better"


def test_unequal_counts_are_bounded_by_their_extremes():
    before = [json.dumps(sglang_run(median_ttft_ms=v)) for v in (40.0, 60.0)]
    after = [json.dumps(sglang_run(median_ttft_ms=v)) for v in (25.0, 50.0, 50.0)]
    pairs = compare(parse_samples(before), parse_samples(after)).pairs
    ttft = next(p for p in pairs if p.metric.name == "median_ttft_ms")
    assert not ttft.run_by_run
    assert (ttft.gain, ttft.gain_low, ttft.gain_high) == pytest.approx((1.0, 0.8, 2.4))
    assert ttft.verdict == "unclear"


def test_decode_lines_are_not_runs():
    lines = "Decode batch. #running-req: 4, gen throughput (token/s): {}, #queue-req: 0,"
    before = parse_samples([lines.format(v) for v in (10, 20)])
    (pair,) = compare(before, parse_samples([lines.format(v) for v in (40, 30)])).pairs
    assert not pair.run_by_run
    assert (pair.gain_low, pair.gain_high) == (1.5, 4.0)


def test_loads_of_one_side_are_listed():
    comparison = compare_files([BEFORE[0], SWEEP], [AFTER[0]])
    assert len(comparison.only_before) == 26
    assert comparison.only_after == ()
    assert "only before: concurrency 1, 128+128 tokens" in render_text(comparison)


def test_a_comparison_shows_one_metric_of_each_kind_and_counts_the_others():
    comparison = compare_files(BEFORE, AFTER)
    every, few = render_text(comparison), render_text(comparison, every=False)
    names = {pair.metric.name for pair in comparison.pairs}
    assert len(few.splitlines()) < len(every.splitlines())
    assert f"{len(names) - 4} other metrics: --all-metrics" in few
    assert "--all-metrics" not in every
    for line in few.splitlines()[1:-2]:
        assert line.split("  ")[0] in every


def test_another_request_rate_is_another_load():
    fast = parse_samples([json.dumps(sglang_run(request_rate=8))])
    assert compare(parse_samples([json.dumps(sglang_run())]), fast).pairs == ()


def test_json_has_every_pair():
    comparison = compare_files(BEFORE, AFTER)
    plain = json.loads(json.dumps(as_dict(comparison)))
    assert len(plain["pairs"]) == len(comparison.pairs) == 18
    for value, pair in zip(plain["pairs"], comparison.pairs, strict=True):
        assert (value["gain"], value["metric"]["name"]) == (pair.gain, pair.metric.name)
    assert value["gain_text"].endswith("x")


def test_the_table_in_a_terminal_is_narrow():
    text = render_summary(summarise(read_samples(SWEEP)))
    assert max(map(len, text.splitlines())) <= 80
    assert "1024" in text


def test_several_runs_give_medians():
    rows = [
        {
            **{"backend": "sglang", "request_rate": "inf", "max_concurrency": 8},
            **{"random_input_len": 128, "random_output_len": 128, "completed": 16},
            **{"total_input_tokens": 2048, "total_output_tokens": 2048},
            **{"output_throughput": value, "mean_ttft_ms": 10 * value, "duration": 1.0},
        }
        for value in (3.0, 1.0, 2.0)
    ]
    summary = summarise(parse_samples([json.dumps(row) for row in rows]))
    ((key, row),) = summary.rows.items()
    assert key == Key(LoadKind.SERVING, 8, 128, 128, "inf")
    assert (row["output_throughput"].median, row["mean_ttft_ms"].n) == (2.0, 3)
    assert summary_dict(summary)["loads"][0]["metrics"]["output_throughput"]["low"] == 1.0


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_a_table(form):
    summary = summarise(read_samples(DATA / f"l40s-32gpu-after-{form}"))
    assert "tok/s" in render_summary(summary)


def test_the_authors_own_table_comes_back():
    """Each number of their table is in the summary, by concurrency and length."""
    theirs = [line.strip("| ").split("|") for line in SWEEP.read_text().splitlines()[2:] if line]
    rows = {
        (key.concurrency, key.input_len, key.output_len): row
        for key, row in summarise(read_samples(SWEEP)).rows.items()
    }
    names = ("mean_ttft_ms", "input_throughput", "output_throughput", "mean_tpot_ms")
    for concurrency, *values, input_len, output_len in theirs:
        row = rows[int(concurrency), int(input_len), int(output_len)]
        assert [row[name].median for name in names] == [float(value) for value in values]
    assert len(rows) == len(theirs) == 26


@pytest.mark.parametrize("content", [None, "", "no benchmark here\n", "{}\n", "[1]\n", "| a |\n"])
def test_no_result_is_bad_input(tmp_path, content):
    path = tmp_path / "results.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(MalformedBenchmark, match=r"results\.txt"):
        read_samples(path)


_ORIGINALS = [p.read_text() for p in (*BEFORE, *AFTER, SWEEP)] + [json.dumps(sglang_run())]
_NOISE = ["1e999", "nan", "-5", "9" * 5000, "0", "null", "[]", "|", "\x00", "<b>", "inf"]


@times(2)
@given(st.data())
def test_damaged_results_never_give_a_traceback(data):
    sides = []
    for _ in range(2):
        text = data.draw(st.sampled_from(_ORIGINALS))
        for _ in range(data.draw(st.integers(0, 4))):
            start = data.draw(st.integers(0, len(text)))
            end = data.draw(st.integers(start, min(len(text), start + 40)))
            middle = data.draw(st.one_of(st.sampled_from(_NOISE), st.text(max_size=6)))
            text = text[:start] + middle + text[end:]
        sides.append(parse_samples(text.splitlines(), "x"))
    comparison = compare(*sides)
    render_summary(summarise(sides[0]))
    json.dumps(as_dict(comparison), allow_nan=False)
    assert render_text(comparison)
