"""Attention's tuning run on a recording: every configuration of its spaces, timed on an H200."""

import csv
import dataclasses
import itertools
from pathlib import Path

import pytest
from cases import SWEEP, trial, tuned
from tiers import only

from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.errors import BadInput, MalformedRecording, NothingFits, UnwritableOutput
from tuner.families.attention.buckets import Bucket, BucketedStrategy, buckets_of
from tuner.families.attention.choose import AttentionChooser
from tuner.families.attention.family import AttentionSelection
from tuner.families.attention.problem import AttentionPart, AttentionPhase, parse_attention
from tuner.families.attention.space import attention_space
from tuner.families.attention.workloads import WorkPoint
from tuner.measure.recording import read_trials, write_trials
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import MeasureKind, Measurement, RunKey, Status, Totals
from tuner.tuning.request import Effort, KnownBefore, Request, Source, prepare

MLA = "q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16"
GQA = "q_heads=32,kv_heads=8,Lq=128,Lv=128,dtype=bfloat16"
PROBLEMS = [
    f"extend_attention:{MLA}",
    f"decode_attention:{MLA},kv_splits=8",
    f"extend_attention:{GQA}",
    f"decode_attention:{GQA},kv_splits=32",
    "extend_attention:q_heads=16,kv_heads=16,Lq=192,Lv=128,dtype=bfloat16",
    "decode_attention:q_heads=16,kv_heads=16,Lq=128,Lv=128,dtype=bfloat16,kv_splits=8",
]
NOISE = 0.01


def request(text: str, **changes) -> Request:
    return dataclasses.replace(
        Request(
            problem=parse_attention(text),
            device=find_device("H200"),
            engine=find_engine("sglang==0.5.16"),
            source=Source(MeasureKind.REPLAY, SWEEP),
        ),
        **changes,
    )


def configs(report) -> dict[Point, Config]:
    return {entry.point: entry.config for entry in report.entries}


def costs(report) -> dict:
    """By bucket, the time in units of the engine's own constants, summed over its points."""
    found: dict = {}
    for entry in report.entries:
        point = entry.point
        key = point.part, point.batch_size, point.new_tokens
        own_us = entry.incumbents["default"].median_us
        found[key] = found.get(key, 0.0) + entry.median_us / own_us
        assert entry.median_us <= own_us
    return found


@pytest.mark.parametrize("text", only(PROBLEMS[1:3], PROBLEMS))
def test_search_finds_the_sweeps_best_within_a_percent(text, store):
    best = costs(tuned(request(text, effort=Effort.EXHAUSTIVE), store))
    found = costs(tuned(request(text), store))
    assert found.keys() == best.keys()
    for key, cost in found.items():
        assert cost <= best[key] * (1 + NOISE), key


# Buckets


def test_extend_is_told_apart_by_new_tokens_and_decode_by_sequences_alone():
    work = [WorkPoint(4, 256, 0), WorkPoint(4, 256, 4096, 2.0), WorkPoint(4, 512, 0)]
    extend = buckets_of(parse_attention(PROBLEMS[0]), work)
    weights = {b.representative.new_tokens: b.weights for b in extend}
    assert weights == {256: (1.0, 2.0), 512: (1.0,)}
    assert len(extend) == 2
    decode = buckets_of(parse_attention(PROBLEMS[1]), [WorkPoint(8, 1, 64), WorkPoint(8, 1, 128)])
    assert [(b.part, len(b.points)) for b in decode] == [
        (AttentionPart.DECODE, 2),
        (AttentionPart.REDUCE, 2),
    ]


A, B, C = (Config({"BLOCK_N": n, "num_warps": 4}) for n in (16, 32, 64))
SHORT, LONG = (Point(1, AttentionPart.DECODE, 1, cached) for cached in (1024, 32768))
BUCKET = Bucket((SHORT, LONG), (1.0, 1.0))
OWN = {SHORT: A, LONG: A}


class Asker:
    """An inner strategy that proposes B and C once and keeps what it is told."""

    def __init__(self):
        self.left = [Candidate(SHORT, B), Candidate(SHORT, C)]
        self.told = {}

    def ask(self):
        left, self.left = self.left, []
        return left

    def tell(self, candidate, measurement):
        self.told[candidate.config] = measurement


