"""Tables and text that fit a terminal."""

import pytest

from tuner.render import columns, folded, table

HEADERS = ("gemm", "M", "shared bytes a block", "why")
ROWS = [
    ("up", 64, 101376, "the engine ships a file tuned on this card; a prediction keeps it"),
    ("down", 4096, None, "fused_moe:E=256,N=256,K=7168,top_k=8,dtype=fp8_w8a8,block_shape=128x128"),
]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_a_table_fits_and_keeps_its_text(width):
    text = table(HEADERS, ROWS, width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    letters = "".join(text.split())
    words = [w for row in ROWS for cell in row if cell is not None for w in str(cell).split(" ")]
    if width >= 60:
        assert all(len(w) > 20 or w in letters for w in words)
    assert sum("4096" in line for line in lines) == 1


def test_a_table_that_fits_is_not_folded():
    text = table(HEADERS, ROWS, width=200)
    assert len(text.splitlines()) == 2 + len(ROWS)
    assert ROWS[1][3] in text


def test_the_named_columns_go_before_text_is_folded():
    text = table(
        HEADERS, [(*row[:3], row[3][:30]) for row in ROWS], drop=["shared bytes a block"], width=60
    )
    assert "shared" not in text
    assert len(text.splitlines()) == 2 + len(ROWS)
    wide = table(HEADERS, ROWS, drop=["shared bytes a block"], width=200)
    assert "shared bytes a block" in wide


def test_numbers_are_never_broken():
    rows = [(f"name {i}", 10**i, 10.5**i) for i in range(9)]
    text = table(("what it is called", "bytes of memory", "time"), rows, width=40)
    assert all(str(row[1]) in text.split() for row in rows)
    assert max(map(len, text.splitlines())) <= 40


def test_the_width_is_what_the_environment_says(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert columns() == 120
    monkeypatch.setenv("COLUMNS", "3")
    assert columns() == 40


def test_a_path_in_prose_stays_whole():
    path = "/a/very/long/" + "path-of-some-folder/" * 8
    text = folded(
        f"written under {path} with 12 of the engine's own files and a few more words", 40
    )
    assert path in text
    assert all(len(line) <= 40 or line == path for line in text.splitlines())
    assert folded("one\n\ntwo", 40) == "one\n\ntwo"


def test_the_name_of_a_config_stays_whole():
    name = "triton_3_6_0/E=1,N=2,dtype=fp8_w8a8,block_shape=[128, 128]_down.json"
    for line in (f"changed: {name}", f"removed, of an earlier export: /tmp/out/{name}", name):
        text = folded(line, 40)
        assert name in text
        assert " ".join(text.split()) == line
