"""Export: what is written is what a real engine's loader then picks, and nothing better is lost."""

import json
import re
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import cases
import pytest
from attention_cases import fill
from bundle_cases import entry
from cases import L40S, resolve, resolve_attention
from real_sglang import RealSGLang
from tiers import only
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.errors import ExportRefused, UnwritableOutput
from tuner.export.choice import choose
from tuner.export.delivery import cards_to_serve
from tuner.export.diff import diff_exports
from tuner.export.export import deliveries_for, export, export_device, packaged_to_carry
from tuner.export.plan import FoundFile, plan_model
from tuner.export.selection import select
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.fused_moe.export import MoeDelivery
from tuner.families.fused_moe.problem import BATCH_SIZES, Gemm
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import Environment, MeasureKind, RunKey, Status, Totals, Winner
from tuner.store.results import ResultStore

PROBLEM = parse_problem("fused_moe:E=256,N=64,K=7168,top_k=8,dtype=int8_w8a8,per_channel_quant")
TRITON = "3.6.0"
REST = BATCH_SIZES[2:]
UP_NAME = "E=256,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True.json"


@pytest.fixture(scope="module")
def engine():
    return find_engine("sglang==0.5.16")


def config(batch_size: int, warps: int = 4) -> Config:
    return cases.config(16, 64, 128, warps, group=1 + batch_size)


def winner(
    batch_size: int, gemm: Gemm, status: Status = Status.OK, warps: int = 4, block_m: int = 16
) -> Winner:
    chosen = config(batch_size, warps).replace(BLOCK_SIZE_M=block_m)
    made = entry(Point(batch_size, gemm), chosen, status)
    environment = Environment("NVIDIA_L40S", "sglang", "0.5.16", TRITON, "abc")
    return Winner(PROBLEM, environment, made, 1, datetime(2026, 11, 1, tzinfo=timezone.utc))


def winners(status: Status = Status.OK, warps: int = 4, sizes=BATCH_SIZES) -> list[Winner]:
    return [winner(size, gemm, status, warps) for size in sizes for gemm in Gemm]


def of(problem, some: list[Winner], **environment: str) -> list[Winner]:
    changed = replace(some[0].environment, **environment)
    return [replace(one, problem=problem, environment=changed) for one in some]


def test_real_loader_finds_and_picks_every_entry(engine, tmp_path):
    files = export(winners(), engine, L40S, tmp_path)
    assert [file.path.name for file in files] == [UP_NAME.replace(".json", "_down.json"), UP_NAME]
    real = RealSGLang("0.5.16")
    for gemm in Gemm:
        found = real.configs(PROBLEM, L40S.name, gemm, TRITON, root=tmp_path)
        assert found == {size: dict(config(size)) for size in BATCH_SIZES}


@pytest.mark.parametrize(
    ("release", "text", "names"),
    [
        ("sglang==0.5.16", "MI355X", ["MI355X", "MI355_OAM"]),
        ("vllm==0.33.0", "MI355X", ["MI355X", "MI355_OAM"]),
        ("vllm==0.33.0", "MI325_OAM", ["MI325X"]),  # which it knows by its number on the bus
        ("vllm==0.10.2", "MI300X_VF", ["MI300X"]),
        ("sglang==0.5.16", "MI300X_VF", ["MI300X_VF"]),
    ],
)
def test_each_name_by_which_servers_may_ask_has_a_file(release, text, names, tmp_path):
    engine, device = find_engine(release), find_device(f"AMD_Instinct_{text}")
    problem = parse_problem("fused_moe:E=77,N=384,K=2048,top_k=8,dtype=bfloat16")
    where = {"device": device.name, "engine": engine.name, "engine_version": engine.version}
    some = of(problem, [one for one in winners() if one.entry.point.part is Gemm.UP], **where)
    for _ in range(2):  # the second time over its own files
        files = export(some, engine, device, tmp_path)
        wanted = [f"E=77,N=384,device_name=AMD_Instinct_{name}.json" for name in names]
        assert sorted(file.path.name for file in files) == sorted(wanted)
    assert len({file.path.read_bytes() for file in files}) == 1
    removed = export_device(left_alone(some), device, engine, tmp_path, allow_predicted=False)
    assert sorted(removed.removed) == sorted(file.path for file in files)


