"""`tuner diff`: what changed between two exports, by their sidecars."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.deploy.load_proof import render_proof
from tuner.deploy.load_proof.deployed import Deployed
from tuner.deploy.load_proof.proof import FileLoad, LoadOutcome, LoadProof
from tuner.errors import BadInput
from tuner.export.diff import diff_exports
from tuner.export.summary import ExportSummary


def row(warps: int, us: float | None, status: str = "ok", own: float = 20.0) -> dict[str, object]:
    incumbents = {"default": {"median_us": own}}
    return {
        "config": {"num_warps": warps},
        "status": status,
        "median_us": us,
        "incumbents": incumbents,
        "without_us": None,
    }


def exported(root: Path, **files: object) -> Path:
    folder = root / "provenance" / "triton_3_6_0"
    folder.mkdir(parents=True)
    for name, entries in files.items():
        (folder / f"{name}.json").write_text(json.dumps({"entries": entries}))
    return root


def test_files_entries_and_gains_are_compared(tmp_path):
    own = row(4, None, "incumbent")
    listed = [{"phase": "decode", "lengths": 5, **row(4, 10.0)}]
    old = exported(
        tmp_path / "old",
        same={"1": own},
        gone={"1": own},
        moved={"1": row(4, 20.0), "64": row(4, 20.0)},
        listed=listed,
    )
    now = {"1": row(8, 10.0), "64": row(4, 20.0), "128": own}
    new = exported(tmp_path / "new", same={"1": own}, moved=now, come={"1": own}, listed=listed)
    found = {Path(one.file).stem: one for one in diff_exports(old, new).files}
    assert {name: one.change for name, one in found.items()} == {
        "same": "the same",
        "gone": "removed",
        "moved": "changed",
        "come": "added",
        "listed": "the same",
    }
    moved = found["moved"]
    assert moved.changed == ("1", "128")
    assert (moved.before, moved.faster) == (1.0, 2.0)
    assert moved.after == pytest.approx(2**0.5)
    said = CliRunner().invoke(app, ["diff", str(old), str(new)])
    assert said.exit_code == 0, said.output
    assert said.stdout.startswith("3 of 5 tuned files differ, 2 are the same\n")
    assert "2 measured, 1 the engine's own; changed at 2: 1 128" in said.stdout
    shown = CliRunner().invoke(app, ["diff", str(old), str(new), "--json"])
    assert len(json.loads(shown.stdout)["files"]) == 5


def test_a_predicted_time_is_not_compared_with_a_measured_one(tmp_path):
    old = exported(tmp_path / "old", one={"1": row(4, 20.0, "predicted")})
    new = exported(tmp_path / "new", one={"1": row(8, 10.0)})
    [one] = diff_exports(old, new).files
    assert (one.before, one.after, one.faster) == (1.0, 2.0, None)


@pytest.mark.parametrize(
    "change",
    [
        {"median_us": "1"},
        {"median_us": -1},
        {"median_us": 1e400},
        {"incumbents": None},
        {"incumbents": {"default": 3}},
        {"incumbents": {"default": {"median_us": "x"}}},
        {"without_us": []},
        {"status": {}},
    ],
)
def test_a_sidecar_with_values_of_another_type_is_refused(tmp_path, change):
    old = exported(tmp_path / "old", one={"1": row(4, 20.0)})
    new = exported(tmp_path / "new", one={"1": {**row(4, 20.0), **change}})
    with pytest.raises(BadInput, match=r"one\.json is no sidecar of an export"):
        diff_exports(old, new)


def test_another_folder_is_refused(tmp_path):
    said = CliRunner().invoke(app, ["diff", str(tmp_path), str(tmp_path)])
    assert said.exit_code == 2
    assert "give folders that `tuner export` wrote" in said.stderr


def test_files_in_which_nothing_was_tuned_are_never_called_tuned():
    key = "E=257,N=128,device_name=NVIDIA_L40S"
    path = f"/configs/{key}.json"
    load = FileLoad("fused_moe", key, LoadOutcome.LOADED, (), path, "3.6.0", (), (), origin="tuned")
    for counts, state, last in (
        (
            {"incumbent": 18},
            "exported",
            "as exported: all 18 entries are the engine's own choice, so nothing is gained",
        ),
        ({"incumbent": 17, "ok": 1}, "tuned", "as tuned"),
    ):
        deployed = Deployed({f"{key}.json": counts})
        said = render_proof(LoadProof((load,), (), (), deployed=deployed)).splitlines()
        assert said[0].split()[0] == state
        assert said[-1] == last


def test_an_export_says_how_to_go_back():
    report = ExportSummary(Path("out"), (), 0, ("A", "B"))
    assert report.back == "restart the servers after `unset A B`"
    into = ExportSummary(Path("out"), (), 0, (), restores=("rm -f a",))
    assert into.back.startswith("run these lines")