def test_a_proposal_is_tried_at_all_points_and_told_when_its_unit_is_known():
    asker = Asker()
    together = BucketedStrategy(asker, [BUCKET], OWN)
    asked = together.ask()
    assert set(asked) == {Candidate(p, c) for p, c in itertools.product((SHORT, LONG), (B, C))}
    together.tell(Candidate(SHORT, B), Measurement(Status.OK, 8.0))
    together.tell(Candidate(LONG, B), Measurement(Status.OK, 50.0))
    assert not asker.told  # the engine's own constants have no time yet
    together.tell(Candidate(SHORT, A), Measurement(Status.OK, 10.0))
    together.tell(Candidate(LONG, A), Measurement(Status.OK, 100.0))
    assert asker.told[A].median_us == pytest.approx(1.0)
    assert asker.told[B].median_us == pytest.approx((0.8 + 0.5) / 2)
    together.tell(Candidate(SHORT, C), Measurement(Status.OUT_OF_RESOURCES))
    together.tell(Candidate(LONG, C), Measurement(Status.OK, 1.0))
    assert asker.told[C].median_us is None
    assert asker.told[C].status is Status.OUT_OF_RESOURCES


# Choosing


def choose(times, noise=0.004, previous=None):
    """`times`: config -> microseconds at SHORT and LONG."""
    trials = [
        trial(point, config, us)
        for config, both in times.items()
        for point, us in zip((SHORT, LONG), both, strict=True)
    ]
    chooser = AttentionChooser([BUCKET], OWN, noise, previous)
    entries = chooser.choose(trials)
    raced = [one.candidate for one in chooser.finalists(trials, entries)]
    final = {(candidate.point, candidate.config) for candidate in raced}
    assert final.issuperset((previous or {}).items())
    return entries


@pytest.mark.parametrize(
    ("times", "chosen", "reason"),
    [
        # What is slower at one point is not chosen, however fast it is elsewhere.
        ({A: (10.0, 100.0), B: (10.2, 20.0), C: (9.0, 90.0)}, C, "1.111x"),
        ({A: (10.0, 100.0), B: (9.98, 99.8)}, A, "within the noise"),
        ({A: (None, None), B: (12.0, 110.0)}, B, "cannot run"),
    ],
)
def test_the_fastest_is_chosen_that_is_slower_nowhere(times, chosen, reason):
    entries = choose(times)
    assert {entry.config for entry in entries} == {chosen}
    assert reason in entries[0].reason
    if times[A] == (None, None):
        assert entries[0].incumbents["default"].status is Status.OUT_OF_RESOURCES


def test_stored_constants_stay_unless_others_are_faster_by_more_than_the_noise():
    stored = dict.fromkeys((SHORT, LONG), B)
    for best, expected in ((8.99, B), (8.9, C)):
        times = {A: (10.0, 100.0), B: (9.0, 90.0), C: (best, 10 * best)}
        entries = choose(times, previous=stored)
        assert {entry.config for entry in entries} == {expected}
        assert entries[0].reason.endswith("; the stored entry stays") is (expected is B)
    assert {e.config for e in choose({A: (10, 100), B: (9.99, 99.9)}, previous=stored)} == {B}
    assert {e.config for e in choose({A: (10, 100), B: (10.01, 100.1)}, previous=stored)} == {A}


def test_a_bucket_that_nothing_runs_at_is_named():
    with pytest.raises(NothingFits, match=r"1x1\+1024 decode"):
        choose({A: (None, None), B: (12.0, None)})


def test_search_and_chooser_agree_where_the_engines_constants_run_at_one_point_alone():
    times = {A: (10.0, None), B: (8.0, 120.0), C: (30.0, 100.0)}
    asker = Asker()
    together = BucketedStrategy(asker, [BUCKET], OWN)
    for config, both in times.items():
        for place, us in zip((SHORT, LONG), both, strict=True):
            together.tell(Candidate(place, config), trial(place, config, us).measurement)
    timed = {c: m.median_us for c, m in asker.told.items() if m.median_us is not None}
    assert set(timed) == {B, C}
    assert {entry.config for entry in choose(times)} == {min(timed, key=timed.__getitem__)}


# Recordings


def test_a_recording_of_other_problems_names_them(tmp_path):
    other = parse_attention("extend_attention:q_heads=2,kv_heads=1,Lq=64,Lv=64,dtype=float16")
    with pytest.raises(BadInput, match="only of .*q_heads=16"):
        read_trials(SWEEP, other)
    assert other.phase is AttentionPhase.EXTEND