def test_a_further_name_for_which_the_engine_ships_a_file_keeps_it(tmp_path):
    """Servers there run another incumbent, with which nothing was compared."""
    engine, device = find_engine("vllm==0.33.0"), find_device("MI355X")
    assert list(engine.root.rglob("E=160,N=384,device_name=AMD_Instinct_MI355_OAM,dtype=fp8*"))
    problem = parse_problem("fused_moe:E=160,N=384,K=4096,top_k=8,dtype=fp8_w8a8")
    where = {"device": device.name, "engine": "vllm", "engine_version": "0.33.0"}
    some = of(problem, [one for one in winners() if one.entry.point.part is Gemm.UP], **where)
    (file,) = export(some, engine, device, tmp_path)
    assert "MI355X" in file.path.name
    (delivery,) = deliveries_for(some, engine)
    assert cards_to_serve(delivery, problem, device) == [device]
    for card in (device, find_device("L4")):
        (planned,) = plan_model([problem], engine, card, {}, (), lambda _: None).problems
        assert (planned.file is FoundFile.SHIPPED) == (card == device)


def test_a_file_that_would_lack_a_size_is_refused_and_nothing_is_written(engine, tmp_path):
    root = tmp_path / "out"
    with pytest.raises(ExportRefused, match=f"would lack the sizes {' '.join(map(str, REST))}:"):
        export(winners(sizes=BATCH_SIZES[:2]), engine, L40S, root)
    assert not root.exists()


def test_overlay_loses_none_of_the_packaged_files(engine, tmp_path):
    assert export_device(winners(), L40S, engine, tmp_path, allow_predicted=False)
    packaged = moe_engine(engine).package_root / "configs"
    names = [path.relative_to(packaged) for path in packaged.rglob("*.json")]
    assert all(
        (tmp_path / "configs" / n).read_bytes() == (packaged / n).read_bytes() for n in names
    )
    again, other = (
        export_device(winners(), L40S, engine, folder, allow_predicted=False)
        for folder in (tmp_path, tmp_path / "other")
    )
    assert (again.carried, other.carried) == (0, len(names))
    assert len(names) > 300
    assert json.loads((tmp_path / "configs/triton_3_6_0" / UP_NAME).read_text())


def over_a_shipped_file(engine) -> tuple[Path, list[Winner]]:
    """A file that the engine ships for an H200, and winners for the same place."""
    h200 = find_device("H200")
    problem = parse_problem("fused_moe:E=128,N=768,K=2048,top_k=8,dtype=bfloat16")
    moe = moe_engine(engine)
    shipped = moe.find_file(moe.package_root, problem, h200, Gemm.UP, TRITON)
    assert shipped is not None
    triton = shipped.parent.name.removeprefix("triton_").replace("_", ".")
    environment = Environment(h200.name, "sglang", "0.5.16", triton, "abc")
    return shipped, [
        Winner(problem, environment, w.entry, w.run_id, w.published_at)
        for w in winners()
        if w.entry.point.part is Gemm.UP
    ]


