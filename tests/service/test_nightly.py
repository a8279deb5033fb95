"""The nightly round, on each database: what it finds, and that a second one does no harm."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from cases import new_request
from databases import both_databases
from real_sglang import kernel_source
from sqlalchemy import update

from tuner.bindings.sglang.fused_moe.binding import lift_fused_moe
from tuner.engines.engine import find_engine
from tuner.errors import BadInput
from tuner.families.attention.problem import AttentionPart
from tuner.families.fused_moe.family import MoeSelection
from tuner.families.fused_moe.problem import FusedMoe, Gemm
from tuner.jobs.job import JobFilter, JobState
from tuner.jobs.queue import JobQuery
from tuner.jobs.workers import WorkerInfo, _engine_version_here
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import (
    Compiled,
    Entry,
    Environment,
    Incumbent,
    MeasureKind,
    RunKey,
    Status,
    Totals,
)
from tuner.store.database import Database, utc_now
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases
from tuner.store.lookups import Lookups
from tuner.store.nights import GIVEN_UP, NightStore, Round
from tuner.store.results import ResultStore
from tuner.store.tables import nightly_runs
from tuner.store.tables import problems as table
from tuner.store.workers import WorkerStore
from workers.coverage import (
    WatchedFilter,
    WatchState,
    _kernels,
    stored_rows,
    watch_statuses,
    watched_rows,
)
from workers.nightly import (
    SCHEDULE,
    errors_of,
    headline,
    outcomes,
    run_nightly,
    watch_list_of,
    work_of,
)
from workers.settings import Settings
from workers.watches import Watch, WatchList

ENGINE = "sglang==9.9.9"  # on no machine: only what is stored is compared
DAY = date(2026, 11, 1)
PROBLEMS = [parse_problem(f"fused_moe:E=8,N={n},K=1024,top_k=2,dtype=bfloat16") for n in (512, 256)]
ATTENTION = parse_problem(
    "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16,kv_splits=8"
)
ENVIRONMENT = Environment(
    "NVIDIA_L40S", "sglang", "9.9.9", "3.6.0", "ab" * 32, "2.11.0", "13.0", "580.1"
)
WATCH = Watch(
    tuple(problem.spec() for problem in PROBLEMS), ("L40S",), batch_sizes=(1, 2), engine=ENGINE
)


@pytest.fixture
def settings(store_url, tmp_path):
    lines = [f"{name} = {value!r}" for name, value in WATCH.as_json().items()]
    path = tmp_path / "nightly.toml"
    path.write_text("\n".join(["revalidate = 1", "[[watch]]", *lines]).replace("'", '"'))
    return Settings(store_url, nightly=path)


@pytest.fixture
def store(settings):
    with Database.open(settings.database_url) as opened:
        yield opened


@pytest.fixture
def engine_here(tmp_path, monkeypatch):
    """The file with the fused-MoE kernels of an sglang 7.7.7 that this machine has."""
    real = find_engine("sglang==0.5.16")
    source = kernel_source(real, "fused_moe")
    root = tmp_path / "engines" / "sglang-7.7.7" / "sglang"
    copy = root / source.relative_to(real.root)
    copy.parent.mkdir(parents=True)
    copy.write_text(source.read_text())
    (root / "__init__.py").write_text("")
    monkeypatch.setenv("TUNER_ENGINE_PATH", str(tmp_path / "engines"))
    _kernels.cache_clear()
    _engine_version_here.cache_clear()
    yield copy
    _engine_version_here.cache_clear()


def tuned(
    store: Database,
    problem: FusedMoe,
    environment: Environment = ENVIRONMENT,
    sizes: tuple[int, ...] = (1, 2),
    status: Status = Status.OK,
    gain: float | None = None,
    seed: int = 0,
    results: ResultStore | None = None,  # those of a lease
    compiled: bool = True,
) -> None:
    results = results or ResultStore(store)
    points = tuple(Point(size, gemm) for size in sizes for gemm in Gemm)
    key = RunKey(problem, environment, MeasureKind.GPU, "standard", seed, points, "sglang")
    config = Config({"BLOCK_SIZE_M": 16})
    compiled = Compiled(Status.OK if compiled else Status.INCUMBENT)
    own = {"default": Incumbent(config, status, 9.0 * gain)} if gain else {}
    entries = [Entry(point, config, status, 9.0, compiled, own, "") for point in points]
    results.finish_run(results.begin_run(key), entries, Totals())


def worker_with(*engines: str) -> WorkerInfo:
    """A worker with an L40S."""
    return WorkerInfo("w-1", "L40S-0@a", "a", "GPU-1", "NVIDIA_L40S", None, engines, {})


def standings(settings: Settings, store: Database) -> list[WatchState]:
    watch_list = watch_list_of(settings, NightStore(store))
    return [one.standing for one in work_of(watch_list, store).watched]


def rows_of(store: Database) -> list[dict[str, Any]]:
    """Read the rows that the service shows of what is stored for an L40S."""
    lookups = Lookups(store)
    environments = lookups.environments(["NVIDIA_L40S"])
    return stored_rows(lookups.stored_summaries(None, None, 9), environments)


class TestWorkOf:
    def test_a_point_that_lacks_is_missing(self, settings, store):
        tuned(store, PROBLEMS[0], sizes=(1,))
        assert standings(settings, store)[0] is WatchState.MISSING

    def test_a_prediction_is_no_measurement(self, settings, store):
        tuned(store, PROBLEMS[0], status=Status.PREDICTED)
        assert standings(settings, store)[0] is WatchState.MISSING

    @pytest.mark.parametrize("field", ["triton", "kernel_hash", "torch", "cuda", "driver"])
    def test_a_changed_environment_makes_the_others_stale(self, settings, store, field):
        tuned(store, PROBLEMS[0])
        tuned(store, PROBLEMS[1], replace(ENVIRONMENT, **{field: "new"}))
        assert standings(settings, store) == [WatchState.STALE, WatchState.TUNED]
        watch_list = watch_list_of(settings, NightStore(store))
        assert field in work_of(watch_list, store).watched[0].why

    def test_another_family_s_kernels_make_nothing_stale(self, settings, store):
        tuned(store, PROBLEMS[0])
        other = replace(ENVIRONMENT, kernel_hash="cd" * 32)
        point = Point(4, AttentionPart.DECODE, 1, 512)
        key = RunKey(ATTENTION, other, MeasureKind.GPU, "standard", 0, (point,), "x")
        entry = Entry(point, Config({"BLOCK_N": 64}), Status.OK, 9.0, Compiled(Status.OK), {}, "")
        ResultStore(store).finish_run(ResultStore(store).begin_run(key), [entry], Totals())
        assert standings(settings, store)[0] is WatchState.TUNED
        rows = rows_of(store)
        assert [(row["problem"], row["standing"]) for row in rows] == [
            (PROBLEMS[0].spec(), "tuned"),
            (ATTENTION.spec(), "tuned"),
        ]

    def test_what_was_measured_again_is_no_longer_stale(self, settings, store):
        for driver in ("580.1", "570.1", "580.1"):
            tuned(store, PROBLEMS[0], replace(ENVIRONMENT, driver=driver))
        watch_list = watch_list_of(settings, NightStore(store))
        assert standings(settings, store)[0] is WatchState.TUNED
        (row, _) = watched_rows(watch_list, None, 0, 10, Lookups(store))
        assert (row["standing"], row["why"]) == ("tuned", "")

    def test_a_result_is_judged_at_the_points_where_it_counts(self, settings, store):
        """A batch size that was measured anew has no results of the old environment beside them."""
        tuned(store, PROBLEMS[0], replace(ENVIRONMENT, driver="old"))
        tuned(store, PROBLEMS[0], sizes=(2,))
        found = Lookups(store).published(["NVIDIA_L40S"], ["sglang"], PROBLEMS)
        sizes = {one.environment.driver: {p.batch_size for p in one.points} for one in found[:2]}
        assert sizes == {"old": {1}, ENVIRONMENT.driver: {2}}
        assert standings(settings, store)[0] is WatchState.STALE

    def test_an_engine_upgraded_below_a_running_worker_is_seen(
        self, settings, store, tmp_path, monkeypatch
    ):
        old = find_engine("sglang==0.5.12")
        kernel_hash = lift_fused_moe(old).lifted.hash
        environment = replace(ENVIRONMENT, engine_version=old.version, kernel_hash=kernel_hash)
        tuned(store, PROBLEMS[0], environment)
        request = new_request(PROBLEMS[0], "L40S", selection=MoeSelection((1, 2)))
        monkeypatch.setenv("TUNER_ENGINE_PATH", str(tmp_path / "engines"))
        here = tmp_path / "engines" / "sglang"
        here.parent.mkdir()
        standings = []
        for version in ("0.5.12", "0.5.16"):
            here.unlink(missing_ok=True)
            here.symlink_to(find_engine(f"sglang=={version}").root)
            _engine_version_here.cache_clear()  # a minute later
            standings += [one.standing for one in watch_statuses([request], Lookups(store), [])]
        assert standings == [WatchState.TUNED, WatchState.STALE]

    def test_sources_that_change_in_place_are_seen(self, settings, store, engine_here, monkeypatch):
        kernel_hash = lift_fused_moe(find_engine("sglang==7.7.7")).lifted.hash
        now = replace(ENVIRONMENT, engine_version="7.7.7", kernel_hash=kernel_hash)
        tuned(store, PROBLEMS[0], now)
        request = new_request(
            PROBLEMS[0], "L40S", engine="sglang==7.7.7", selection=MoeSelection((1, 2))
        )
        standings = []
        text = engine_here.read_text()
        for minute, changed in enumerate((text, text.replace("tl.dot(", "tl.dot( "), text)):
            engine_here.write_text(changed)
            clock = SimpleNamespace(monotonic=lambda now=60.0 * minute: now)
            monkeypatch.setattr("workers.coverage.time", clock)
            standings += [one.standing for one in watch_statuses([request], Lookups(store), [])]
        assert standings == [WatchState.TUNED, WatchState.STALE, WatchState.TUNED]

    @pytest.mark.parametrize("is_stored", [True, False])
    def test_an_engine_that_cannot_be_lifted_stops_no_other(
        self, settings, store, engine_here, is_stored
    ):
        engine_here.write_text("def fused_moe_kernel(: no Python\n")
        if is_stored:
            tuned(store, PROBLEMS[0], replace(ENVIRONMENT, engine_version="7.7.7"))
        bad = Watch((PROBLEMS[0].spec(),), ("L40S",), batch_sizes=(1,), engine="sglang==7.7.7")
        unknown = replace(bad, engine="sglong")
        watch_list = WatchList((bad, unknown, replace(WATCH, models=(PROBLEMS[1].spec(),))))
        todo = work_of(watch_list, store)
        assert [one.problem for one in todo.requests()] == [PROBLEMS[1]]
        name = f"{PROBLEMS[0].spec()} TP 1 EP 1 on L40S"
        reasons = dict(todo.errors)
        assert "did you mean 'sglang'" in reasons[name]
        assert "sglang 7.7.7" in reasons[f"{PROBLEMS[0].spec()} on NVIDIA_L40S"]
        rows = watched_rows(watch_list, None, 0, 10, Lookups(store))
        assert [row["standing"] for row in rows] == ["error", "error", "missing"]
        assert "sglang 7.7.7" in rows[0]["why"]

    @pytest.mark.parametrize("order", [("9.9.8", "9.9.16"), ("9.9.16", "9.9.8")])
    def test_the_night_and_the_coverage_agree_on_two_engine_versions(self, store, order):
        """The higher version is the newest, whatever was measured last and is on this machine."""
        at = {version: replace(ENVIRONMENT, engine_version=version) for version in order}
        tuned(store, PROBLEMS[0], at["9.9.8"])  # this problem has no other result
        for version in order:
            tuned(store, PROBLEMS[1], at[version])
        rows = rows_of(store)
        found = {
            (row["problem"], row["environment"]["engine_version"]): row["standing"] for row in rows
        }
        assert found == {
            (PROBLEMS[0].spec(), "9.9.8"): "stale",
            (PROBLEMS[1].spec(), "9.9.8"): "stale",
            (PROBLEMS[1].spec(), "9.9.16"): "tuned",
        }
        judged = work_of(WatchList((replace(WATCH, engine="sglang"),)), store).watched
        assert [(one.standing, one.why) for one in judged] == [
            (WatchState.STALE, "engine_version 9.9.8 is now 9.9.16"),
            (WatchState.TUNED, ""),
        ]

    def test_a_watch_of_one_version_asks_for_that_version(self, store):
        newer = replace(ENVIRONMENT, engine_version="9.9.16", triton="3.7.0", torch="2.12.0")
        tuned(store, PROBLEMS[0])
        tuned(store, PROBLEMS[0], newer)
        tuned(store, PROBLEMS[1], newer)
        judged = work_of(WatchList((WATCH,)), store).watched
        assert [(one.standing, one.why) for one in judged] == [
            (WatchState.TUNED, ""),
            (WatchState.STALE, "engine_version 9.9.16 is now 9.9.9"),
        ]

    def test_predictions_are_as_stale_for_the_night_as_for_the_coverage(self, store):
        predicted = replace(ENVIRONMENT, torch="", cuda="", driver="")
        tuned(store, PROBLEMS[0], predicted, status=Status.PREDICTED)
        tuned(store, PROBLEMS[1], replace(ENVIRONMENT, engine_version="9.9.16"))
        rows = rows_of(store)
        assert [row["standing"] for row in rows] == ["stale", "tuned"]
        watch = replace(WATCH, engine="sglang", measure="predict")
        judged = work_of(WatchList((watch,)), store).watched
        assert [one.standing.value for one in judged] == ["stale", "tuned"]

    @both_databases
    def test_what_a_prediction_keeps_answers_a_watch_of_predictions_alone(self, store):
        """What was not tuned answers nothing, though its status is the same."""
        predicted = replace(ENVIRONMENT, torch="", cuda="", driver="")
        tuned(store, PROBLEMS[0], predicted, status=Status.INCUMBENT, compiled=False)
        tuned(store, PROBLEMS[1], predicted, status=Status.INCUMBENT)
        for measure, wanted in (("predict", "tuned"), ("gpu", "missing")):
            watch = replace(WATCH, measure=measure)
            judged = work_of(WatchList((watch,)), store).watched
            assert [one.standing.value for one in judged] == [wanted, "missing"]
        newer = replace(predicted, kernel_hash="cd" * 32)
        tuned(store, PROBLEMS[1], newer, status=Status.INCUMBENT, compiled=False)
        judged = work_of(WatchList((replace(WATCH, measure="predict"),)), store).watched
        assert [one.standing.value for one in judged] == ["stale", "tuned"]

    def test_the_oldest_is_measured_again_as_a_run_of_its_own(self, settings, store):
        tuned(store, PROBLEMS[1])
        tuned(store, PROBLEMS[0])
        watch_list = watch_list_of(settings, NightStore(store))
        (again,) = work_of(watch_list, store).revalidate
        assert again.problem == PROBLEMS[1]
        tuned(store, PROBLEMS[1], seed=again.seed)
        (next_one,) = work_of(watch_list, store).revalidate
        assert (next_one.problem, again.seed > 0) == (PROBLEMS[0], True)

    @both_databases
    def test_a_queued_revalidation_keeps_its_place_until_it_is_done(self, settings, store):
        """A device without a worker: nothing piles up."""
        for problem in PROBLEMS:
            tuned(store, problem)
        for days in range(5):
            run_nightly(settings, today=DAY + timedelta(days=days))
        (queued,) = JobStore(store).list()
        assert queued.request.problem == PROBLEMS[0]

    @both_databases
    def test_a_revalidation_that_fails_holds_up_no_other(self, settings, store):
        for problem in PROBLEMS:
            tuned(store, problem)
        leases, tried = Leases(store), []
        for days in range(4):
            run_nightly(settings, today=DAY + timedelta(days=days))
            lease = leases.claim([JobFilter(needs_gpu=True)], "w-1")
            tried.append(PROBLEMS.index(lease.request.problem))
            leases.fail(lease, "nothing fits")
        assert tried == [0, 1, 0, 1]

    @both_databases
    def test_results_are_judged_by_the_version_that_a_job_gets(self, settings, store, engine_here):
        """The night's machine has 7.7.7, the only worker 7.7.6."""
        watch_list = WatchList((replace(WATCH, engine="sglang"),), revalidate=0)
        WorkerStore(store).beat(worker_with("sglang==7.7.6"))
        assert {one.engine for one in work_of(watch_list, store).requests()} == {"sglang==7.7.6"}
        for problem in PROBLEMS:
            tuned(store, problem, replace(ENVIRONMENT, engine_version="7.7.6"))
        assert work_of(watch_list, store).requests() == []
        rows = watched_rows(watch_list, None, 0, 9, Lookups(store))
        assert [row["standing"] for row in rows] == ["tuned", "tuned"]

    def test_watches_of_the_api_count(self, settings, store):
        more = replace(WATCH, devices=("H200",))
        nights = NightStore(store)
        added = nights.add_watch(more.as_json(), more.key, "team")
        assert nights.add_watch(more.as_json(), more.key, "again") == added
        assert standings(settings, store) == [WatchState.MISSING] * 4
        assert nights.remove_watch(added.id)
        assert not nights.remove_watch(added.id)
        assert nights.watches() == []

    def test_a_watch_of_another_release_is_an_error_and_stops_no_other(self, settings, store):
        nights = NightStore(store)
        foreign = {**WATCH.as_json(), "devices": ["from tomorrow"]}
        added = nights.add_watch(foreign, "key", "team")
        assert standings(settings, store) == [WatchState.MISSING] * 2
        done = run_nightly(settings, today=DAY)
        assert len(done["submitted"]) == 2
        ((what, why),) = (error.values() for error in errors_of(done))
        assert what == f"watch {added.id}"
        assert "from tomorrow" in why
        watch_list = watch_list_of(settings, nights)
        *_, row = watched_rows(watch_list, None, 0, 9, Lookups(store))
        of_l40s = WatchedFilter("NVIDIA_L40S")
        assert (row["watch_id"], row["standing"]) == (added.id, "error")
        assert len(watched_rows(watch_list, of_l40s, 0, 9, Lookups(store))) == 2

    def test_a_result_of_another_release_stops_no_night(self, settings, store):
        tuned(store, PROBLEMS[0])
        tuned(store, PROBLEMS[1], replace(ENVIRONMENT, engine_version="9.9.10"))
        with store.write() as connection:
            mine = update(table).where(table.c.spec == PROBLEMS[1].spec())
            connection.execute(mine.values(spec="from_tomorrow:E=1"))
        assert standings(settings, store) == [WatchState.TUNED, WatchState.MISSING]


