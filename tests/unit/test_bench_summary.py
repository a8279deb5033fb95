"""The table of one run: the H20 authors' own summary, from each form of result."""

import csv
import io
import json
from pathlib import Path

import pytest

from tuner.deploy.bench_report import (
    RunDetails,
    read_samples,
    render_summary,
    summarise,
    write_summary,
)
from tuner.deploy.bench_report.readers import parse_samples
from tuner.deploy.bench_report.samples import Key, LoadKind
from tuner.deploy.bench_report.tables import summary_csv, summary_dict, summary_markdown

DATA = Path(__file__).parents[1] / "data" / "cluster" / "bench"
SWEEP = DATA / "h20-2node-sglang-sweep.md"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_authors_own_table_comes_back():
    theirs = [cells(line) for line in SWEEP.read_text().splitlines()[2:] if line.strip()]
    text = summary_markdown(summarise(read_samples(SWEEP)))
    head, _, *lines = text.splitlines()
    assert cells(head) == [
        *("Concurrency", "Mean TTFT (ms)", "Mean TPOT (ms)"),
        *("Input throughput (tokens/s)", "Output throughput (tokens/s)"),
        *("Mean input len", "Mean output len"),
    ]
    ours = [cells(line) for line in lines]
    # Theirs has TPOT after the throughputs, and no order of lengths.
    assert sorted(ours) == sorted([c, t, p, i, o, n, m] for c, t, i, o, p, n, m in theirs)
    assert [row[0] for row in ours[:3]] == ["1", "2", "4"]


def test_the_markdown_table_is_read_back():
    summary = summarise(read_samples(SWEEP))
    again = summarise(parse_samples(summary_markdown(summary).splitlines()))
    assert again == summary


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
    (line,) = csv.DictReader(io.StringIO(summary_csv(summary)))
    assert (line["concurrency"], line["output_throughput"]) == ("8", "2.0")
    assert summary_dict(summary)["loads"][0]["metrics"]["output_throughput"]["low"] == 1.0


@pytest.mark.parametrize("form", ["decode.log", "bench_serving.txt"])
def test_every_form_has_a_table(form, tmp_path):
    summary = summarise(read_samples(DATA / f"l40s-32gpu-after-{form}"))
    assert summary.rows
    names = {path.name for path in write_summary(summary, tmp_path, form, RunDetails())}
    assert names == {
        f"summary.{kind}" for kind in ("csv", "md", "json", "txt", "html", "svg", "png")
    }
    assert "tok/s" in (tmp_path / "summary.txt").read_text()