def test_a_packaged_file_is_replaced_until_what_it_holds_is_left_alone(engine, tmp_path):
    h200 = find_device("H200")
    shipped, ours = over_a_shipped_file(engine)
    (file,) = export(ours, engine, h200, tmp_path)
    before = file.path.read_bytes()
    assert before != shipped.read_bytes()
    assert file.path not in packaged_to_carry(deliveries_for(ours, engine), tmp_path)
    for folder in (tmp_path, tmp_path / "new"):
        export_device(ours, h200, engine, folder, allow_predicted=False)
        assert (folder / file.path.relative_to(tmp_path)).read_bytes() == before
    alone = left_alone(ours)
    copy = tmp_path / "copy.json"  # as `cp -al` makes it of a whole folder
    copy.hardlink_to(file.path)
    report = export_device(alone, h200, engine, tmp_path, allow_predicted=False)
    assert report.removed == [file.path]
    assert file.path.read_bytes() == shipped.read_bytes()
    assert not file.sidecar.exists()
    assert copy.read_bytes() == before


def left_alone(some: list[Winner]) -> list[Winner]:
    """The same winners once nothing is faster than what the engine runs by itself."""
    return [
        replace(one, entry=replace(one.entry, status=Status.INCUMBENT, median_us=None))
        for one in some
    ]


def test_what_is_left_alone_by_now_is_removed(engine, tmp_path):
    exported = export_device(winners(), L40S, engine, tmp_path, allow_predicted=False)
    alone = left_alone(winners())
    report = export_device(alone, L40S, engine, tmp_path, allow_predicted=False)
    assert not report.files
    assert set(report.removed) == {file.path for file in exported.files}
    assert "not advised by now" in report.as_text()
    assert not any(one.path.exists() or one.sidecar.exists() for one in exported.files)
    again = export_device(alone, L40S, engine, tmp_path, allow_predicted=False)
    assert not again.removed


def test_files_of_a_users_own_folder_are_not_lost(engine, tmp_path):
    """There are winners of both problems, and the engine ships a file for the first."""
    shipped = moe_engine(engine).package_root / "configs"
    beside = next(path.relative_to(shipped) for path in shipped.rglob("*.json"))
    configs = tmp_path / "configs"
    replaced = configs / "triton_3_6_0" / UP_NAME
    for path in (configs / beside, replaced):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"1": {}}')
    for _ in range(2):
        export_device(winners(), L40S, engine, tmp_path, allow_predicted=False)
        assert (configs / beside).read_text() == '{"1": {}}'
        assert replaced.read_text() != '{"1": {}}'
    report = export_device(left_alone(winners()), L40S, engine, tmp_path, allow_predicted=False)
    assert replaced in report.removed
    assert replaced.read_text() == '{"1": {}}'
    assert not list((tmp_path / "provenance").rglob("*.json*"))


@pytest.mark.parametrize("change", ["none", "left alone", "changed by hand"])
def test_files_for_an_older_triton_stay_unless_servers_would_read_them(engine, tmp_path, change):
    """Servers of the older release read them; the engine takes them for a layer without a file."""
    older = of(PROBLEM, winners(), triton="3.5.1")
    first = export_device(older, L40S, engine, tmp_path, allow_predicted=False)
    paths = {file.path for file in first.files}
    if change == "changed by hand":
        for path in paths:
            path.write_text(path.read_text() + "\n")
    now = winners() if change == "none" else left_alone(winners())
    report = export_device(now, L40S, engine, tmp_path, allow_predicted=False)
    assert len(report.files) == (2 if change == "none" else 0)
    assert {*report.removed} == (paths if change == "left alone" else set())
    assert {path.exists() for path in paths} == {change != "left alone"}
    sidecars = {file.sidecar.exists() for file in first.files}
    assert sidecars == {change != "left alone"}


def test_a_file_that_was_changed_by_hand_stays(engine, tmp_path):
    (file, *_) = export_device(winners(), L40S, engine, tmp_path, allow_predicted=False).files
    file.path.write_text(file.text() + "\n")
    alone = left_alone(winners())
    report = export_device(alone, L40S, engine, tmp_path, allow_predicted=False)
    assert file.path not in report.removed
    assert file.path.exists()


