"""Which Triton an engine's release runs, and where that Triton is on disk."""

import json
import sys
from pathlib import Path

import pytest

from tuner.engines.engine import RECORD, Package, PackageSource, find_triton, pinned_triton


def _package(folder: Path, version: str) -> None:
    root = folder / "triton"
    root.mkdir(parents=True)
    (root / "__init__.py").write_text(f'__version__ = "{version}"\n')


@pytest.fixture
def environ(tmp_path):
    _package(tmp_path / "triton-9.8.0", "9.8.0")
    _package(tmp_path / "triton-9.9.0.part", "9.9.0")  # not complete yet
    return {"TUNER_ENGINE_PATH": str(tmp_path)}


def test_a_triton_is_found_by_its_exact_version(tmp_path, environ):
    assert find_triton("9.8.0", environ) == tmp_path / "triton-9.8.0"
    assert find_triton("9.8", environ) is None


def test_a_folder_that_is_still_being_unpacked_does_not_count(environ):
    assert find_triton("9.9.0", environ) is None


def _unpacked(tmp_path: Path, record: str | None) -> Package:
    root = tmp_path / "sglang-0.5.23" / "sglang"
    root.mkdir(parents=True)
    if record is not None:
        (root.parent / RECORD).write_text(record)
    return Package(root, "0.5.23", PackageSource.UNPACKED)


def test_an_unpacked_engine_has_a_record_of_its_triton(tmp_path):
    assert pinned_triton(_unpacked(tmp_path, json.dumps({"triton": "3.8.0"}))) == "3.8.0"


@pytest.mark.parametrize("record", [None, "{", "[]", "{}", '{"triton": 3}'])
def test_without_a_readable_record_nothing_is_known(tmp_path, record):
    assert pinned_triton(_unpacked(tmp_path, record)) is None


def test_an_installed_engine_runs_the_installed_triton(tmp_path, monkeypatch):
    _package(tmp_path, "9.7.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    installed = Package(tmp_path / "sglang", "0.5.23", PackageSource.INSTALLED)
    assert pinned_triton(installed) == "9.7.0"
