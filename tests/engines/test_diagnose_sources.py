"""The forms of `tuner diagnose` against sglang's source: cited lines, first and last release."""

from __future__ import annotations

import re
from functools import lru_cache

import pytest

from tuner.diagnose.table import Form, MessageSource, known_messages
from tuner.engines.engine import find_engine, version_order
from tuner.engines.logs.lines import BLANKS

RELEASES = ("0.4.3.post2", "0.4.4", "0.5.2", "0.5.12", "0.5.16", "0.5.23")
ORIGINS = [
    (message.name, form, origin)
    for message in known_messages().messages
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
    assert len(ORIGINS) > 30


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