def test_sidecar_tells_where_each_entry_came_from(engine, tmp_path):
    files = export(winners(), engine, L40S, tmp_path)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(written) == sorted(path for f in files for path in (f.path, f.sidecar))
    assert len(files) == 2
    for file in files:
        sidecar = json.loads(file.sidecar.read_text())
        assert sidecar["problem"] == PROBLEM.spec()
        row = sidecar["entries"]["64"]
        assert row["config"] == dict(config(64))
        assert (row["median_us"], row["shared_bytes"]) == (12.5, 20480)
        assert row["incumbents"]["default"]["median_us"] == 15.0
        assert row["environment"]["triton"] == TRITON
        assert "status" not in json.loads(file.path.read_text())["64"]


# What was only predicted


OTHER = parse_problem("fused_moe:E=256,N=128,K=7168,top_k=8,dtype=int8_w8a8,per_channel_quant")
LIST = "provenance/left_out,device_name=NVIDIA_L40S.jsonl"
_WHOLLY = "only predicted: measure it, or allow predicted entries"
_PARTLY = (
    "only predicted at M=1 M=64, where the engine's own entries stay: measure them, or allow "
    "predicted entries"
)


@pytest.mark.parametrize(
    ("sizes", "why"), [(BATCH_SIZES, _WHOLLY), ((1, 64), _PARTLY)], ids=["wholly", "in part"]
)
def test_what_was_predicted_is_left_out_and_listed_and_the_rest_is_exported(
    engine, tmp_path, sizes, why
):
    measured = [one for one in winners() if one.entry.point.batch_size not in sizes]
    guessed = winners(Status.PREDICTED, sizes=sizes[:-1]) + [
        # At its last size, one gemm was not to be tuned.
        winner(sizes[-1], Gemm.UP, Status.PREDICTED, 4),
        winner(sizes[-1], Gemm.DOWN, Status.INCUMBENT, 4),
    ]
    mixed = winners() + of(OTHER, measured + guessed)
    report = export_device(mixed, L40S, engine, tmp_path / "out", allow_predicted=False)
    files = {file.path.name: file for file in report.files if file.problem == OTHER}
    assert len(files) == (2 if measured else 0)
    for file in files.values():
        held = {int(size): row for size, row in json.loads(file.path.read_text()).items()}
        assert list(held) == list(BATCH_SIZES)
        own = {size for size, status in file.statuses.items() if status is Status.INCUMBENT}
        assert own == set(sizes)
        assert held[1]["num_stages"] == 7 != held[2]["num_stages"]  # as the entry's incumbent
    said = [{"problem": OTHER.spec(), "why": why}]
    listed = (tmp_path / "out" / LIST).read_text().splitlines()
    assert [json.loads(line) for line in listed] == said == report.as_json()["left_out_problems"]
    assert report.as_json()["left_out"] == f"left out ({why}): {OTHER.spec()}"

    whole = export_device(mixed, L40S, engine, tmp_path / "out", allow_predicted=True)
    assert {file.problem for file in whole.files} == {PROBLEM, OTHER}
    assert not (tmp_path / "out" / LIST).exists()  # it would be wrong now
    assert "left_out_problems" not in whole.as_json()


@pytest.mark.parametrize("measured", [False, True])
def test_a_predicted_file_of_an_earlier_export_is_taken_back_and_a_measured_one_stays(
    engine, tmp_path, measured
):
    guessed = of(OTHER, winners(Status.PREDICTED))
    first = of(OTHER, winners()) if measured else guessed
    export_device(winners() + first, L40S, engine, tmp_path, allow_predicted=True)
    report = export_device(winners() + guessed, L40S, engine, tmp_path, allow_predicted=False)
    assert [one.problem for one in report.left_out] == [OTHER]
    there = list(tmp_path.rglob("*N=128,device_name=NVIDIA_L40S,dtype=int8*.json"))
    assert len(there) == (4 if measured else 0)
    assert len(report.removed) == (0 if measured else 2)


