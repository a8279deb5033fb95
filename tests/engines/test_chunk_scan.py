"""The chunked scan of sglang and vLLM: what is launched, chosen and exported."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cases import L40S
from interpret_scans import CASES
from interpreter import interpreted
from tiers import only
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.errors import BadInput, MalformedConfigFile, UnsupportedKernel
from tuner.export.delivery import delivery_of
from tuner.export.files import sidecar_text, write_all
from tuner.families.scans.check import check_files, check_problems, claims
from tuner.families.scans.chunk_scan.family import FAMILY
from tuner.families.scans.chunk_scan.kernels import racy
from tuner.families.scans.chunk_scan.problem import ChunkScan, SsdKernel
from tuner.families.scans.engine import ScanKernels, scan_engine
from tuner.families.scans.files import ScanEntry, ScanFile, find_scan_files, read_scan_file
from tuner.families.scans.selection import PromptSelection, parse_prompts
from tuner.families.scans.space import scan_space
from tuner.measure.recording import write_trials
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import Compiled, MeasureKind, Measurement, Status, Trial, Winner
from tuner.store.results import ResultStore
from tuner.tuning.report import RunReport
from tuner.tuning.request import Effort, Request, Source, prepare
from tuner.tuning.run import execute, open_source

H100 = find_device("H100")
NANO = ChunkScan.parse("chunk_scan:heads=64,head_dim=64,groups=8,state_size=128,chunk_size=128")
CONSTANTS, CHOOSING, VLLM = "sglang==0.5.16", "sglang==0.5.23", "vllm==0.33.0"
ENGINES = [CONSTANTS, CHOOSING, VLLM]
LONG = (1, 8192)


def kernels_of(engine: str) -> ScanKernels:
    return scan_engine(find_engine(engine), "chunk_scan").lift()


# Kernels


@pytest.mark.slow  # it runs each configuration in the interpreter
@pytest.mark.parametrize("engine", [CONSTANTS, CHOOSING])
def test_each_configuration_is_right_for_prompts_that_continue(engine):
    """sglang runs other variants of the kernels for them, with the same configurations."""
    rows = interpreted("interpret_continued.py", engine)
    assert {row["kernel"] for row in rows} == {part.value for part in SsdKernel}
    for row in rows:
        assert row["error"] < 4e-3, row  # the rounding of float16, of the whole chain


@pytest.mark.parametrize("engine", only([CONSTANTS, VLLM], ENGINES))
def test_the_kernels_scan_as_the_reference_does(engine, tmp_path):
    errors = interpreted("interpret_scans.py", engine, "chunk_scan", tmp_path)
    assert errors.keys() == CASES["chunk_scan"].keys()
    for case, found in errors.items():
        assert found.keys() == {*(part.value for part in SsdKernel), "chain"}
        assert max(found.values()) < 1e-3, case  # the rounding of float16


@pytest.mark.parametrize("engine", ENGINES)
def test_each_kernel_is_launched_with_its_configuration(engine):
    kernels = kernels_of(engine)
    tile = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32}
    config = Config({**tile, "num_warps": 2, "num_stages": 4})
    point = Point(1, SsdKernel.SCAN, 8192)
    (launch,) = kernels.launches(NANO, point, config, H100.target)
    assert launch.grid == (2 * 2, 64, 64)  # tiles of a chunk, chunks, heads
    variant = launch.binding.variant()
    assert {name: variant.constants[name] for name in tile} == tile
    assert variant.options == {"num_warps": 2, "num_stages": 4}
    assert variant.signature["x_ptr"] == "*bf16"
    assert variant.signature["states_ptr"] == "*fp32"
    longer = kernels.launches(NANO, replace(point, new_tokens=32768), config, H100.target)
    assert longer[0].binding.variant() == variant  # all lengths share a compiled kernel
    with pytest.raises(UnsupportedKernel, match="chunk_scan needs num_stages"):
        kernels.launches(NANO, point, Config({**tile, "num_warps": 2}), H100.target)
    with pytest.raises(UnsupportedKernel, match="takes no config key 'BLOCK_SIZE_H'"):
        kernels.launches(NANO, point, Config({**config, "BLOCK_SIZE_H": 2}), H100.target)


def test_sglangs_two_kernels_of_states_share_a_configuration():
    config = kernels_of(CONSTANTS).constants(NANO, SsdKernel.STATE, H100.target)
    blocks = dict.fromkeys(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), 16)
    assert config == Config({**blocks, "num_warps": 4, "num_stages": 3})
    point = Point(8, SsdKernel.STATE, 2048)
    launches = kernels_of(CONSTANTS).launches(NANO, point, config, H100.target)
    assert [launch.grid for launch in launches] == [(32, 128, 64), (32, 8, 64)]


@pytest.mark.parametrize("engine", [CHOOSING, VLLM])
def test_an_engines_own_list_is_read_without_what_races(engine):
    kernels = kernels_of(engine)
    assert kernels.constants(NANO, SsdKernel.SCAN, H100.target) is None
    everywhere = kernels.listed(NANO, SsdKernel.SCAN, L40S.target)
    on_sm90 = kernels.listed(NANO, SsdKernel.SCAN, H100.target)
    assert len(everywhere) == 18  # of 23: five have a tile that is wider than a head
    assert [one for one in everywhere if not racy(one, H100.target)] == on_sm90
    assert len(on_sm90) == 12
    for part in SsdKernel:
        space = scan_space(NANO, part, H100)
        assert all(map(space.legal, kernels.listed(NANO, part, H100.target))), part


# Prompts


def test_prompts_are_written_as_sequences_times_tokens():
    read = parse_prompts("1x8192, 8x2048")
    selection = FAMILY.read_selection(NANO, {"prompts": read})
    assert selection == PromptSelection(((1, 8192), (8, 2048)))
    assert FAMILY.read_selection(NANO, selection.as_json()) == selection
    assert len(selection.points(NANO)) == 2 * len(SsdKernel)
    assert not FAMILY.read_selection(NANO, {"prompts": "usual"}).given
    for text in ("8192", "1x", "0x5", "1x8192,", "1x99999999"):
        with pytest.raises(BadInput, match="prompts are sequences x tokens"):
            parse_prompts(text)
    with pytest.raises(BadInput, match="write 3x128 for 3x100"):
        FAMILY.read_selection(NANO, {"prompts": parse_prompts("3x100")})
    assert FAMILY.read_selection(NANO, {"prompts": parse_prompts("1x100")}).given


# Runs, whose times are recorded ones


def time_us(candidate: Candidate) -> float:
    """Small tiles win at one chunk, and large ones with many tokens."""
    config, tokens = candidate.config, candidate.point.batch_size * candidate.point.new_tokens
    block = config.get("BLOCK_SIZE_M", config.get("BLOCK_SIZE", config.get("BLOCK_SIZE_H", 1)))
    return block + tokens * config["num_stages"] / block


def replayed(engine: str, folder: Path, prompts=(LONG,), problem: ChunkScan = NANO) -> RunReport:
    kernels, trials = kernels_of(engine), []
    for part in problem.parts:
        constants = kernels.constants(problem, part, H100.target)
        some = [*kernels.listed(problem, part, H100.target)]
        some += [*scan_space(problem, part, H100).configs()[:40], *filter(None, [constants])]
        for size in (*prompts, (1, problem.chunk_size)):
            for config in dict.fromkeys(some):
                candidate = Candidate(Point(size[0], part, size[1]), config)
                measured = Measurement(Status.OK, time_us(candidate))
                trials.append(Trial(candidate, Compiled(Status.OK, 1024), measured))
    path = folder / f"h100_{engine}.csv"
    write_trials(path, problem, trials)
    source, selection = Source(MeasureKind.REPLAY, path), PromptSelection(prompts)
    asked = Request(problem, H100, find_engine(engine), source, selection, Effort.QUICK)
    with ResultStore.open(f"sqlite:///{folder}/{engine}.db") as store, Workbench() as workbench:
        return execute(prepare(asked), open_source(asked, workbench), store)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_chooses_for_each_kernel_and_length(engine, tmp_path):
    report = replayed(engine, tmp_path, ((1, 1024), LONG))
    assert {entry.point for entry in report.entries} == {
        Point(1, part, tokens) for part in SsdKernel for tokens in (1024, 8192)
    }
    kernels = kernels_of(engine)
    for entry in report.entries:
        own = entry.incumbents["default"]
        assert entry.median_us <= own.median_us
        constants = kernels.constants(NANO, entry.point.part, H100.target)
        listed = kernels.listed(NANO, entry.point.part, H100.target)
        first = Point(1, entry.point.part, 128)
        assert own.config == constants or own.config == min(
            listed, key=lambda config: (time_us(Candidate(first, config)), config)
        )
    assert "chunk_bmm" in report.as_text()


# Files


def winners_of(report: RunReport) -> list[Winner]:
    now = datetime(2026, 11, 25, tzinfo=timezone.utc)
    return [Winner(NANO, report.environment, entry, 1, now) for entry in report.entries]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_export_reads_back_and_picks_by_tokens(engine, tmp_path):
    report = replayed(engine, tmp_path, ((1, 1024), LONG))
    delivery, root = delivery_of(find_engine(engine), "chunk_scan"), tmp_path / "out"
    (file,) = delivery.files(winners_of(report), H100, root)
    assert file.path.name in delivery.asked(NANO, H100)
    assert delivery.variable == "TUNER_SCAN_CONFIG_DIR"
    contents = {file.path: file.text(), file.sidecar: sidecar_text(file.provenance)}
    write_all(root, {path: text.encode() for path, text in contents.items()})
    delivery.verify([file], H100, root)
    assert find_scan_files(root) == [file.path]
    read = read_scan_file(file.path)
    assert read.kernel_hash == kernels_of(engine).hash
    chosen = {entry.point: entry.config for entry in report.entries}
    for tokens, nearest in ((512, 1024), (1024, 1024), (2048, 1024), (4096, 8192), (16384, 8192)):
        entry = read.pick(SsdKernel.SCAN, tokens)
        assert entry.config == chosen[Point(1, SsdKernel.SCAN, nearest)]
    for tokens in (1, 511, 2049, 4095, 16385):  # more than an octave from each
        assert read.pick(SsdKernel.SCAN, tokens) is None
    assert len(list(file.rows())) == len(chosen)
    assert delivery.obstacle(into_engine=True)


@pytest.mark.parametrize(
    ("engine", "newer"),
    # The kernels of 0.5.23 differ in empty lines, so their hash does.
    [(CONSTANTS, CHOOSING), (VLLM, "vllm==0.24.0")],
)
def test_exported_files_are_checked_against_the_release(engine, newer, tmp_path):
    root, found = tmp_path / "out", find_engine(engine)
    report = replayed(engine, tmp_path)
    report = replace(report, environment=replace(report.environment, triton="3.6.0"))
    delivery = delivery_of(found, "chunk_scan")
    (file,) = delivery.files(winners_of(report), H100, root)
    file.path.parent.mkdir(parents=True)
    file.path.write_text(file.text())
    assert delivery.refusal(file.path, "3.6.0") == ""
    assert delivery.refusal(file.path, "3.8.0") == "made for triton 3.6.0, this is 3.8.0"
    later = delivery_of(find_engine(newer), "chunk_scan").refusal(file.path, "3.6.0")
    assert later is not None and "whose kernels are not those" in later
    assert delivery.refusal(file.sidecar, "3.6.0") is None
    assert delivery.refusal(root / "attention" / "triton_3_6_0" / file.path.name, "3.6.0") is None


def test_malformed_files_are_refused_by_name(tmp_path):
    path = tmp_path / "file.json"
    report = replayed(CHOOSING, tmp_path)
    delivery = delivery_of(find_engine(CHOOSING), "chunk_scan")
    (file,) = delivery.files(winners_of(report), H100, tmp_path)
    for old, new, said in (
        ('"format": 1', '"format": 2', "no object of format 1"),
        ('"chunk_bmm"', '"chunk_bm"', "did you mean 'chunk_bmm'"),
        ('"new_tokens": 8192', '"new_tokens": 0', "new_tokens must be a whole number"),
        ('"status": "ok"', '"status": "predicted"', "unknown status"),
        ("heads=64", "heads=63", "do not divide"),
    ):
        path.write_text(file.text().replace(old, new))
        with pytest.raises(MalformedConfigFile, match=said):
            read_scan_file(path)


def test_what_an_engine_runs_and_what_a_file_says_compiles(tmp_path):
    small = replace(NANO, heads=4, groups=2)
    check = check_problems([small], L40S, find_engine(CONSTANTS))
    assert check.fits
    assert [entry.part for entry in check.entries] == list(SsdKernel)
    assert "chunk_state_varlen" not in check.as_text()
    report = replayed(CONSTANTS, tmp_path, problem=small)
    winners = [replace(one, problem=small) for one in winners_of(report)]
    (file,) = delivery_of(find_engine(CONSTANTS), "chunk_scan").files(winners, H100, tmp_path)
    path = tmp_path / file.path.name
    # Too large a tile: 5 stages of 128 x 256 and 128 rows.
    huge = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 128}
    whole = json.loads(file.text())
    bmm = next(row for row in whole["entries"] if row["part"] == "chunk_bmm")
    bmm["config"] = {**huge, "num_warps": 8, "num_stages": 5}
    path.write_text(json.dumps({**whole, "entries": [bmm]}))
    assert claims(path.name, find_engine(CONSTANTS))
    (entry,) = check_files([path], L40S, find_engine(CONSTANTS), {}).entries
    assert entry.status == Status.OUT_OF_RESOURCES.value
    assert "shared memory" in entry.why


def test_a_file_is_held_against_the_model_that_it_is_for(tmp_path):
    config = Config({"BLOCK_SIZE_H": 16, "num_warps": 4, "num_stages": 3})
    entry = ScanEntry(Point(1, SsdKernel.CUMSUM, 8192), config, Status.OK)
    engine = find_engine(CONSTANTS)
    file = ScanFile(NANO, L40S.name, engine.name, engine.version, "3.6.0", "hash", (entry,))
    path = tmp_path / file.path_under(tmp_path).name
    path.write_text(file.text())
    command = ["check", str(path), "--model", "nemotron-3-nano-30b-a3b", "--engine", CONSTANTS]
    other = path.name.replace("heads=64", "heads=32").replace("groups=8", "groups=4")
    for tp, code, asked in ((1, 0, []), (2, 1, [other])):
        done = CliRunner().invoke(app, [*command, "--device", "L40S", "--tp", str(tp), "--json"])
        assert done.exit_code == code, done.output
        unread = json.loads(done.stdout).get("unread", [])
        assert [name for one in unread for name in one["asked"]] == asked
