"""Recordings: reading them strictly, writing them, and answering from them."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
from cases import FP8, H200

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.errors import BadInput, MalformedRecording, UnwritableOutput
from tuner.families.fused_moe.family import MoeSelection
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.families.fused_moe.recording import read_recording, write_recording
from tuner.measure import recording as recording_file
from tuner.measure.recording import Origin, Replay
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import (
    UNCHECKED,
    UNTUNED,
    Compiled,
    MeasureKind,
    Measurement,
    Status,
    Trial,
)
from tuner.tuning.request import PreparedRun, Request, Source, origin_of, prepare

NAME = "h200_E256_N256_K7168_top8_fp8w8a8_b128.csv.gz"
PATH = Path(__file__).parents[1] / "data" / "recordings" / NAME

HEADER = (
    "E,N,K,topk,dtype,block,M,gemm,BLOCK_SIZE_M,BLOCK_SIZE_N,BLOCK_SIZE_K,GROUP_SIZE_M,"
    "num_warps,num_stages,shared,n_regs,n_spills,min_us,median_us,status"
)
OK = '256,256,7168,8,fp8_w8a8,"128,128",2,up,16,64,128,1,4,2,20480,90,0,22.5,22.75,ok'
OVER = '256,256,7168,8,fp8_w8a8,"128,128",2,up,256,256,128,1,8,4,263168,,,,,out_of_resources'


@pytest.fixture(scope="module")
def recording():
    return read_recording(PATH)


def make(tmp_path: Path, *lines: str, name: str = NAME) -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


# Reading


def test_a_recording_says_what_it_holds(recording):
    assert recording.problem == FP8
    assert recording.origin == Origin("NVIDIA_H200")
    assert recording.points == sorted(Point(m, g) for m in (2, 16, 128, 1024, 4096) for g in Gemm)
    assert len(recording.trials) == 12_480
    statuses = [trial.measurement.status for trial in recording.trials.values()]
    assert (statuses.count(Status.OK), statuses.count(Status.OUT_OF_RESOURCES)) == (12_240, 240)


def test_a_row_is_a_trial(tmp_path):
    ok, over = read_recording(make(tmp_path, HEADER, OK, OVER)).trials.values()
    assert ok.candidate.point == Point(2, Gemm.UP)
    assert ok.candidate.config["BLOCK_SIZE_N"] == 64
    assert ok.compiled == Compiled(Status.OK, 20_480, 90, 0)
    assert ok.measurement == Measurement(Status.OK, median_us=22.75, min_us=22.5)
    assert over.compiled == Compiled(Status.OUT_OF_RESOURCES, 263_168)
    assert over.measurement == Measurement(Status.OUT_OF_RESOURCES)


def test_the_hash_is_of_the_text_not_of_its_packing(tmp_path):
    path = make(tmp_path, HEADER, OK)
    packed, sha256 = path.read_bytes(), read_recording(path).sha256
    path.write_bytes(gzip.compress(gzip.decompress(packed), 1, mtime=1))
    assert path.read_bytes() != packed
    assert read_recording(path).sha256 == sha256


def test_a_name_without_a_gpu_leaves_the_device_open(tmp_path):
    assert read_recording(make(tmp_path, HEADER, OK, name="mine.csv.gz")).origin == Origin()


@pytest.mark.parametrize(
    ("dtype", "block", "problem"),
    [
        ("int8_w8a8", "", FusedMoe(256, 256, 7168, 8, Dtype.INT8_W8A8, per_channel_quant=True)),
        ("fp8_w8a8", "none", FusedMoe(256, 256, 7168, 8, Dtype.FP8_W8A8)),
        ("bf16", "", FusedMoe(256, 256, 7168, 8, Dtype.BFLOAT16)),
        ("int4_w4a16", '"0,128"', FusedMoe(256, 256, 7168, 8, Dtype.INT4_W4A16, (0, 128))),
    ],
)
def test_other_dtypes(tmp_path, dtype, block, problem):
    row = OK.replace("fp8_w8a8", dtype).replace('"128,128"', block)
    assert read_recording(make(tmp_path, HEADER, row)).problem == problem


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([HEADER.replace("median_us", "median")], "line 1: column median_us is missing"),
        ([HEADER + ",M"], "line 1: a column is named twice"),
        ([HEADER], "holds no rows"),
        ([], "line 1: column E is missing"),
        ([HEADER, OK, OK + ",1"], "line 3: 21 cells under 20 columns"),
        ([HEADER, OK, OK], "line 3, column BLOCK_SIZE_M: M=2 up .* is there twice"),
        ([HEADER, OK.replace(",2,up", ",2,upp")], "line 2, column gemm: 'upp'.* mean 'up'"),
        ([HEADER, OK.replace(",2,up", ",2.0,up")], "line 2, column M: '2.0' is not a whole"),
        ([HEADER, OK.replace(",90,", ",-9,")], "line 2, column n_regs: '-9' is not a whole"),
        ([HEADER, OK.replace("22.75", "nan")], "line 2, column median_us: 'nan' is not a time"),
        ([HEADER, OK.replace("22.5,", "0,")], "line 2, column min_us: '0' is not a time"),
        ([HEADER, OK.replace("22.75", "")], "line 2, column median_us: '' is not a time"),
        ([HEADER, OVER.replace(",,out", ",7,out")], "line 2, column median_us: a time, though"),
        ([HEADER, OK.replace(",ok", ",okay")], "line 2, column status: .*mean 'ok'"),
        ([HEADER, OK.replace(",ok", ",predicted")], "line 2, column status: unknown status"),
        ([HEADER, OK.replace("fp8_w8a8", "fp6")], "line 2, column dtype: unknown dtype 'fp6'"),
        ([HEADER, OK.replace("128,128", "128x128")], "line 2, column block: '128x128'"),
        ([HEADER, OK.replace("128,128", "1" * 5000 + ",1")], "line 2, column block: '111"),
        ([HEADER, OK.replace("256,256,", "0,256,", 1)], "line 2, column dtype: E must be"),
        ([HEADER, OK, OVER.replace("7168", "2048")], "line 3, column K: '2048', but '7168'"),
        ([HEADER, OK.replace('"128,128"', '"128,128')], "line 2: unexpected end of data"),
    ],
)
def test_a_malformed_recording_is_refused_where_it_is_wrong(tmp_path, lines, complaint):
    path = make(tmp_path, *lines)
    with pytest.raises(MalformedRecording, match=complaint) as refused:
        read_recording(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"E,N,K\n", "not a gzip file"),
        (PATH.read_bytes()[:9000], "is damaged"),
        (gzip.compress(f"{HEADER}\n{OK}".encode(), mtime=0)[:-8] + bytes(8), "CRC check failed"),
        (gzip.compress(b"\xff\xfe", mtime=0), "is damaged"),
        (b"", "line 1: column E is missing"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, data, complaint):
    path = tmp_path / "h200.csv.gz"
    path.write_bytes(data)
    with pytest.raises(MalformedRecording, match=complaint):
        read_recording(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(MalformedRecording, match="cannot be read: No such file"):
        read_recording(tmp_path / "none.csv.gz")


def test_a_recording_that_is_too_large_is_refused(tmp_path, monkeypatch):
    text = f"{HEADER}\n{OK}\n"
    path = make(tmp_path, HEADER, OK, "")
    monkeypatch.setattr(recording_file, "MAX_BYTES", len(text))
    assert len(read_recording(path).trials) == 1
    monkeypatch.setattr(recording_file, "MAX_BYTES", len(text) - 1)
    with pytest.raises(MalformedRecording, match="unpacks to more than"):
        read_recording(path)


# Whether it fits what is asked


def test_the_problem_must_be_the_recorded_one(recording):
    recording.check(FP8, recording.points)
    other = FusedMoe(256, 128, 7168, 8, Dtype.FP8_W8A8, (128, 128))
    with pytest.raises(BadInput, match=r"holds fused_moe:E=256,N=256.*, not .*N=128"):
        recording.check(other, recording.points)


def test_the_points_must_be_recorded_ones(recording):
    with pytest.raises(BadInput, match="nothing for M=3 up; it holds M=2 down, M=2 up"):
        recording.check(FP8, [Point(2, Gemm.UP), Point(3, Gemm.UP)])


ASKED = Request(FP8, H200, find_engine("sglang==0.5.16"), Source(MeasureKind.REPLAY, PATH))


def replayed(path: Path, device: str = "H200") -> PreparedRun:
    source = Source(MeasureKind.REPLAY, path)
    points = MoeSelection((2,), (Gemm.UP,))
    return prepare(replace(ASKED, device=find_device(device), source=source, selection=points))


def test_an_old_recording_is_of_the_card_in_its_name(tmp_path):
    with pytest.raises(BadInput, match="recorded on NVIDIA_H200, not NVIDIA_L40S, sglang 0.5.16"):
        replayed(PATH, "L40S")
    assert "does not say which engine and Triton" in " ".join(replayed(PATH).notes)
    unnamed = tmp_path / "somewhere.csv.gz"
    unnamed.write_bytes(PATH.read_bytes())
    with pytest.raises(BadInput, match="does not say on which card .* begin its name with"):
        replayed(unnamed)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, ""),
        ({"device": "NVIDIA_L40S"}, "recorded on NVIDIA_L40S, sglang 0.5.16, Triton .*, not NVID"),
        ({"engine": "vllm"}, "recorded on NVIDIA_H200, vllm 0.5.16"),
        ({"engine_version": "0.5.12"}, "sglang 0.5.12, Triton .*, not NVIDIA_H200, sglang 0.5.16"),
        ({"triton": "2.0.0"}, "Triton 2.0.0, not NVIDIA_H200"),
    ],
)
def test_a_recording_says_what_its_times_are_of(tmp_path, recording, changed, says):
    origin = replace(origin_of(ASKED), **changed)
    path = tmp_path / "h100_by_its_name.csv.gz"  # columns count before the name
    write_recording(path, FP8, recording.trials.values(), origin)
    assert read_recording(path).origin == origin
    if not says:
        assert not [note for note in replayed(path).notes if "does not say" in note]
        return
    with pytest.raises(BadInput, match=says):
        replayed(path)


def test_rows_of_two_engines_are_no_recording(tmp_path):
    header = HEADER.replace(",M,", ",engine,M,")
    rows = [OK.replace(f",{at},", f",{name},{at},", 1) for at, name in ((2, "sglang"), (2, "vllm"))]
    with pytest.raises(MalformedRecording, match="column engine: 'vllm', but 'sglang' in the firs"):
        read_recording(make(tmp_path, header, *rows))


def test_a_format_without_the_column_fits_either_kind_of_scale(tmp_path):
    silent = read_recording(make(tmp_path, HEADER, OK.replace('"128,128"', "")))
    for channels in (False, True):
        problem = FusedMoe(256, 256, 7168, 8, Dtype.FP8_W8A8, per_channel_quant=channels)
        silent.check(problem, silent.points)


# Writing


def trial(m: int, gemm: Gemm, status: Status, config: Config) -> Trial:
    failed = status in (Status.OUT_OF_RESOURCES, Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT)
    compiled = Compiled(status if failed else Status.OK, 1024, 80, 4)
    times = (10.1 + m / 3, 10.0 + m / 3) if status is Status.OK else (None, None)
    return Trial(Candidate(Point(m, gemm), config), compiled, Measurement(status, *times))


def test_what_was_never_compared_is_not_recorded_as_right(tmp_path, recording):
    """A search compares only what may be the best; a replay must not take the rest for compared."""
    configs = [one.config for one in list(recording.trials)[:2]]
    right, unknown = (trial(8, Gemm.UP, Status.OK, config) for config in configs)
    slow = replace(unknown.measurement, detail=f"{UNCHECKED}; 0.10 us for padded rows")
    path = tmp_path / "h200_written.csv.gz"
    write_recording(path, FP8, [right, replace(unknown, measurement=slow)])
    read = list(read_recording(path).trials.values())
    assert [one.unchecked for one in read] == [False, True]
    assert read[1].measurement.median_us == unknown.measurement.median_us


@pytest.mark.parametrize(
    "problem",
    [
        FP8,
        FusedMoe(8, 14336, 4096, 2, Dtype.BFLOAT16),
        FusedMoe(8, 14336, 4096, 2, Dtype.FP8_W8A8, per_channel_quant=True),
        FusedMoe(8, 14336, 4096, 2, Dtype.INT8_W8A16, (0, 64)),
    ],
)
def test_what_is_written_reads_back(tmp_path, recording, problem):
    config = next(iter(recording.trials)).config
    without = (Status.PREDICTED, *UNTUNED, Status.NOT_RECORDED)
    statuses = [s for s in Status if s not in without]
    trials = [trial(m, gemm, s, config) for m, s in enumerate(statuses, 1) for gemm in Gemm]
    trials.append(trial(99, Gemm.DOWN, Status.OK, Config({**config, "USE_TMA": 1})))
    unmeasured = [trial(98, Gemm.UP, s, config) for s in without]
    path = tmp_path / "h200_written.csv.gz"
    write_recording(path, problem, [*trials, *unmeasured])

    read = read_recording(path)
    assert read.problem == problem
    assert list(read.trials.values()) == trials
    read.check(problem, read.points)


def test_the_same_trials_make_the_same_file(tmp_path, recording):
    some = list(recording.trials.values())[:100]
    one, two = tmp_path / "one.csv.gz", tmp_path / "two.csv.gz"
    write_recording(one, FP8, some)
    write_recording(two, FP8, some)
    assert one.read_bytes() == two.read_bytes()
    assert gzip.decompress(one.read_bytes()).startswith(f"{HEADER}\n".encode())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.csv.gz", "two.csv.gz"]


def test_a_folder_that_is_not_there_cannot_be_written(tmp_path):
    with pytest.raises(UnwritableOutput, match="cannot be written: No such file"):
        write_recording(tmp_path / "no" / "such.csv.gz", FP8, [])


# Answering


def test_replay_answers_a_compiler_and_a_measurer(recording):
    replay = Replay(recording, H200)
    trials = list(recording.trials.values())[::1000]
    replay.submit([t.candidate for t in trials])
    assert replay.poll(wait=False) == [(t.candidate, t.compiled) for t in trials]
    assert replay.poll(wait=True) == []
    for t in trials:
        assert replay.measure(t.candidate, t.compiled) == t.measurement


def test_a_kernel_that_does_not_fit_the_card_is_out_of_resources(recording):
    l40s = find_device("L40S")
    replay = Replay(recording, l40s)
    replay.submit(recording.trials)
    for candidate, compiled in replay.poll(wait=False):
        recorded = recording.trials[candidate].compiled
        fits = recorded.shared_bytes <= l40s.shared_optin_bytes
        status = recorded.status if fits else Status.OUT_OF_RESOURCES
        assert compiled.status is status


def test_what_is_absent_is_not_guessed(recording):
    replay = Replay(recording, H200)
    here = next(iter(recording.trials))
    absent = Candidate(here.point, here.config.replace(GROUP_SIZE_M=8))
    replay.submit([absent])
    [(candidate, compiled)] = replay.poll(wait=True)
    assert candidate == absent
    assert compiled.status is Status.NOT_RECORDED and not compiled.ok
    measurement = replay.measure(absent, compiled)
    assert measurement.status is Status.NOT_RECORDED and not measurement.timed


def test_a_replay_compiles_nothing(recording):
    replay = Replay(recording, H200)
    config = next(iter(recording.trials)).config
    replay.submit(Candidate(point, config) for point in recording.points)
    assert len(replay.poll(wait=False)) == 10
    assert replay.compiled_count == 0
