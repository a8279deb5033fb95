"""A release's own benchmark is read whole: its labels and its JSON fields."""

import ast
import json
import re

import pytest
from real_sglang import package

from tuner.deploy.bench_report.readers import parse_samples
from tuner.deploy.bench_report.samples import metric


@pytest.mark.parametrize("version", ["0.4.4", "0.5.2", "0.5.16", "0.5.23"])
def test_every_label_and_field_of_a_release_s_own_benchmark(version: str) -> None:
    """The labels and the JSON fields come out of bench_serving's source."""
    root = package(version)
    source = root / "benchmark/serving.py"
    source = source if source.is_file() else root / "bench_serving.py"
    words = {
        n.value
        for n in ast.walk(ast.parse(source.read_text()))
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
    }
    labels = {w for w in words if re.search(r"^[^ ].*(\(ms\)|oken throughput \(tok/s\)):$", w)}
    labels -= {w for w in labels if w.startswith("Peak")}
    assert len(labels) >= 13
    table = ["== Serving Benchmark Result ==", *(f"{w:<40} 7.00" for w in labels), "=" * 50]
    found = parse_samples(table)
    assert len(found) == len(labels)
    assert all(metric(s.metric) for s in found)

    fields = {w for w in words if re.fullmatch(r"(mean|median|p\d+)_\w+_ms|\w+_throughput", w)}
    fields.discard("plot_throughput")  # an option
    assert len(fields) >= 13
    run = {"max_concurrency": 8, "completed": 4, **dict.fromkeys(fields, 7.0)}
    assert {s.metric for s in parse_samples([json.dumps(run)])} == {
        re.sub("e2e_latency", "e2e", f) for f in fields
    }