def test_the_list_of_another_device_stays(engine, tmp_path):
    mixed = winners() + of(OTHER, winners(Status.PREDICTED))
    export_device(mixed, L40S, engine, tmp_path, allow_predicted=False)
    h200 = find_device("H200")
    ours = of(PROBLEM, winners(), device=h200.name)
    export_device(ours, h200, engine, tmp_path, allow_predicted=False)
    assert OTHER.spec() in (tmp_path / LIST).read_text()


def test_files_are_made_once(engine, tmp_path, monkeypatch):
    made, make = [], MoeDelivery.files

    def files(delivery, winners, device, root):
        made.extend({winner.problem for winner in winners})
        return make(delivery, winners, device, root)

    monkeypatch.setattr(MoeDelivery, "files", files)
    both = winners() + of(OTHER, winners())
    report = export_device(both, L40S, engine, tmp_path, allow_predicted=False)
    assert len(report.files) == 4
    assert sorted(made, key=str) == sorted([PROBLEM, OTHER], key=str)


def test_where_all_is_predicted_the_export_is_refused(engine, tmp_path):
    both = winners(Status.PREDICTED) + of(OTHER, winners(Status.PREDICTED))
    says = "^72 of the 72 winners for .* and 1 other problem were predicted.* --allow-predicted$"
    with pytest.raises(ExportRefused, match=says) as refused:
        export_device(both, L40S, engine, tmp_path / "out", allow_predicted=False)
    assert refused.value.in_api_words().endswith("measure them, or pass allow_predicted=true")
    assert not (tmp_path / "out").exists()
    report = export_device(both, L40S, engine, tmp_path / "out", allow_predicted=True)
    assert {s for file in report.files for s in file.statuses.values()} == {Status.PREDICTED}


def test_a_named_problem_that_is_only_predicted_is_refused_by_its_name(engine):
    mixed = winners() + of(OTHER, winners(Status.PREDICTED))
    options = {"allow_predicted": False, "wanted": [PROBLEM, OTHER]}
    says = rf"^36 of the 36 winners for {OTHER.spec()} were predicted"
    with pytest.raises(ExportRefused, match=says):
        choose(mixed, L40S, engine, None, named=[OTHER], **options)
    # A model's problems are wanted without being named.
    chosen = choose(mixed, L40S, engine, None, **options)
    assert {one.problem for one in chosen.winners} == {PROBLEM}
    assert [one.problem for one in chosen.left_out] == [OTHER]


def test_predicted_never_overwrites_measured(engine, tmp_path):
    export(winners(sizes=(1, 2)) + winners(Status.INCUMBENT, sizes=REST), engine, L40S, tmp_path)
    predicted = of(PROBLEM, winners(Status.PREDICTED, warps=8), driver="999")
    files = export(predicted, engine, L40S, tmp_path)
    assert len(files) == 2
    for file in files:
        assert len(file.entries) == len(BATCH_SIZES)
        warps = {size: entry["num_warps"] for size, entry in file.entries.items()}
        assert {size for size, n in warps.items() if n == 4} == {1, 2}
        rows = json.loads(file.sidecar.read_text())["entries"]
        assert rows["1"]["status"] == "ok"
        assert rows["4"]["status"] == "predicted"


def test_measured_replaces_predicted_and_older_measured(engine, tmp_path):
    export(winners(Status.PREDICTED), engine, L40S, tmp_path)
    export(winners(warps=8), engine, L40S, tmp_path)
    (_, up) = export(winners(warps=2), engine, L40S, tmp_path)
    assert {entry["num_warps"] for entry in up.entries.values()} == {2}


def test_a_sidecar_of_another_file_keeps_nothing(engine, tmp_path):
    (_, up) = export(winners(), engine, L40S, tmp_path)
    up.path.write_text(up.path.read_text().replace('"num_warps": 4', '"num_warps": 1'))
    (_, again) = export(winners(Status.PREDICTED, warps=8), engine, L40S, tmp_path)
    assert {entry["num_warps"] for entry in again.entries.values()} == {8}


