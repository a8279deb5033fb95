"""`tuner report`, as a user asks for it."""

import gzip
import json

import pytest
from commands import tuner
from unchanged_cases import ENGINE, STORE

OPTIONS = ("--device", "L40S", "--engine", ENGINE)


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    path = tmp_path / "tuner.db"
    path.write_bytes(gzip.decompress(STORE.read_bytes()))
    monkeypatch.setenv("TUNER_DATABASE_URL", f"sqlite:///{path}")
    monkeypatch.chdir(tmp_path)


def test_a_report_prints_a_table_and_writes_a_page(tmp_path):
    done = tuner("report", *OPTIONS)
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "roofline us" in done.stdout
    page = tmp_path / "report_out" / "device_name=NVIDIA_L40S.html"
    assert f"drawn in {page.relative_to(tmp_path)}" in done.stderr
    assert "<svg" in page.read_text()


def test_json_has_the_rows_and_the_files(tmp_path):
    done = tuner("report", *OPTIONS, "--out", "drawn", "--json")
    value = json.loads(done.stdout)
    assert (tmp_path / value["page"]).is_file()
    (first, *_) = value["problems"]
    (row, *_) = first["rows"]
    assert row["roofline_us"] > 0
    assert {"engine_us", "tuned_us", "gain", "origin"} <= row.keys()
    assert {p["problem"].partition(":")[0] for p in value["problems"]} > {"decode_attention"}


def test_one_problem_alone(tmp_path):
    everything = json.loads(tuner("report", *OPTIONS, "--json").stdout)["problems"]
    spec = everything[0]["problem"]
    done = tuner("report", *OPTIONS, "--problem", spec, "--out", "one", "--json")
    assert [one["problem"] for one in json.loads(done.stdout)["problems"]] == [spec]


def test_nothing_stored_names_the_next_step(tmp_path):
    done = tuner("report", "--device", "A100", "--engine", ENGINE, code=1)
    assert "tuner tune MODEL --device" in done.stderr
    assert not (tmp_path / "report_out").exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    done = tuner("report", *OPTIONS, "--out", "file/below", code=2)
    (line,) = done.stderr.splitlines()
    assert line.startswith("tuner: error: ")