class TestRound:
    def test_a_round_queues_the_difference_once(self, settings, store):
        tuned(store, PROBLEMS[0])
        first = run_nightly(settings, today=DAY)
        assert (len(first["missing"]), len(first["revalidated"])) == (1, 1)
        queued = JobStore(store).list(JobQuery(states=frozenset({JobState.QUEUED})))
        assert sorted(job.id for job in queued) == sorted(first["submitted"])
        assert {job.client for job in queued} == {SCHEDULE}
        nights = NightStore(store)
        (recorded,) = [night.summary for night in nights.nights()]
        (done,) = recorded["rounds"]
        assert recorded == {**first, "rounds": [done]}
        assert "it was done at" in run_nightly(settings, today=DAY)["skipped"]
        assert [night.summary for night in nights.nights()] == [recorded]
        next_night = run_nightly(settings, today=DAY + timedelta(days=1))
        # Still queued: not queued again.
        assert (next_night["submitted"], next_night["waiting"]) == ([], first["submitted"])

    def test_what_came_of_a_night_is_told_by_job(self, settings, store):
        tuned(store, PROBLEMS[0], gain=1.5)
        summary = run_nightly(settings, today=DAY)
        again, missing = (summary[kind][0] for kind in ("revalidated", "missing"))
        assert (again["gain_before"], missing["gain_before"]) == (pytest.approx(1.5), None)
        assert {again["job_id"], missing["job_id"]} == set(summary["submitted"])
        assert [one.job and one.job.state for one in outcomes(summary, store)] == [
            JobState.QUEUED
        ] * 2
        leases = Leases(store)
        while lease := leases.claim([JobFilter(needs_gpu=True)], "w-1"):
            if lease.job_id == missing["job_id"]:
                leases.fail(lease, "nothing fits")
                continue
            results = leases.store(lease)
            tuned(store, PROBLEMS[0], gain=1.8, seed=DAY.toordinal(), results=results)
        failed, done = outcomes(summary, store)  # failures come first
        assert (failed.kind, failed.job and failed.job.error) == ("missing", "nothing fits")
        assert (failed.gain_after, done.kind) == (None, "revalidated")
        assert done.job and done.job.state is JobState.DONE
        assert done.gain_after == pytest.approx(1.8)
        assert outcomes({"skipped": "nothing is watched"}, store) == []

    @both_databases
    def test_two_beats_at_once_queue_each_job_once(self, settings, store):
        with ThreadPoolExecutor(3) as pool:
            rounds = list(pool.map(lambda _: run_nightly(settings, today=DAY), range(3)))
        assert sorted("skipped" in one for one in rounds) == [False, True, True]
        assert len(JobStore(store).list()) == 2

    def test_a_dry_run_writes_nothing(self, settings, store):
        assert len(run_nightly(settings, dry_run=True, today=DAY)["missing"]) == 2
        assert JobStore(store).list() == []
        assert NightStore(store).last() is None
        assert "skipped" not in run_nightly(settings, today=DAY)

    def test_a_round_that_was_killed_is_taken_over(self, store):
        began = utc_now()
        first = NightStore(store, lambda: began)
        assert first.begin(SCHEDULE, DAY) == began
        assert not first.begin(SCHEDULE, DAY)
        late = NightStore(store, lambda: began + GIVEN_UP + timedelta(seconds=1))
        taken = late.begin(SCHEDULE, DAY)
        assert taken
        assert not late.begin(SCHEDULE, DAY)
        late.finish(SCHEDULE, DAY, Round(taken), {"watched": 0})
        much_later = NightStore(store, lambda: began + 10 * GIVEN_UP)
        assert not much_later.begin(SCHEDULE, DAY)

    def test_a_forced_round_is_done_again(self, settings, store):
        first = run_nightly(settings, today=DAY)
        jobs = JobStore(store)
        jobs.cancel(first["submitted"][0])
        again = run_nightly(settings, today=DAY, force=True)
        assert (len(again["submitted"]), again["waiting"]) == (1, first["submitted"][1:])
        (night,) = NightStore(store).nights()
        assert night.summary["submitted"] == [*first["submitted"], *again["submitted"]]
        assert night.summary["missing"] == [*first["missing"], again["missing"][0]]
        assert (night.summary["waiting"], len(night.summary["rounds"])) == ([], 2)
        assert "skipped" in run_nightly(settings, today=DAY)

    @both_databases
    def test_a_round_that_is_being_done_is_not_forced(self, settings, store):
        began = NightStore(store).begin(SCHEDULE, DAY)
        assert began
        skipped = run_nightly(settings, today=DAY, force=True)["skipped"]
        assert skipped == "another process is doing it"
        NightStore(store).finish(SCHEDULE, DAY, Round(began), {})
        with ThreadPoolExecutor(3) as pool:
            forced = lambda _: NightStore(store).begin(SCHEDULE, DAY, again=True)  # noqa: E731
            assert sorted(map(bool, pool.map(forced, range(3)))) == [False, False, True]

    def test_a_night_of_an_earlier_release_was_done(self, settings, store):
        assert NightStore(store).begin(SCHEDULE, DAY)
        with store.write() as connection:
            done = {"summary": {"watched": 2, "submitted": []}, "finished_at": utc_now()}
            connection.execute(update(nightly_runs).values(**done))
        assert "it was done at" in run_nightly(settings, today=DAY)["skipped"]

    @both_databases
    def test_two_rounds_at_once_both_stay_in_the_record(self, store):
        """A round that was taken for killed comes to its end before the one that took it over."""
        began = utc_now()
        slow = NightStore(store, lambda: began)
        other = NightStore(store, lambda: began + GIVEN_UP + timedelta(seconds=1))
        first = slow.begin(SCHEDULE, DAY)
        second = other.begin(SCHEDULE, DAY)
        assert first
        assert second
        slow.finish(SCHEDULE, DAY, Round(first), {"submitted": ["a"], "waiting": []})
        (night,) = other.nights()
        assert night.finished_at is None
        other.finish(SCHEDULE, DAY, Round(second), {"submitted": ["b"], "waiting": ["a"]})
        (night,) = other.nights()
        assert night.finished_at
        assert (night.summary["submitted"], night.summary["waiting"]) == (["a", "b"], [])

    @both_databases
    def test_a_forced_round_that_fails_leaves_the_record(self, settings, store, monkeypatch):
        first = run_nightly(settings, today=DAY)
        with monkeypatch.context() as broken:

            def fail(*_: object) -> None:
                raise RuntimeError("the disk is on fire")

            broken.setattr("workers.nightly.work_of", fail)
            with pytest.raises(RuntimeError):
                run_nightly(settings, today=DAY, force=True)
            with pytest.raises(RuntimeError):
                run_nightly(settings, today=DAY + timedelta(days=1))
        nights = NightStore(store)
        record = nights.night(SCHEDULE, DAY).summary
        assert record["submitted"] == first["submitted"]
        assert errors_of(record) == [{"what": "the round failed", "why": "the disk is on fire"}]
        assert [one["error"] for one in record["rounds"]] == ["", "RuntimeError"]
        assert "it was done at" in run_nightly(settings, today=DAY)["skipped"]
        mended = run_nightly(settings, today=DAY + timedelta(days=1))  # that one was not done
        assert mended["waiting"] == first["submitted"]
        assert errors_of(nights.last().summary) == []

    @both_databases
    def test_the_same_watches_hold_whichever_process_is_first(self, settings, store):
        without = replace(settings, nightly=None)
        added = replace(WATCH, devices=("H200",))
        NightStore(store).add_watch(added.as_json(), added.key, "team")
        assert run_nightly(without, today=DAY)["watched"] == 2
        assert run_nightly(settings, today=DAY)["watched"] == 4
        for one in (without, settings):
            assert "it was done at" in run_nightly(one, today=DAY)["skipped"]
        (night,) = NightStore(store).nights()
        assert len(night.summary["submitted"]) == len(JobStore(store).list()) == 4

    def test_a_night_without_watches_leaves_the_date_open(self, settings, store):
        empty = replace(settings, nightly=None)
        assert "nothing is watched" in run_nightly(empty, today=DAY)["skipped"]
        assert NightStore(store).last() is None
        assert len(run_nightly(settings, today=DAY)["submitted"]) == 2

    def test_errors_are_counted_as_such(self, settings, store, monkeypatch):
        wrong = replace(WATCH, models=("nope-model", PROBLEMS[0].spec()))
        NightStore(store).add_watch(wrong.as_json(), wrong.key, "team")
        summary = run_nightly(replace(settings, nightly=None), today=DAY)
        (error,) = errors_of(summary)
        assert error["what"] == "nope-model TP 1 EP 1 on L40S"
        assert headline(summary) == (
            "nightly of 2026-11-01: 1 watched, 1 to do, 1 queued, 0 waiting before, 1 error"
        )

        def refuse(*_: object, **__: object) -> None:
            raise BadInput("the queue is full")

        monkeypatch.setattr(JobStore, "submit_all", refuse)
        summary = run_nightly(replace(settings, nightly=None), today=DAY, force=True)
        assert errors_of(summary)[1] == {"what": PROBLEMS[0].spec(), "why": "the queue is full"}
        assert headline(summary).endswith("0 queued, 0 waiting before, 2 errors")

    def test_past_nights_are_listed_in_pages(self, store):
        nights = NightStore(store)
        for days in (0, 2, 1):
            assert nights.begin(SCHEDULE, DAY + timedelta(days=days))
        first = nights.nights(limit=2)
        assert [night.date.day for night in first] == [3, 2]
        rest = nights.nights(after=(first[-1].date, first[-1].id), limit=2)
        assert [night.date.day for night in rest] == [1]

    def test_schedules_and_dates_are_apart(self, store):
        nights = NightStore(store)
        assert nights.begin("a", DAY)
        assert nights.begin("b", DAY)
        assert nights.begin("a", DAY + timedelta(days=1))
        last = nights.last("b")
        assert (last.date, last.summary, last.finished_at) == (DAY, None, None)
