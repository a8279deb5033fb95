"""What every store does, on each database."""

import itertools
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone

import draws
import pytest
from databases import both_databases
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, select, text, update
from store_writer import BATCH, ENVIRONMENT, KEY, POINTS, PROBLEM, batch, number_of, trial

from tuner.errors import UnusableStore
from tuner.families.attention.problem import Attention, AttentionPart, AttentionPhase
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.problems.dtypes import Dtype
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import (
    MISHAPS,
    Compiled,
    Entry,
    Environment,
    Incumbent,
    MeasureKind,
    Measurement,
    RunKey,
    RunState,
    Status,
    Totals,
    Trial,
)
from tuner.store.connect import connect
from tuner.store.lookups import Lookups
from tuner.store.results import ResultStore, trial_cursor
from tuner.store.rows import trial_row
from tuner.store.tables import problems as problems_table
from tuner.store.tables import trials as trials_table
from tuner.store.tables import winners as winners_table
from workers.coverage import stored_rows

UP, DOWN = POINTS
ATTENTION = Attention(AttentionPhase.EXTEND, 16, 1, 576, 512, Dtype.BFLOAT16)


@pytest.fixture
def store(store_url):
    with ResultStore.open(store_url) as opened:
        yield opened


def entry(point: Point, median_us: float = 10.0, status: Status = Status.OK) -> Entry:
    config = Config({"BLOCK_SIZE_M": 16, "num_stages": 3})
    incumbents = {"default": Incumbent(config.replace(num_stages=2), Status.OK, 12.5, 49_152)}
    compiled = Compiled(Status.OK, shared_bytes=73_728, n_regs=128, n_spills=0)
    return Entry(point, config, status, median_us, compiled, incumbents, "faster than default")


def extend(batch_size: int, new_tokens: int, cached_tokens: int) -> Point:
    return Point(batch_size, AttentionPart.EXTEND, new_tokens, cached_tokens)


def publish(store: ResultStore, key: RunKey, *entries: Entry) -> None:
    store.finish_run(store.begin_run(key), entries, Totals())