HEADER = (
    "problem,part,batch_size,new_tokens,cached_tokens,config,compile_status,shared_bytes,"
    "n_regs,n_spills,status,median_us,detail"
)
ROW = f'"{PROBLEMS[0]}",extend,1,512,0,"BLOCK_M=16,num_warps=4",ok,1024,,,ok,1.5,'
OTHER_ROW = ROW.replace(PROBLEMS[0], PROBLEMS[2])


def changed(old: str, new: str) -> str:
    """A recording of one row, in which these words are others."""
    return f"{HEADER}\n{ROW.replace(old, new)}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "column problem is missing"),
        ("", "column problem is missing"),
        (HEADER, "holds no rows"),
        (HEADER.replace("median_us", "median_ms"), "column median_us is missing; did you mean"),
        (f"{HEADER},detail\n{ROW},", "line 1: a column is named twice"),
        (changed(PROBLEMS[0], "nonsense"), "line 2: unknown kind of problem 'nonsense'"),
        (f"{HEADER}\n{ROW}\n{ROW}", "line 3: 1x512.0 extend BLOCK_M=16,num_warps=4 is there twice"),
        (f"{HEADER}\n{ROW},1", "line 2: 14 cells under 13 columns"),
        (f"{HEADER}\n{ROW[:-1]}", "line 2: 12 cells under 13 columns"),
        (f"{HEADER}\n{OTHER_ROW}\n{ROW[:9]}", "line 3: unexpected end of data"),
        (f"{HEADER}\n{ROW}{'x' * 200_000}", "line 2: field larger than field limit"),
        (changed("extend,", "extent,"), "line 2: 'extent' is not a valid AttentionPart"),
        (changed(",512,", ",5_12,"), "line 2: new_tokens: '5_12' is not a whole"),
        (changed("M=16", "M="), "line 2: BLOCK_M: '' is not a whole number"),
        (changed("1.5", "nan"), "line 2: median_us: 'nan' is not a time"),
        (changed("1.5", ""), "line 2: status ok with the time ''"),
        (changed("ok,1.5", "crashed,1.5"), "line 2: status crashed with the time"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path, text, says):
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(MalformedRecording, match=says) as refused:
        read_trials(path, parse_attention(PROBLEMS[0]))
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_recording_holds_the_trials_of_every_problem_that_was_added(tmp_path):
    first, second = parse_attention(PROBLEMS[0]), parse_attention(PROBLEMS[1])
    trials = {p: read_trials(SWEEP, p).trials for p in (first, second)}
    path = tmp_path / "both.csv.gz"
    for problem in (first, second, second, first):  # what is written again replaces its own
        write_trials(path, problem, trials[problem].values(), add=True)
        assert read_trials(path, problem).trials == trials[problem]
    assert read_trials(path, second).trials == trials[second]
    write_trials(path, first, trials[first].values())
    with pytest.raises(BadInput, match="only of extend_attention"):
        read_trials(path, second)


def test_rows_of_other_problems_are_kept_whatever_the_order_of_their_columns(tmp_path):
    first, second = parse_attention(PROBLEMS[0]), parse_attention(PROBLEMS[2])
    path = tmp_path / "x.csv"
    path.write_text(f"{HEADER}\n{ROW}\n")
    expected = read_trials(path, first).trials
    assert len(expected) == 1
    names, cells = HEADER.split(","), next(csv.reader([ROW]))
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["mine", *reversed(names)])
        rows.writerow(["a note", *reversed(cells)])
    assert read_trials(path, first).trials == expected
    write_trials(path, second, [], add=True)
    assert read_trials(path, first).trials == expected


def test_a_recording_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    problem = parse_attention(PROBLEMS[0])
    path = tmp_path / "x.csv"
    path.write_text(f"{HEADER}\n{ROW}\n")
    before = path.read_bytes()

    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UnwritableOutput, match="No space left"):
        write_trials(path, problem, [])
    assert path.read_bytes() == before