def test_engine_without_down_files_gets_one_file(tmp_path):
    old = find_engine("sglang==0.4.4")
    (file,) = export(winners(), old, L40S, tmp_path)
    assert file.path == tmp_path / "configs" / UP_NAME.replace(",per_channel_quant=True", "")


def test_a_place_that_cannot_be_written_is_refused(engine, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    for root in (blocked, blocked / "below", Path("/proc/nowhere")):
        with pytest.raises(UnwritableOutput, match="cannot write"):
            export(winners(), engine, L40S, root)
    assert blocked.read_text() == "not a folder"


# Problems with one file name

SPEC = "fused_moe:E=256,N=128,K={},top_k=8,dtype=fp8_w8a8,block_shape=128x128"
TWINS = [parse_problem(SPEC.format(hidden)) for hidden in (7168, 6144)]


@pytest.mark.parametrize(
    "second", [Status.OK, Status.PREDICTED], ids=["measured", "one of them predicted"]
)
def test_two_problems_of_one_file_are_left_out_and_stop_no_other(engine, tmp_path, second):
    both = of(TWINS[0], winners()) + of(TWINS[1], winners(second))
    options = {"allow_predicted": True}
    out, others = tmp_path / "out", winners() + both
    report = export_device(others, L40S, engine, out, **options)
    assert {file.problem for file in report.files} == {PROBLEM}
    assert {one.problem for one in report.advice} == {PROBLEM}
    name = "E=256,N=128,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json"
    why = f"2 problems ask for {name}: name one of them to export it"
    listed = [json.loads(line) for line in (out / LIST).read_text().splitlines()]
    assert listed == [{"problem": problem.spec(), "why": why} for problem in reversed(TWINS)]
    assert not [path for path in out.rglob("*E=256,N=128*L40S*") if "provenance" in path.parts]

    for stored, named in (both, ()), (others, TWINS[:1]):
        with pytest.raises(ExportRefused, match="name one of them to export it") as refused:
            export_device(stored, L40S, engine, tmp_path / "none", named=named, **options)
        assert all(problem.spec() in str(refused.value) for problem in TWINS)
        assert not (tmp_path / "none").exists()
    one = export_device(others, L40S, engine, tmp_path / "one", wanted=TWINS[1:], **options)
    assert {file.problem for file in one.files} == {TWINS[1]}


def test_a_problem_without_winners_names_the_nearest():
    wanted = parse_problem(SPEC.format(7167))
    with pytest.raises(ExportRefused) as refused:
        select(of(TWINS[0], winners()), [wanted], L40S, find_engine("sglang==0.5.16"))
    place = "--device NVIDIA_L40S --engine sglang==0.5.16"
    tune = f"run `tuner tune {wanted.spec()} {place}` first"
    assert str(refused.value).endswith(f": {tune}; did you mean '{TWINS[0].spec()}'?")


def test_the_command_chooses_by_problem_or_model(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path}/tuner.db"
    monkeypatch.setenv("TUNER_DATABASE_URL", url)
    card, model = find_device("H200"), "deepseek-r1"
    engine = find_engine("sglang==0.5.16")
    mine = resolve(model, tp=16, device=card, engine_version=engine.version).problem
    other = replace(mine, K=6144)
    attention = resolve_attention(model, tp=16, device=card, engine_version=engine.version)
    with ResultStore.open(url) as store:
        for problem in (mine, other):
            some = of(problem, winners(), device=card.name)
            points = tuple(one.entry.point for one in some)
            key = RunKey(problem, some[0].environment, MeasureKind.GPU, "quick", 0, points, "s")
            store.finish_run(store.begin_run(key), [one.entry for one in some], Totals())
        for problem in attention.problems:
            fill(store, problem)
    command = ["export", "--device", "H200", "--engine", "sglang==0.5.16"]
    command += ["--server-args", "--attention-backend triton"]
    run = CliRunner().invoke
    every = run(app, [*command, "--out", str(tmp_path / "out"), "--json"])
    assert every.exit_code == 0, every.stderr
    assert "left out (2 problems ask for E=257,N=" in every.stderr
    left_out = [one["problem"] for one in json.loads(every.stdout)["left_out_problems"]]
    assert left_out == [other.spec(), mine.spec()]
    said = {}
    for name, options in {
        "problem": ["--problem", other.spec()],
        "model": [model, "--tp", "16"],
    }.items():
        done = run(app, [*command, "--out", str(tmp_path / name), "--json", *options])
        assert done.exit_code == 0, done.stderr
        said[name] = {file["problem"] for file in json.loads(done.stdout)["files"]}
    assert said["problem"] == {other.spec()}
    assert said["model"] == {mine.spec(), *(p.spec() for p in attention.problems)}
    alone = run(app, [*command, "--tp", "16"])
    assert (alone.exit_code, "tuner export MODEL" in alone.stderr) == (2, True)
    for words in (["export", model, "--tp", "4"], ["report", model, "--tp", "4"]):
        none = run(app, [*words, *command[1:]])
        assert (none.exit_code, "did you mean" in none.stderr) == (1, False)
        served = "--engine sglang==0.5.16 --server-args '--attention-backend triton' --tp 4"
        step = f"run `tuner tune {model} --device H200 {served} --all` first"
        assert step in " ".join(none.stderr.split())
    unknown = run(app, [*command, "deepseek-r11", "--tp", "16"])
    assert (unknown.exit_code, "did you mean" in unknown.stderr) == (2, True)


# What an earlier export measured


@pytest.mark.parametrize(
    "change",
    [{"kernel_hash": "other"}, {"engine_version": "0.5.12"}],
    ids=["other kernels", "another version"],
)
def test_measured_rows_are_kept_for_the_same_kernels_alone(engine, tmp_path, change):
    export(of(TWINS[0], winners()), engine, L40S, tmp_path)
    predicted = of(TWINS[0], winners(Status.PREDICTED, warps=8), **change)
    files = export(predicted, engine, L40S, tmp_path)
    assert len(files) == 2
    for file in files:
        assert {entry["num_warps"] for entry in file.entries.values()} == {8}
        assert set(file.statuses.values()) == {Status.PREDICTED}


VLLM = {"engine": "vllm", "engine_version": "0.33.0", "triton": "3.8.0"}


@pytest.mark.parametrize(
    ("spec", "problem", "card", "software"),
    [
        ("sglang==0.5.16", TWINS[1], "L40S", {}),
        ("vllm==0.33.0", TWINS[1], "H200", VLLM),
        ("vllm==0.33.0", TWINS[0], "H200 NVL", VLLM),  # vLLM gives both cards one name
    ],
)
def test_the_file_of_another_problem_or_card_stays(tmp_path, spec, problem, card, software):
    first = "H200" if software else "L40S"
    found, card, mine = find_engine(spec), find_device(card), find_device(first)
    ours = of(TWINS[0], winners(), device=mine.name, **software)
    out = tmp_path / "out"
    files = export_device(ours, mine, found, out, allow_predicted=False).files
    before = {path: path.read_bytes() for path in out.rglob("*.json")}
    says = f"{re.escape(files[0].path.name)} is of {TWINS[0].spec()} on {mine.name}, and servers"
    some = of(problem, winners(warps=8), device=card.name, **software)
    with pytest.raises(ExportRefused, match=f"{says} of both would read it: export to another"):
        export_device(some, card, found, out, allow_predicted=False)
    alone = export_device(left_alone(some), card, found, out, allow_predicted=False)
    assert not alone.removed
    assert {path: path.read_bytes() for path in out.rglob("*.json")} == before
    other = export_device(some, card, found, tmp_path / "other", allow_predicted=False)
    assert [file.path.name for file in other.files] == [file.path.name for file in files]


def test_times_of_a_file_for_both_gemms_are_of_both(tmp_path):
    us = {Gemm.UP: 10.0, Gemm.DOWN: 50.0}
    some = [
        replace(one, entry=replace(one.entry, median_us=us[one.entry.point.part]))
        for one in of(TWINS[0], winners(), **VLLM)
    ]
    export(some, find_engine("vllm==0.33.0"), L40S, tmp_path)
    (tmp_path / "none/provenance").mkdir(parents=True)
    (file,) = diff_exports(tmp_path / "none", tmp_path).files
    assert file.after == pytest.approx(15.0 * 2 / 60.0)


# Pairs


@pytest.mark.parametrize("version", only(["0.5.23"], ["0.5.12", "0.5.16", "0.5.23"]))
def test_up_and_down_with_different_blocks_are_refused(version, tmp_path):
    pair = [winner(1, Gemm.UP, block_m=64), winner(1, Gemm.DOWN, block_m=16)]
    says = "M=1: up has BLOCK_SIZE_M=64 and down has 16, .* tune both gemms together"
    found = find_engine(f"sglang=={version}")
    with pytest.raises(ExportRefused, match=f"{says}$"):
        export(pair, found, L40S, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    some = of(PROBLEM, pair, engine_version=version)
    beside = of(OTHER, winners(), engine_version=version) + some
    report = export_device(beside, L40S, found, tmp_path / "out", allow_predicted=False)
    assert {file.problem for file in report.files} == {OTHER}
    (left_out,) = report.left_out
    assert left_out.problem == PROBLEM
    assert re.search(says, left_out.why)


def test_the_nearest_entry_of_a_shorter_file_must_fit_as_well(engine, tmp_path):
    some = [winner(1, Gemm.UP), winner(64, Gemm.UP, block_m=64), winner(1, Gemm.DOWN)]
    with pytest.raises(ExportRefused, match="M=64: up has BLOCK_SIZE_M=64 and down has 16"):
        export(some, engine, L40S, tmp_path)
    assert not list(tmp_path.rglob("*.json"))


def test_a_gemm_alone_must_fit_what_the_engine_runs_beside_it(engine, tmp_path):
    default = moe_engine(engine).default_config(PROBLEM, L40S, 1)["BLOCK_SIZE_M"]
    assert default != 64
    wide = [winner(size, gemm, block_m=64) for size in BATCH_SIZES for gemm in Gemm]
    with pytest.raises(ExportRefused, match=f"up has BLOCK_SIZE_M={default} and down has 64"):
        export([winner(1, Gemm.DOWN, block_m=64)], engine, L40S, tmp_path)
    (up,) = export([w for w in wide if w.entry.point.part is Gemm.UP], engine, L40S, tmp_path)
    (down,) = export([w for w in wide if w.entry.point.part is Gemm.DOWN], engine, L40S, tmp_path)
    assert (up.gemm, down.gemm) == (Gemm.UP, Gemm.DOWN)
    with pytest.raises(ExportRefused, match="up has BLOCK_SIZE_M=16 and down has 64"):
        export([winner(1, Gemm.UP, block_m=16)], engine, L40S, tmp_path)


def test_an_engine_without_a_variable_is_told_how_to_be_given_the_files(tmp_path):
    some = of(PROBLEM, winners(), engine_version="0.4.4", triton="3.1.0")
    old = find_engine("sglang==0.4.4")
    said = export_device(some, L40S, old, tmp_path, allow_predicted=False).as_text()
    said = " ".join(said.split())  # where lines are folded depends on the folder's name
    assert f"sglang 0.4.4 reads no folder but its own: copy {tmp_path}/configs and" in said
    assert "sglang/srt/layers/moe/fused_moe_triton where it serves, or export there with" in said