class TestRuns:
    def test_a_new_run_is_running_and_has_no_trials(self, store):
        before = datetime.now(timezone.utc)
        run = store.begin_run(KEY)
        assert (run.key, run.state, run.reason, run.totals) == (KEY, RunState.RUNNING, "", None)
        assert before <= run.created_at <= run.updated_at <= datetime.now(timezone.utc)
        assert run.created_at.tzinfo is timezone.utc
        assert store.trials(run) == []

    def test_an_equal_key_is_the_same_run_with_its_trials(self, store_url):
        with ResultStore.open(store_url) as first:
            run = first.begin_run(KEY)
            first.add_trials(run, [trial(0), trial(1)])
        with ResultStore.open(store_url) as second:
            again = second.begin_run(replace(KEY, points=KEY.points[::-1]))
            assert (again.id, again.created_at) == (run.id, run.created_at)
            assert second.trials(again) == [trial(0), trial(1)]

    @pytest.mark.parametrize(
        "change",
        [
            {"problem": replace(PROBLEM, N=128)},
            {"environment": replace(ENVIRONMENT, driver="580.159.04")},
            {"measure": MeasureKind.GPU},
            {"effort": "standard"},
            {"seed": 1},
            {"points": POINTS[:1]},
            {"space": "wide"},
            {"recording": "ef" * 32},
            {"routing": "ef" * 32},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_a_key_that_differs_anywhere_is_another_run(self, store, change):
        run = store.begin_run(KEY)
        store.add_trials(run, [trial(0)])
        other = store.begin_run(replace(KEY, **change))
        assert other.id != run.id
        assert other.key == replace(KEY, **change)
        assert store.trials(other) == []

    def test_a_stopped_run_keeps_its_trials_and_can_be_begun_again(self, store):
        run = store.begin_run(KEY)
        store.add_trials(run, [trial(0)])
        store.stop_run(run, RunState.FAILED, "NothingFits: no configuration fits M=1 up")
        row = read(store, "SELECT state, reason FROM runs")
        assert row == [("failed", "NothingFits: no configuration fits M=1 up")]
        again = store.begin_run(KEY)
        assert (again.id, again.state, again.reason) == (run.id, RunState.RUNNING, "")
        assert store.trials(again) == [trial(0)]

    def test_a_finished_run_tells_what_it_cost(self, store):
        totals = Totals(12, 34, wall_s=1.5, compile_s=2.5, measure_s=0.25, extra={"races": 2.0})
        store.finish_run(store.begin_run(KEY), [], totals)
        assert read(store, "SELECT state FROM runs") == [("done",)]
        assert store.begin_run(KEY).totals == totals


@both_databases
class TestTrials:
    def test_a_candidate_is_stored_once(self, store):
        run = store.begin_run(KEY)
        measured_again = replace(trial(1), measurement=Measurement(Status.WRONG_RESULT))
        store.add_trials(run, [trial(0), trial(1)])
        store.add_trials(run, [measured_again, trial(2), trial(2)])
        assert store.trials(run) == [trial(0), trial(1), trial(2)]

    def test_a_batch_that_fails_adds_nothing(self, store):
        run = store.begin_run(KEY)
        too_large = replace(trial(1), measurement=Measurement(Status.OK, samples=2**70))
        with pytest.raises((UnusableStore, OverflowError)):
            store.add_trials(run, [trial(0), too_large])
        assert store.trials(run) == []

    def test_threads_share_a_store(self, store):
        run = store.begin_run(KEY)
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(store.add_trials, run, batch(n)) for n in range(8)]:
                done.result()
        assert sorted(map(number_of, store.trials(run))) == list(range(8 * BATCH))

    def test_a_library_s_unprintable_output_is_kept_readable(self, store):
        run = store.begin_run(KEY)
        refused = Measurement(Status.UNSUPPORTED, detail="CUDA\0error\udcff")
        store.add_trials(run, [replace(trial(0), measurement=refused)])
        assert store.trials(run)[0].measurement.detail == "CUDA\N{REPLACEMENT CHARACTER}error?"

    @pytest.mark.parametrize("status", sorted(MISHAPS))
    def test_a_mishap_is_no_verdict_and_is_not_kept(self, store, status):
        run = store.begin_run(KEY)
        lost = Trial(trial(1).candidate, Compiled(status), Measurement(status, detail="SIGKILL"))
        store.add_trials(run, [lost])
        assert store.trials(run) == []
        store.add_trials(run, [trial(0), lost])
        store.add_trials(run, [trial(1)])
        assert store.trials(run) == [trial(0), trial(1)]

    def test_mishaps_that_an_older_release_kept_are_forgotten_when_a_run_begins(self, store):
        run = store.begin_run(KEY)
        verdict = Status.COMPILE_ERROR, "CompilationError: at 3:4"
        died = Status.COMPILE_ERROR, "the process ended (SIGKILL)"
        late = Status.COMPILE_TIMEOUT, "more than 60 s"
        kept = [
            Trial(trial(n).candidate, Compiled(status, detail=detail), Measurement(status))
            for n, (status, detail) in enumerate((verdict, died, late))
        ]
        kept.append(replace(trial(3), measurement=Measurement(Status.CRASHED, detail="CUDA error")))
        with store.database.write() as connection:
            connection.execute(insert(trials_table), [trial_row(run.id, one) for one in kept])
        assert store.trials(run) == kept
        other = store.begin_run(replace(KEY, seed=KEY.seed + 1))
        assert store.trials(run) == kept
        run = store.begin_run(KEY)
        assert store.trials(run) == kept[:1]
        assert store.trials(other) == []

    def test_each_backend_of_a_point_has_its_trial(self, store):
        run = store.begin_run(KEY)
        none = Config({})
        others = [
            replace(trial(0), candidate=Candidate(UP, none, backend))
            for backend in ("deep_gemm", "cutlass")
        ]
        faster = [replace(one, measurement=Measurement(Status.OK, 0.25, 0.25, 3)) for one in others]
        store.add_trials(run, [trial(0), *faster, *others])
        assert store.trials(run) == [trial(0), *faster]
        first, second, third = store.trials_page(run.id, None, 9)
        assert [first, second] == faster[::-1]  # no configuration comes before any
        assert list(store.trials_page(run.id, trial_cursor(first), 9)) == [second, third]
        # "Best so far" is Triton's.
        assert store.best_trials(run.id) == {UP: trial(0).measurement.median_us}


@both_databases
class TestWinners:
    def test_what_runs_without_us_comes_back(self, store):
        other = Incumbent(Config({}), Status.OK, 8.0, backend="deep_gemm")
        one = entry(UP)
        one = replace(
            one, incumbents={**one.incumbents, "deep_gemm": other}, without_us="deep_gemm"
        )
        publish(store, KEY, one)
        (winner,) = store.winners_in(KEY.problem, KEY.environment)
        assert winner.entry == one
        (summary,) = Lookups(store.database).stored_summaries(None, None, 9)
        assert (summary.speedup, summary.over_without_us) == (pytest.approx(0.8), True)
        publish(store, KEY, replace(one, without_us="cutlass"))  # which was not measured
        (summary,) = Lookups(store.database).stored_summaries(None, None, 9)
        assert (summary.speedup, summary.over_without_us) == (pytest.approx(1.25), False)

    def test_problems_of_another_release_are_left_out(self, store):
        """A release may have families that this one lacks, newer and older ones."""
        others = [replace(PROBLEM, E=number) for number in (16, 32, 64, 128)]
        for problem in (*others, PROBLEM):
            publish(store, replace(KEY, problem=problem), entry(UP))
        with store.database._writer.begin() as connection:
            for problem, there in zip(
                others,
                ("kda:heads=8", f"{PROBLEM.family}:new=1", "state_update:dim=64"),
                strict=False,
            ):
                connection.execute(
                    update(problems_table)
                    .where(problems_table.c.spec == problem.spec())
                    .values(spec=there, family=there.partition(":")[0])
                )
        known = [others[3], PROBLEM]
        found = store.winners(device="NVIDIA_L40S", engine="sglang")
        assert [winner.problem for winner in found] == known
        lookups = Lookups(store.database)
        first = lookups.stored_summaries(None, None, 1)
        second = lookups.stored_summaries(None, first[0].cursor, 1)
        assert [one.problem for one in (*first, *second)] == known
        assert lookups.stored_summaries(None, second[0].cursor, 1) == []
        (seen,) = lookups.environments({"NVIDIA_L40S"})
        rows = stored_rows(lookups.stored_summaries(None, None, 9), [seen])
        assert [row["problem"] for row in rows] == [problem.spec() for problem in known]

    def test_a_page_is_filled_after_any_number_of_problems_that_cannot_be_read(self, store):
        publish(store, KEY, entry(UP))
        unread = {"family": "kda"}  # which this release lacks
        specs = [f"kda:heads={n}" for n in range(sys.getrecursionlimit())]
        with store.database._writer.begin() as connection:
            connection.execute(insert(problems_table), [{**unread, "spec": one} for one in specs])
            ids = connection.scalars(select(problems_table.c.id).filter_by(**unread)).all()
            copied = {**connection.execute(select(winners_table)).mappings().one()}
            del copied["id"]
            rows = [{**copied, "problem_id": problem_id} for problem_id in ids]
            connection.execute(insert(winners_table), rows)
        last = replace(PROBLEM, E=16)
        publish(store, replace(KEY, problem=last), entry(UP))
        lookups = Lookups(store.database)
        (first,) = lookups.stored_summaries(None, None, 1)
        (second,) = lookups.stored_summaries(None, first.cursor, 1)
        assert [first.problem, second.problem] == [PROBLEM, last]

    def test_entries_come_back_with_what_they_hold_for(self, store):
        run = store.begin_run(KEY)
        store.finish_run(run, [entry(DOWN), entry(UP)], Totals())
        found = store.winners(device="NVIDIA_L40S", engine="sglang")
        assert [winner.entry for winner in found] == [entry(UP), entry(DOWN)]
        assert {(w.problem, w.environment, w.run_id) for w in found} == {
            (PROBLEM, ENVIRONMENT, run.id)
        }
        assert found[0].published_at.tzinfo is timezone.utc

    def test_publishing_is_all_or_nothing(self, store):
        publish(store, KEY, entry(UP, 20.0), entry(DOWN, 20.0))

        def failing() -> Iterator[Entry]:
            yield entry(UP, 5.0)
            raise KeyError

        other = replace(KEY, seed=1)
        run = store.begin_run(other)
        with pytest.raises(KeyError):
            store.finish_run(run, failing(), Totals())
        assert medians(store) == [20.0, 20.0]
        assert read(store, "SELECT state FROM runs ORDER BY id") == [("done",), ("running",)]

    def test_a_later_entry_replaces_its_own_point_alone(self, store):
        publish(store, KEY, entry(UP, 20.0), entry(DOWN, 20.0))
        publish(store, replace(KEY, seed=1), entry(DOWN, 30.0))
        assert medians(store) == [20.0, 30.0]

    @pytest.mark.parametrize("environment", [ENVIRONMENT, replace(ENVIRONMENT, torch="2.11.0")])
    def test_a_predicted_entry_never_replaces_a_measured_one(self, store, environment):
        predict = replace(KEY, measure=MeasureKind.PREDICT, environment=environment)
        publish(store, predict, entry(UP, 1.0, Status.PREDICTED))
        assert medians(store) == [1.0]
        publish(store, KEY, entry(UP, 20.0))
        predicted = [entry(point, 2.0, Status.PREDICTED) for point in POINTS]
        publish(store, predict, *predicted)
        assert medians(store) == [20.0]

    def test_a_pair_stays_until_both_gemms_are_tuned_elsewhere(self, store):
        old, new = KEY, replace(KEY, environment=replace(ENVIRONMENT, driver="999"))
        wide = Point(64, Gemm.UP)
        publish(store, old, entry(UP, 1.0), entry(DOWN, 2.0), entry(wide, 3.0))
        publish(store, new, entry(DOWN, 4.0))
        assert medians(store) == [1.0, 2.0, 3.0]
        assert counted(store) == medians(store)
        publish(store, replace(new, seed=1), entry(UP, 5.0), entry(wide, 6.0))
        assert medians(store) == [5.0, 4.0, 6.0]  # where neither has both, the newest half
        assert counted(store) == medians(store)

    def test_halves_of_two_environments_are_no_pair(self, store):
        new = replace(KEY, environment=replace(ENVIRONMENT, triton="3.7.0"))
        publish(store, KEY, entry(UP, 1.0))
        publish(store, new, entry(DOWN, 2.0))
        assert medians(store) == [2.0]  # an up of the old one may have another BLOCK_SIZE_M
        assert counted(store) == medians(store)

    def test_a_half_stands_beside_its_environments_untuned_entry(self, store):
        publish(store, KEY, *(entry(point, 1.0, Status.INCUMBENT) for point in POINTS))
        other = replace(KEY, environment=replace(ENVIRONMENT, driver="999"))
        publish(store, other, *(entry(point, 2.0, Status.INCUMBENT) for point in POINTS))
        publish(store, replace(KEY, seed=1), entry(UP, 3.0))
        assert medians(store) == [3.0, 1.0]
        assert counted(store) == medians(store)

    @pytest.mark.parametrize("change", [{"triton": "3.7.0"}, {"kernel_hash": "other"}])
    def test_what_counts_is_for_one_version_of_the_kernels(self, store, change):
        """A file is for one, and must hold all sizes that were measured or left alone for it."""
        wide = Point(64, Gemm.UP), Point(64, Gemm.DOWN)
        publish(store, KEY, *(entry(point, 1.0) for point in (*POINTS, *wide)))
        new = replace(KEY, environment=replace(ENVIRONMENT, **change))
        publish(store, new, *(entry(point, 2.0, Status.PREDICTED) for point in (*POINTS, *wide)))
        assert medians(store) == [1.0] * 4  # nothing was measured with the newer kernels
        measured = [entry(point, 3.0) for point in POINTS]
        publish(store, new, *measured, *(entry(point, None, Status.INCUMBENT) for point in wide))
        found = store.winners(device="NVIDIA_L40S", engine="sglang")
        assert {one.environment for one in found} == {new.environment}
        assert [one.entry.median_us for one in found] == [3.0, 3.0, 2.0, 2.0]

    def test_a_predicted_winner_names_what_counts_without_predictions(self, store):
        predict = replace(KEY, environment=replace(ENVIRONMENT, driver=""))
        publish(store, predict, *(entry(point, 1.0, Status.PREDICTED) for point in POINTS))
        found = store.winners(device="NVIDIA_L40S", engine="sglang")
        assert [one.unpredicted for one in found] == [None, None]
        publish(store, KEY, *(entry(point, None, Status.INCUMBENT) for point in POINTS))
        found = store.winners(device="NVIDIA_L40S", engine="sglang")
        assert [one.status for one in found] == [Status.PREDICTED] * 2
        assert [one.unpredicted.status for one in found] == [Status.INCUMBENT] * 2
        assert {one.unpredicted.environment for one in found} == {ENVIRONMENT}

    def test_each_device_has_results_that_count(self, store):
        publish(store, KEY, entry(UP, 1.0), entry(DOWN, 2.0))
        other = replace(KEY, environment=replace(ENVIRONMENT, device="NVIDIA_H200"))
        publish(store, other, entry(UP, 3.0), entry(DOWN, 4.0))
        assert counted(store, "NVIDIA_L40S", "NVIDIA_H200") == [1.0, 3.0, 2.0, 4.0]

    def test_attention_entries_of_a_size_come_from_one_run(self, store):
        short, long, shorter = (extend(4, 512, cached) for cached in (0, 8192, 1024))
        other_size = extend(4, 2048, 0)
        first = replace(KEY, problem=ATTENTION, points=(short, long, other_size))
        publish(store, first, entry(short, 1.0), entry(long, 2.0), entry(other_size, 3.0))
        second = replace(KEY, problem=ATTENTION, points=(short, shorter))
        publish(store, second, entry(short, 4.0), entry(shorter, 5.0))
        assert medians(store, problem=ATTENTION) == [4.0, 5.0, 3.0]
        predicted = replace(first, measure=MeasureKind.PREDICT)
        publish(store, predicted, entry(long, 6.0, Status.PREDICTED))
        assert medians(store, problem=ATTENTION) == [4.0, 5.0, 3.0]

    def test_parts_come_in_the_order_of_their_launch(self, store):
        problem = replace(ATTENTION, phase=AttentionPhase.DECODE)
        points = [Point(size, part, 1, 4096) for size in (1, 2) for part in problem.parts]
        key = replace(KEY, problem=problem, points=tuple(points))
        publish(store, key, *(entry(point) for point in reversed(points)))
        found = store.winners(device="NVIDIA_L40S", engine="sglang")
        assert [winner.entry.point for winner in found] == points

    def test_winners_are_those_of_the_asked_for(self, store):
        other_problem = replace(PROBLEM, N=128)
        other_version = replace(ENVIRONMENT, engine_version="0.5.12", triton="3.5.1")
        other_device = replace(ENVIRONMENT, device="NVIDIA_H200")
        publish(store, KEY, entry(UP, 1.0))
        publish(store, replace(KEY, problem=other_problem), entry(UP, 2.0))
        publish(store, replace(KEY, environment=other_version), entry(UP, 3.0))
        publish(store, replace(KEY, environment=other_device), entry(UP, 4.0))
        assert medians(store) == [3.0, 2.0]
        assert medians(store, triton="3.6.0") == [1.0, 2.0]
        assert medians(store, engine_version="0.5.12") == [3.0]
        assert medians(store, problem=other_problem) == [2.0]
        assert medians(store, device="NVIDIA_H200") == [4.0]
        assert medians(store, engine="vllm") == []


@both_databases
def test_a_reader_does_not_stop_a_writer(store):
    run = store.begin_run(KEY)
    with store.database.read() as reader:
        reader.execute(text("SELECT * FROM trials")).all()
        store.add_trials(run, [trial(0)])  # SQLite without its write-ahead log: locked
        assert reader.execute(text("SELECT count(*) FROM runs")).scalar() == 1
    assert store.trials(run) == [trial(0)]


@both_databases
def test_a_failing_database_is_one_line_of_ours(store):
    run = store.begin_run(KEY)
    with store.database._writer.begin() as connection:
        connection.execute(text("DROP TABLE trials"))
    for use in (lambda: store.trials(run), lambda: store.add_trials(run, [trial(0)])):
        with pytest.raises(UnusableStore, match="trials") as caught:
            use()
        assert "\n" not in str(caught.value)


@both_databases
def test_an_unknown_run_is_refused(store):
    run = store.begin_run(KEY)
    with pytest.raises(UnusableStore, match="(?i)foreign key"):
        store.add_trials(replace(run, id=run.id + 1), [trial(0)])


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
counts = st.integers(0, 2**31 - 1)
times = st.floats(0, allow_infinity=False)
statuses = st.sampled_from(Status)
moe_points = st.builds(Point, counts, st.sampled_from(Gemm))
points = moe_points | st.builds(Point, counts, st.sampled_from(AttentionPart), counts, counts)
names = st.sampled_from(["BLOCK_SIZE_M", "num_warps", "num_stages", "USE_TMA", "waves_per_eu"])
configs = st.builds(Config, st.dictionaries(names, counts, min_size=1))
compiled = st.builds(
    Compiled, statuses, *[st.none() | counts] * 3, detail=texts, cached=st.booleans()
)
measurements = st.builds(
    Measurement, statuses, st.none() | times, st.none() | times, counts, detail=texts
)
trials = st.builds(Trial, st.builds(Candidate, points, configs), compiled, measurements)
incumbents = st.builds(Incumbent, configs, statuses, st.none() | times, st.none() | counts)
entries = st.builds(
    Entry,
    points,
    configs,
    st.sampled_from([Status.OK, Status.PREDICTED]),
    times,
    compiled,
    st.dictionaries(st.sampled_from(["default", "shipped"]), incumbents),
    texts,
)
moe_problems = st.builds(
    FusedMoe, *[st.integers(8, 9999)] * 3, st.integers(1, 8), st.sampled_from(list(Dtype)[:3])
)
problems = moe_problems | st.builds(
    Attention,
    st.just(AttentionPhase.DECODE),
    q_heads=st.sampled_from([8, 16]),
    kv_heads=st.sampled_from([1, 8]),
    Lq=st.sampled_from([128, 576]),
    Lv=st.sampled_from([128, 512]),
    dtype=st.sampled_from([Dtype.BFLOAT16, Dtype.FLOAT16]),
    kv_splits=st.integers(1, 64),
)
keys = st.builds(
    RunKey,
    problem=problems,
    environment=st.builds(Environment, *[texts] * 8),
    measure=st.sampled_from(MeasureKind),
    effort=texts,
    seed=st.integers(-(2**63), 2**63 - 1),
    points=st.lists(points, max_size=5).map(tuple),
    space=texts,
    recording=texts,
    routing=texts,
)


@both_databases
def test_everything_comes_back_as_it_was_given(store):
    fresh = itertools.count()

    @draws.times(0.6)
    @given(keys, trials, entries)
    def check(key: RunKey, given_trial: Trial, given_entry: Entry) -> None:
        environment = replace(key.environment, device=f"device {next(fresh)}")
        key = replace(key, environment=environment)
        run = store.begin_run(key)
        assert run.key == key
        store.add_trials(run, [given_trial])
        for stored in store.trials(run):
            assert stored == given_trial
            assert list(stored.candidate.config) == list(given_trial.candidate.config)
        assert len(store.trials(run)) == (not given_trial.lost)
        store.finish_run(run, [given_entry], Totals())
        (winner,) = store.winners(device=environment.device, engine=environment.engine)
        assert winner.entry == given_entry
        assert (winner.problem, winner.environment) == (key.problem, environment)

    check()


def medians(store: ResultStore, **wanted: object) -> list[float]:
    found = store.winners(**{"device": "NVIDIA_L40S", "engine": "sglang", **wanted})
    return [winner.entry.median_us for winner in found]


def counted(store: ResultStore, *devices: str) -> list[float]:
    """The medians of what the service counts, by size and part: as `medians` has them."""
    found = Lookups(store.database).published(devices or ["NVIDIA_L40S"], ["sglang"], [PROBLEM])
    rows = read(store, "SELECT run_id, status, batch_size, part, median_us FROM winners")
    medians = {row[:-1]: row[-1] for row in rows}
    places = [
        (one.run_id, one.status.value, point.batch_size, point.part.value)
        for one in found
        for point in one.points
    ]
    order = sorted(places, key=lambda place: (place[2], place[3] != "up", place[0]))
    return [medians[place] for place in order]


def read(store: ResultStore, query: str) -> list[tuple[object, ...]]:
    engine = connect(store.database.engine.url.render_as_string(hide_password=False))
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(text(query))]
    engine.dispose()
    return rows