def test_a_recording_that_is_replayed_is_not_written_over(store, tmp_path):
    path = tmp_path / "h200.csv.gz"
    path.write_bytes(SWEEP.read_bytes())
    asked = request(PROBLEMS[0], source=Source(MeasureKind.REPLAY, path))
    with pytest.raises(UnwritableOutput, match="is being replayed: record to another file"):
        tuned(asked, store, record=tmp_path / "." / "h200.csv.gz")
    assert path.read_bytes() == SWEEP.read_bytes()


# Decode with its splits


def formula(at: Point, config: Config) -> float:
    """Microseconds: splits help the first kernel until they fill a GPU, and cost the second."""
    splits = config["KV_SPLITS"] or 4
    if at.part is AttentionPart.REDUCE:
        return 2 + 0.1 * splits + 0.02 * config["MAX_KV_SPLITS"] + 0.1 * config["num_warps"]
    waves = max(1, at.batch_size * splits * 4 / 264)
    block = abs(config["BLOCK_N"] - 64) / 64 + abs(config["num_warps"] - 4) / 4
    return 3 + waves * at.cached_tokens / splits / 64 * (1 + block / config["num_stages"])


SPLITS = "decode_attention:q_heads=32,kv_heads=4,Lq=128,Lv=128,dtype=bfloat16"
SIZES = [(n, cached) for n in (1, 64) for cached in (1024, 32768)]


def recorded_splits(path: Path, sizes=SIZES) -> Request:
    """A request that replays a recording of the whole space at some sizes."""
    work = AttentionSelection(tuple(WorkPoint(n, 1, cached) for n, cached in sizes))
    asked = request(SPLITS, selection=work, source=Source(MeasureKind.GPU))
    incumbents = prepare(asked).goal(KnownBefore()).incumbents
    own = {point: configs["default"] for point, configs in incumbents.items()}
    device, problem = asked.device, asked.problem
    trials = [
        trial(point, config, formula(point, config))
        for point, default in own.items()
        for config in {
            default,
            *attention_space(problem, device, point.part, tuple(default)).configs(),
        }
    ]
    write_trials(path, problem, trials)
    return dataclasses.replace(asked, source=Source(MeasureKind.REPLAY, path))


def test_a_search_finds_splits_and_both_kernels_constants_in_a_recording(store, tmp_path):
    entries = tuned(recorded_splits(tmp_path / "h200_splits.csv.gz"), store).entries
    assert len(entries) == 8
    for size in SIZES:
        both = [e for e in entries if (e.point.batch_size, e.point.cached_tokens) == size]
        assert len({(e.config["KV_SPLITS"], e.config["MAX_KV_SPLITS"]) for e in both}) == 1
        found_us = sum(entry.median_us for entry in both)
        assert found_us < sum(entry.incumbents["default"].median_us for entry in both)
    for n in (1, 64):
        mine = [e for e in entries if e.point.batch_size == n]
        shared = {(e.point.part, e.config.replace(KV_SPLITS=1)) for e in mine}
        assert len(shared) == 2  # of each kernel one, for all lengths


def test_splits_and_constants_in_the_store_stay_unless_they_are_beaten(store, tmp_path):
    asked = recorded_splits(tmp_path / "h200_splits.csv.gz", SIZES[:2])
    first = tuned(asked, store)
    alone = configs(first)

    def stored(**changes):
        """The store now has what was found, with other constants of the first kernel."""
        entries = [
            dataclasses.replace(one, config=one.config.replace(**changes))
            if one.point.part is AttentionPart.DECODE
            else one
            for one in first.entries
        ]
        points = tuple(entry.point for entry in entries)
        key = RunKey(asked.problem, first.environment, MeasureKind.REPLAY, "", 0, points, "")
        store.finish_run(store.begin_run(key), entries, Totals())
        return {entry.point: entry.config for entry in entries}

    as_fast = stored(num_stages=5)  # by the formula, stages make no difference to the best ones
    again = tuned(asked, store)
    assert configs(again) == as_fast != alone
    assert all(entry.reason.endswith("the stored entry stays") for entry in again.entries)
    assert configs(tuned(dataclasses.replace(asked, carry_over=False), store)) == alone


@pytest.mark.parametrize("version", ["0.4.4", "0.5.2"])
def test_releases_without_plugins_have_their_own_number_of_splits(version):
    asked = request(SPLITS, engine=find_engine(f"sglang=={version}"))
    with pytest.raises(BadInput, match=r"loads no plugins, .*: name its own, .*kv_splits=8"):
        prepare(asked)
