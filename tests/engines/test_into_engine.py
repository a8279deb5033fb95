"""Exports into an engine's package: our files are not the engine's, and there is a way back."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest
from cases import L40S
from test_export import PROBLEM, left_alone, over_a_shipped_file, winners

from tuner.devices.table import find_device
from tuner.engines.engine import Engine, find_engine
from tuner.export.export import export_device, packaged_files
from tuner.export.summary import ExportSummary
from tuner.families.fused_moe.engine import MoeEngine, moe_engine
from tuner.families.fused_moe.problem import Gemm

H200 = find_device("H200")


@pytest.fixture
def engine(tmp_path) -> Engine:
    """A copy of what an export needs of an engine's package."""
    real = find_engine("sglang==0.5.16")
    source = moe_engine(real).rules.source
    root = tmp_path / "engine dir" / "sglang"
    copy = root / source.relative_to(real.root)
    shutil.copytree(source.parent / "configs", copy.parent / "configs")
    shutil.copy(source, copy)
    return replace(real, root=root)


def export(engine: Engine, some, device=H200) -> ExportSummary:
    return export_device(some, device, engine, None, allow_predicted=False)


def what_it_ships(layer: MoeEngine):
    packaged = {place: path.read_bytes() for place, path in packaged_files(layer.engine)}
    return [replace(file, path=None) for file in layer.shipped()], packaged


def go_back(report: ExportSummary) -> None:
    """Run the printed commands in a shell."""
    _, _, commands = report.as_text().partition("to go back: run these lines, and restart the")
    lines = commands.splitlines()[1:]
    assert len(lines) == len(report.files)
    subprocess.run(["sh", "-e", "-c", "\n".join(lines)], check=True, timeout=60)


def test_the_file_that_was_replaced_stays_the_engines_and_can_be_brought_back(engine):
    layer = moe_engine(engine)
    _, ours = over_a_shipped_file(engine)
    about = ours[0].problem, H200, 64, ours[0].environment.triton
    before = layer.incumbents(*about)
    ships = what_it_ships(layer)
    shipped = layer.find_file(None, about[0], H200, Gemm.UP, about[3])
    original = shipped.read_bytes()
    for _ in range(2):  # what is exported again replaces our file, not the engine's
        report = export(engine, ours)
        (file,) = report.files
        assert file.path == shipped
        assert file.path.read_bytes() != original
        assert layer.incumbents(*about) == before
        assert layer.incumbents(*about, layer.package_root) != before  # as servers read it
        assert what_it_ships(layer) == ships
        assert layer.find_file(None, about[0], H200, Gemm.UP, about[3]).read_bytes() == original
    go_back(report)
    assert shipped.read_bytes() == original
    assert layer.incumbents(*about) == before


def test_where_the_engine_ships_no_file_ours_is_none_either(engine):
    layer = moe_engine(engine)
    before = layer.incumbents(PROBLEM, L40S, 64, "3.6.0")
    assert set(before) == {"default"}
    ships = what_it_ships(layer)
    report = export(engine, winners(), L40S)
    assert all(file.path.exists() for file in report.files)
    assert layer.find_file(None, PROBLEM, L40S, Gemm.UP, "3.6.0") is None
    assert layer.incumbents(PROBLEM, L40S, 64, "3.6.0") == before
    assert what_it_ships(layer) == ships
    go_back(report)
    assert not any(one.exists() for file in report.files for one in (file.path, file.sidecar))


def test_a_file_that_another_release_put_there_is_the_engines(engine):
    layer = moe_engine(engine)
    shipped, ours = over_a_shipped_file(engine)
    newer = shipped.read_text().replace('"num_stages": 4', '"num_stages": 2')
    (file,) = export(engine, ours).files
    shipped.write_text(newer)
    problem, triton = ours[0].problem, ours[0].environment.triton
    assert layer.find_file(None, problem, H200, Gemm.UP, triton) == shipped
    go_back(export(engine, ours))
    assert shipped.read_text() == newer
    export(engine, ours)
    file.path.unlink()  # and a release that ships none
    go_back(export(engine, ours))
    assert not file.path.exists()


@pytest.mark.parametrize("ships", [True, False])
def test_what_is_left_alone_by_now_is_taken_back(engine, ships):
    layer = moe_engine(engine)
    _, ours = over_a_shipped_file(engine)
    some, device = (ours, H200) if ships else (winners(), L40S)
    before = {path: path.read_bytes() for path in layer.configs.rglob("*.json")}
    first = export(engine, some, device)
    report = export(engine, left_alone(some), device)
    assert not report.files
    assert set(report.removed) == {file.path for file in first.files}
    assert {path: path.read_bytes() for path in layer.configs.rglob("*.json")} == before
    assert not [path for path in (layer.package_root / "provenance").rglob("*") if path.is_file()]
