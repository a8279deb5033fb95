"""What tables and readers say of engines, against the engines' own sources."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from real_sglang import package
from tiers import only

from tuner.deploy.bench_report.readers import parse_samples
from tuner.deploy.bench_report.samples import metric
from tuner.devices.target import CUDA
from tuner.diagnose.table import Form, MessageSource, known_messages
from tuner.engines.engine import find_engine, version_order
from tuner.engines.logs.lines import BLANKS
from tuner.errors import UnsupportedKernel
from tuner.kernels.lift import lift_from
from tuner.kernels.source import EngineSource, platform_probes

ENGINES = ["sglang==0.5.2", "sglang==0.5.16", "sglang==0.5.23", "vllm==0.15.1", "vllm==0.33.0"]


# How many of the engines' own kernels can be lifted

SURVEYED = [
    ("vllm", "0.10.2", 85, 92),
    ("vllm", "0.33.0", 810, 853),
    ("sglang", "0.5.23", 1010, 1022),
]


def refusals(engine: EngineSource) -> Iterator[tuple[str, str]]:
    """Each jitted function outside tests, and why it does not lift: empty if it does."""
    for path in sorted(engine.root.rglob("*.py")):
        file = path.relative_to(engine.root)
        text = path.read_bytes()
        if {"test", "tests"} & {*file.parts} or b"jit" not in text or b"triton" not in text:
            continue
        try:
            names = engine.kernels(engine.module(path))
        except UnsupportedKernel as error:
            yield file.as_posix(), str(error)
            continue
        for name in names:
            try:
                lift_from(engine, {path: [name]})
            except UnsupportedKernel as error:
                yield f"{file.as_posix()}:{name}", str(error)
            else:
                yield f"{file.as_posix()}:{name}", ""


@pytest.mark.parametrize(("engine", "version", "least", "at_most"), only(SURVEYED[:1], SURVEYED))
def test_nearly_all_kernels_lift(engine, version, least, at_most):
    root = Path(sys.prefix, "share", "tuner", "engines", f"{engine}-{version}", engine)
    assert root.is_dir(), f"`tuner list engines --add {engine}=={version}` adds it"
    found = dict(refusals(EngineSource(root, f"{engine} {version}", platform_probes(CUDA))))
    assert len(found) == at_most
    refused = {name: why for name, why in found.items() if why}
    assert len(found) - len(refused) >= least, refused


# A release's own benchmark is read whole: its labels and its JSON fields


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


# The forms of `tuner diagnose`: cited lines, first and last release

RELEASES = ("0.4.3.post2", "0.4.4", "0.5.2", "0.5.12", "0.5.16", "0.5.23")
ORIGINS = [
    (message.name, form, origin)
    for message in known_messages()
    for form in message.forms
    for origin in form.origins
    if origin.program == "sglang" and origin.since
]
# Two literals that Python joins, on one line or two.
_JOINED = re.compile(rb"""(["'])\s*\n?\s*[rf]?(["'])""")


@lru_cache
def squeezed(release: str, path: str) -> bytes:
    file = find_engine(f"sglang=={release}").root / path
    return _squeeze(file.read_bytes())


def _squeeze(source: bytes) -> bytes:
    joined = _JOINED.sub(lambda m: b"" if m[1] == m[2] else m[0], source)
    joined = re.sub(rb"\{([\w.]+=)\}", rb"\1", joined)  # what an f-string prints of {name=}
    return joined.replace(b"\\n", b"").replace(b'\\"', b'"').translate(None, BLANKS)


@lru_cache(maxsize=1)
def whole(release: str) -> bytes:
    root = find_engine(f"sglang=={release}").root
    parts = [root / "srt", root / "kernels"]
    files = sorted(file for part in parts if part.is_dir() for file in part.rglob("*.py"))
    assert len(files) > 100
    return b"\n".join(_squeeze(file.read_bytes()) for file in files)


def test_many_forms_are_sglangs():
    assert len(ORIGINS) > 15


@pytest.mark.parametrize(
    ("name", "form", "origin"), ORIGINS, ids=[f"{n}-{o.since}" for n, _, o in ORIGINS]
)
def test_the_cited_file_has_the_form(name: str, form: Form, origin: MessageSource):
    release, _, place = origin.source.partition(" ")
    path, _, line = place.partition(":")
    assert form.anchor in squeezed(release, path), name
    if line:
        root = find_engine(f"sglang=={release}").root
        lines = (root / path).read_bytes().splitlines(keepends=True)
        near = b"".join(lines[max(0, int(line) - 4) : int(line) + 8])
        first = form.anchor[:12]
        assert first in _squeeze(near) or form.anchor[-12:] in _squeeze(near), (name, near)


@pytest.mark.parametrize("release", RELEASES)
def test_a_form_is_in_the_releases_that_the_table_says(release: str):
    text = whole(release)
    wrong = []
    for name, form, origin in ORIGINS:
        after = version_order(origin.since) <= version_order(release)
        before = not origin.until or version_order(release) <= version_order(origin.until)
        if (form.anchor in text) != (after and before):
            wrong.append((name, form.text[:60], origin.since, origin.until))
    assert not wrong
