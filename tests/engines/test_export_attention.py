"""Attention's export: what servers read is what was chosen, and nothing better is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from attention_cases import CHOSEN, DECODE, EXTEND, MLA, chosen, entry, fill, point, published
from cases import H200

from tuner.bindings.sglang.attention.export import AttentionFileExport
from tuner.bindings.sglang.plugin.files import read_attention_file
from tuner.bindings.sglang.plugin.splits import SplitsRow
from tuner.engines.engine import find_engine
from tuner.errors import ExportRefused
from tuner.export.diff import diff_exports
from tuner.export.export import ExportSummary, export, export_device
from tuner.export.files import write_all
from tuner.export.selection import left_out_lines
from tuner.families.attention.problem import Attention, AttentionPart
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.problem import Gemm
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import Compiled, Entry, Incumbent, Status, Winner
from tuner.store.results import ResultStore

MOE = parse_problem("fused_moe:E=128,N=768,K=2048,top_k=8,dtype=bfloat16")
ON_TRITON = {"--attention-backend": "triton"}  # what the servers are started with
VARIABLE = "TUNER_ATTENTION_CONFIG_DIR"


@pytest.fixture(scope="module")
def engine():
    return find_engine("sglang==0.5.16")


@pytest.fixture
def store():
    with ResultStore.open("sqlite://") as opened:
        yield opened


def moe_entries(status: Status = Status.OK) -> list[Entry]:
    keys = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")
    config = Config({**dict.fromkeys(keys, 32), "num_warps": 4, "num_stages": 3})
    compiled = Compiled(Status.OK, 20480, 80, 0)
    own = {"default": Incumbent(config.replace(num_stages=2), Status.OK, 15.0)}
    sizes = moe_engine(find_engine("sglang==0.5.16")).sizes(MOE, H200, "3.6.0")
    points = [Point(size, gemm) for size in sizes for gemm in Gemm]
    return [Entry(point, config, status, 12.5, compiled, own, "faster") for point in points]


def write(winners: Sequence[Winner], root: Path):
    return export(winners, find_engine("sglang==0.5.16"), H200, root)


def device_report(store: ResultStore, engine, out: Path | None, *, predicted: bool = False):
    winners = store.winners(device=H200.name, engine=engine.name, engine_version=engine.version)
    return export_device(winners, H200, engine, out, allow_predicted=predicted, flags=ON_TRITON)


def attention_of(report: ExportSummary) -> list[AttentionFileExport]:
    return [file for file in report.files if isinstance(file, AttentionFileExport)]


def test_both_families_lie_under_one_root(store, engine, tmp_path):
    fill(store, EXTEND)
    fill(store, DECODE)
    fill(store, MOE, moe_entries())
    report = device_report(store, engine, tmp_path)
    names = {file.path.relative_to(tmp_path).as_posix() for file in report.files}
    folder = "attention/triton_3_6_0"
    shape = "q_heads=32,kv_heads=4,Lq=128,Lv=128,dtype=bfloat16"
    assert names == {
        "configs/triton_3_6_0/E=128,N=768,device_name=NVIDIA_H200.json",
        "configs/triton_3_6_0/E=128,N=768,device_name=NVIDIA_H200_down.json",
        f"{folder}/extend_attention,{shape},device_name=NVIDIA_H200.json",
        f"{folder}/decode_attention,{shape},kv_splits=8,device_name=NVIDIA_H200.json",
    }
    assert all((tmp_path / "provenance").rglob(Path(name).name) for name in names)
    assert report.variables == ["SGLANG_MOE_CONFIG_DIR", VARIABLE]
    (decode,) = [f for f in report.as_json()["files"] if f["problem"] == DECODE.spec()]
    assert decode["buckets"][0] == {"part": "decode", "batch_size": 1, "new_tokens": 1}
    assert (decode["statuses"], decode["server_flags"]) == ({"ok": 4}, {})
    text = report.as_text()
    assert f"export {VARIABLE}={tmp_path}" in text
    assert f"{EXTEND.spec()}: these files: 1." in " ".join(text.split())
    assert f"{folder}/extend_attention" in text


def test_a_file_holds_one_entry_for_all_points_of_a_bucket(store, engine, tmp_path):
    sizes = [(4, 512, 0), (4, 512, 8000), (4, 2048, 0), (1, 512, 0)]
    fill(store, EXTEND, [entry(point(AttentionPart.EXTEND, *size)) for size in sizes])
    (file,) = attention_of(device_report(store, engine, tmp_path))
    found = read_attention_file(file.path)
    buckets = [(e.batch_size, e.new_tokens) for e in found.entries]
    assert buckets == [(1, 512), (4, 512), (4, 2048)]
    assert {e.status for e in found.entries} == {Status.OK}
    assert [e.shared_bytes for e in found.entries] == [65536] * 3
    assert (found.engine, found.engine_version, found.triton) == ("sglang", "0.5.16", "3.6.0")
    sidecar = json.loads(file.sidecar.read_text())
    (row,) = [r for r in sidecar["entries"] if (r["batch_size"], r["new_tokens"]) == (4, 512)]
    assert [p["cached_tokens"] for p in row["points"]] == [0, 8000]
    assert [p["median_us"] for p in row["points"]] == [100.0, 108.0]
    first = row["points"][0]
    assert (first["status"], first["shared_bytes"], first["n_regs"]) == ("ok", 65536, 128)
    assert first["incumbents"]["default"]["median_us"] == 150.0
    assert first["environment"]["kernel_hash"] == "kernels"
    assert datetime.fromisoformat(first["published_at"]).tzinfo == timezone.utc
    assert file.sidecar == tmp_path / "provenance" / file.path.relative_to(tmp_path)


def test_decode_and_its_reduce_are_bucketed_by_sequences_alone(store, engine, tmp_path):
    sizes = [(part, n, 1, cached) for part in DECODE.parts for n in (1, 64) for cached in (1, 2)]
    fill(store, DECODE, [entry(point(*size)) for size in sizes])
    (file,) = attention_of(device_report(store, engine, tmp_path))
    buckets = [(e.part.value, e.batch_size, e.new_tokens) for e in file.file.entries]
    assert buckets == [("decode", 1, 1), ("decode", 64, 1), ("reduce", 1, 1), ("reduce", 64, 1)]
    assert dict(file.file.entries[-1].config) == {"num_warps": 8}


def test_exports_whose_entries_changed_can_be_compared(store, engine, tmp_path):
    fill(store, DECODE)
    mine = store.winners(device=H200.name, engine=engine.name, engine_version=engine.version)
    other = [
        replace(one, entry=replace(one.entry, config=one.entry.config.replace(num_warps=2)))
        for one in mine
    ]
    old, new = tmp_path / "old", tmp_path / "new"
    write(mine, old)
    write(other, new)
    (changed,) = diff_exports(old, new).files
    assert (changed.change, len(changed.changed), changed.faster) == ("changed", 4, None)


def test_points_that_a_server_cannot_tell_apart_must_agree(store, engine, tmp_path):
    one = entry(point(AttentionPart.EXTEND, 4, 512, 0))
    other = entry(point(AttentionPart.EXTEND, 4, 512, 8000), num_warps=4)
    fill(store, EXTEND, [one, other])
    out = tmp_path / "out"
    says = r"4x512\+0 extend has .*=8 and 4x512\+8000 "
    with pytest.raises(ExportRefused, match=says):
        device_report(store, engine, out)
    assert not out.exists()
    fill(store, MOE, moe_entries())
    report = device_report(store, engine, out)
    assert {file.problem for file in report.files} == {MOE}
    (left_out,) = report.left_out
    assert left_out.problem == EXTEND
    assert re.search(says, left_out.why)


def test_the_engine_is_left_alone_where_it_tells_points_apart_itself(store, engine, tmp_path):
    points = point(AttentionPart.EXTEND, 4, 512, 0), point(AttentionPart.EXTEND, 4, 512, 8000)
    mixed = [entry(p, own=True, num_warps=4 * (1 + at)) for at, p in enumerate(points)]
    fill(store, EXTEND, [*mixed, entry(point(AttentionPart.EXTEND, 8, 512, 0))])
    (file,) = attention_of(device_report(store, engine, tmp_path))
    assert [e.status for e in file.file.entries] == [Status.INCUMBENT, Status.OK]
    sidecar = json.loads(file.sidecar.read_text())
    assert [p["status"] for p in sidecar["entries"][0]["points"]] == ["ok", "ok"]


def test_where_nothing_was_faster_the_engine_keeps_its_own_launch(store, engine, tmp_path):
    kept = entry(point(AttentionPart.EXTEND, 4, 512, 0), own=True)
    fill(store, EXTEND, [kept, entry(point(AttentionPart.EXTEND, 1, 512, 0), num_warps=4)])
    (file,) = attention_of(device_report(store, engine, tmp_path))
    found = read_attention_file(file.path)
    assert {e.batch_size: e.status for e in found.entries} == {1: Status.OK, 4: Status.INCUMBENT}
    assert found.configs(AttentionPart.EXTEND) == [found.pick(AttentionPart.EXTEND, 1, 512).config]
    assert not found.predicted
    measured = json.loads(file.sidecar.read_text())["entries"][1]["points"]
    assert [p["status"] for p in measured] == ["ok"]


def test_what_is_known_least_says_what_is_known_of_a_bucket(tmp_path):
    measured, predicted = (
        published(EXTEND, entry(point(AttentionPart.EXTEND, 4, 512, cached), status))
        for cached, status in ((0, Status.OK), (8000, Status.PREDICTED))
    )
    (file,) = write([measured, predicted], tmp_path)
    assert set(file.statuses.values()) == {Status.PREDICTED}


def test_measured_buckets_stand_beside_predicted_ones(store, engine, tmp_path):
    some = [entry(point(AttentionPart.EXTEND, 4, 512, 0))]
    fill(store, EXTEND, some)
    all_of_them = [
        entry(point(AttentionPart.EXTEND, size, 512, cached), Status.PREDICTED, num_warps=4)
        for size in (1, 4)
        for cached in (0, 8000)
    ]
    fill(store, EXTEND, all_of_them)
    (file,) = attention_of(device_report(store, engine, tmp_path, predicted=True))
    said = {e.batch_size: (e.status, e.config["num_warps"]) for e in file.file.entries}
    assert said == {1: (Status.PREDICTED, 4), 4: (Status.OK, 8)}


def sized(batch_size: int, status: Status = Status.OK, warps: int = 8, **changes) -> Winner:
    at = point(AttentionPart.EXTEND, batch_size, 512, 0)
    return published(EXTEND, entry(at, status, num_warps=warps), **changes)


def warps_of(file: AttentionFileExport) -> dict[int, int]:
    found = read_attention_file(file.path)
    return {e.batch_size: e.config["num_warps"] for e in found.entries}


def test_predicted_never_overwrites_what_was_measured_and_exported(tmp_path):
    write([sized(1), sized(2)], tmp_path)
    again = [sized(size, Status.PREDICTED, 4) for size in (1, 4)]
    (file,) = write(again, tmp_path)
    assert warps_of(file) == {1: 8, 2: 8, 4: 4}
    rows = {r["batch_size"]: r for r in json.loads(file.sidecar.read_text())["entries"]}
    assert {size: row["status"] for size, row in rows.items()} == {1: "ok", 2: "ok", 4: "predicted"}
    assert rows[1]["points"][0]["environment"]["engine_version"] == "0.5.16"


def test_measured_replaces_predicted_and_older_measured(tmp_path):
    write([sized(1, Status.PREDICTED)], tmp_path)
    write([sized(1, warps=4)], tmp_path)
    (file,) = write([sized(1, warps=2)], tmp_path)
    assert warps_of(file) == {1: 2}
    # So do the engine's own constants, measured again.
    own = published(EXTEND, entry(point(AttentionPart.EXTEND, 1, 512, 0), own=True, num_warps=4))
    (file,) = write([own], tmp_path)
    assert warps_of(file) == {1: 4}


@pytest.mark.parametrize("field", ["kernel_hash", "engine_version"])
def test_what_other_kernels_measured_is_not_kept(field, tmp_path):
    write([sized(1), sized(2)], tmp_path)
    again = [sized(1, Status.PREDICTED, 4, **{field: "9.9.9"})]
    (file,) = write(again, tmp_path)
    assert warps_of(file) == {1: 4}


def changed_warps(path: Path) -> None:
    path.write_text(path.read_text().replace('"num_warps": 8', '"num_warps": 2'))


@pytest.mark.parametrize(
    "text", [None, changed_warps, "", "[]", "{}", '{"sha256": 1}', "\x00", '{"entries": [[]]}']
)
def test_a_changed_file_and_a_changed_sidecar_keep_nothing(text, tmp_path):
    (file,) = write([sized(1), sized(2)], tmp_path)
    if text is None:
        changed_warps(file.path)
    elif callable(text):
        text(file.sidecar)
    else:
        file.sidecar.write_text(text)
    (file,) = write([sized(1, Status.PREDICTED, 4)], tmp_path)
    assert warps_of(file) == {1: 4}


def test_a_file_is_of_the_kernels_that_were_tuned_last(tmp_path):
    old = sized(1, kernel_hash="older")
    new = replace(sized(2), published_at=datetime(2026, 11, 2, tzinfo=timezone.utc))
    (file,) = write([old, new], tmp_path)
    assert file.file.kernel_hash == "kernels"
    assert warps_of(file) == {2: 8}


def test_what_servers_could_not_read_is_refused(tmp_path):
    odd = published(EXTEND, entry(point(AttentionPart.EXTEND, 1, 512, 0), BLOCK_M=48))
    with pytest.raises(ExportRefused, match=r"^extend_attention,.*: BLOCK_M must be a power of"):
        write([odd], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_was_changed_while_it_was_written_is_found(tmp_path, monkeypatch):
    def otherwise(root: Path, files: Mapping[Path, bytes]) -> None:
        changed = {p: d.replace(b'"num_warps": 8', b'"num_warps": 4') for p, d in files.items()}
        write_all(root, changed)

    monkeypatch.setattr("tuner.export.export.write_all", otherwise)
    with pytest.raises(ExportRefused, match="does not read as it was written"):
        write([sized(1)], tmp_path)


def test_the_engine_s_package_gets_no_attention(store, tmp_path):
    root = tmp_path / "engine/sglang"
    real = find_engine("sglang==0.5.16")
    for source in (moe_engine(real).rules.source, real.root / "srt/plugins/hook_registry.py"):
        copy = root / source.relative_to(real.root)
        copy.parent.mkdir(parents=True)
        copy.write_bytes(source.read_bytes())
    engine = replace(real, root=root)
    moe_engine(engine).configs.mkdir()
    fill(store, EXTEND)
    with pytest.raises(ExportRefused, match=f"attention alone: .* --out DIR, .*{VARIABLE}=DIR"):
        device_report(store, engine, None)
    fill(store, MOE, moe_entries())
    report = device_report(store, engine, None)
    assert {file.problem for file in report.files} == {MOE}
    assert not list(root.rglob("*attention,*"))
    (line,) = left_out_lines(report.left_out)
    assert f"{VARIABLE}=DIR" in line
    assert line.endswith(f": {EXTEND.spec()}")
    assert report.as_json()["environment"] == {}


def test_an_engine_without_plugins_gets_no_attention(store, tmp_path):
    old = find_engine("sglang==0.5.2")
    fill(store, EXTEND, engine_version="0.5.2")
    with pytest.raises(ExportRefused, match=r"sglang 0\.5\.2 loads no plugins"):
        device_report(store, old, tmp_path)
    fill(store, MOE, moe_entries(), engine_version="0.5.2")
    report = device_report(store, old, tmp_path)
    assert attention_of(report) == []
    said = report.as_json()["left_out"]
    assert said.startswith("left out (sglang 0.5.2 loads no plugins")
    assert EXTEND.spec() in said


def test_attention_alone_needs_no_file_of_the_engine(store, engine, tmp_path):
    fill(store, EXTEND)
    report = device_report(store, engine, tmp_path)
    assert report.variables == [VARIABLE]
    assert not (tmp_path / "configs").exists()


# The server's flags


def splits(number: int, problem: Attention = DECODE) -> Attention:
    return replace(problem, kv_splits=number)


def flags_of(store: ResultStore, engine, root: Path) -> list[dict]:
    return device_report(store, engine, root).as_json()["server_flags"]


FLAG = "--triton-attention-num-kv-splits"


def publish(
    store: ResultStore,
    problem: Attention,
    us: float,
    cached: tuple[int, ...] = (512, 8000),
    status: Status = Status.OK,
    **environment: str,
) -> None:
    points = [point(part, 8, 1, c) for part in problem.parts for c in cached]
    fill(store, problem, [entry(p, status, us=us) for p in points], **environment)


def flags_in_files(store: ResultStore, engine, root: Path) -> dict[Attention, dict]:
    files = attention_of(device_report(store, engine, root, predicted=True))
    return {f.problem: dict(read_attention_file(f.path).server_flags) for f in files}


@pytest.mark.parametrize(
    ("us", "advised", "reason"),
    [
        ({8: 10.0}, None, ""),  # the engine's own number
        ({16: 20.0}, 16, "no other number of splits was tuned"),
        # Both stages at 512 and 8000 tokens: sqrt(81.024 * 96) over sqrt(41.024 * 56).
        ({8: 40.0, 16: 20.0, 32: 30.0}, 16, "1.840x as fast as with 8 splits"),
        ({8: 10_000.0, 16: 9_950.0}, 8, "16 splits are hardly faster"),
        ({16: 20.0, 32: 10.0}, 32, "of 16 and 32 splits the fastest"),
    ],
)
def test_one_number_of_splits_is_advised_and_in_its_file(
    us, advised, reason, store, engine, tmp_path
):
    for number, time in us.items():
        publish(store, splits(number), time)
    found = {splits(n): {FLAG: n} if n == advised else {} for n in us}
    assert flags_in_files(store, engine, tmp_path) == found
    report = device_report(store, engine, tmp_path)
    told = [
        (one["problem"], one["flags"], one["reason"]) for one in report.as_json()["server_flags"]
    ]
    assert told == ([(splits(advised).spec(), {FLAG: advised}, reason)] if advised else [])
    if advised:
        assert f"{splits(advised).spec()}: {FLAG} {advised}; " in report.as_text()


def test_latent_attention_needs_no_flag(store, engine, tmp_path):
    publish(store, MLA, 10.0)  # whose server splits as it likes
    assert flags_in_files(store, engine, tmp_path) == {MLA: {}}
    assert flags_of(store, engine, tmp_path) == []


@pytest.mark.parametrize(
    ("cached", "status", "driver"),
    [
        ((512,), Status.OK, "550"),
        ((512, 8000), Status.PREDICTED, "550"),
        ((512, 8000), Status.OK, "999"),
    ],
)
def test_splits_that_were_measured_otherwise_are_not_compared(
    cached, status, driver, store, engine, tmp_path
):
    publish(store, splits(8), 40.0)
    publish(store, splits(16), 20.0, cached, status, driver=driver)
    (advice,) = device_report(store, engine, tmp_path, predicted=True).server_flags
    assert advice.flags == {FLAG: 8}
    assert "were not measured at the same points" in advice.reason
    publish(store, splits(32), 20.0, cached, status, driver=driver)
    said = flags_in_files(store, engine, tmp_path)
    assert said == {splits(8): {FLAG: 8}, splits(16): {}, splits(32): {}}


def test_without_the_engine_s_own_splits_none_is_advised_unseen(store, engine, tmp_path):
    publish(store, splits(16), 20.0)
    publish(store, splits(32), 20.0, cached=(512,))
    (advice,) = flags_of(store, engine, tmp_path)
    assert advice["flags"] == {}


def test_what_was_measured_is_kept_whatever_flags_it_was_for(store, engine, tmp_path):
    publish(store, splits(16), 20.0)
    flags_in_files(store, engine, tmp_path)
    with ResultStore.open("sqlite://") as other:
        publish(other, splits(8), 10.0)
        publish(other, splits(16), 20.0, status=Status.PREDICTED)
        said = flags_in_files(other, engine, tmp_path)
    assert said == {splits(8): {FLAG: 8}, splits(16): {}}
    path = tmp_path / "attention/triton_3_6_0"
    (file,) = path.glob("decode*kv_splits=16*")
    assert {e.status for e in read_attention_file(file).entries} == {Status.OK}


# Splits that were chosen


def chosen_winners(*entries: Entry, **environment: str) -> list[Winner]:
    return [published(CHOSEN, one, **environment) for one in entries]


ROWS = (SplitsRow(1, 64, ((1024, 8), (8192, 32))), SplitsRow(64, 0, ()))


def test_a_file_holds_a_table_of_the_splits_that_were_chosen(store, engine, tmp_path):
    fill(store, CHOSEN, chosen())
    fill(store, DECODE)  # an older file beside it, for 8 splits
    report = device_report(store, engine, tmp_path)
    file, old = attention_of(report)
    found = read_attention_file(file.path)
    assert found.splits is not None and found.splits.rows == ROWS
    assert all("KV_SPLITS" not in e.config for e in found.entries)
    assert [(e.part.value, e.batch_size) for e in found.entries] == [
        ("decode", 1), ("decode", 64), ("reduce", 1), ("reduce", 64),
    ]  # fmt: skip
    assert json.loads(file.text())["format"] == 2 and json.loads(old.text())["format"] == 1
    assert read_attention_file(old.path).splits is None
    sidecar = json.loads(file.sidecar.read_text())
    assert [(p["kv_splits"], p["room"]) for p in sidecar["entries"][0]["points"]] == [
        (8, 64), (32, 64),
    ]  # fmt: skip
    assert [row["kv_splits"] for row in file.rows()][0] == {"1024": 8, "8192": 32}
    assert report.server_flags == [] and "no other" not in report.as_text()


def test_both_kernels_of_a_number_of_sequences_have_one_table(tmp_path):
    first, *others = chosen(sizes=(1,))
    changed = replace(first, config=first.config.replace(KV_SPLITS=16))
    with pytest.raises(ExportRefused, match="1 sequences have different numbers of KV splits"):
        write(chosen_winners(changed, *others), tmp_path)
    room = replace(first, config=first.config.replace(MAX_KV_SPLITS=32))
    with pytest.raises(ExportRefused, match="a server cannot tell them apart"):
        write(chosen_winners(room, *others), tmp_path)


def test_measured_splits_stay_together_beside_predicted_ones(tmp_path):
    write(chosen_winners(*chosen(sizes=(1,))), tmp_path)
    again = chosen(Status.PREDICTED, room=32)
    (file,) = write(chosen_winners(*again), tmp_path)
    assert file.file.splits.rows == ROWS  # of one sequence the measured one
    assert [e.status for e in file.file.entries] == [Status.OK, Status.PREDICTED] * 2
    (file,) = write(chosen_winners(*chosen(sizes=(1,), room=32)), tmp_path)
    assert file.file.splits.rows == (SplitsRow(1, 32, ((1024, 8), (8192, 32))),)


def test_a_table_that_the_sidecar_contradicts_keeps_nothing(tmp_path):
    (file,) = write(chosen_winners(*chosen(sizes=(1,))), tmp_path)
    text = file.path.read_text()
    file.path.write_text(text.replace('"8192": 32', '"8192": 16'))
    (file,) = write(chosen_winners(*chosen(Status.PREDICTED, sizes=(64,))), tmp_path)
    assert [row.batch_size for row in file.file.splits.rows] == [64]
