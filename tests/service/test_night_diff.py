"""`tuner diff` of two nights: their jobs, and the fastest trials of the jobs' runs."""

import json
from datetime import date, timedelta

import pytest
from api_server import serving
from databases import both_databases
from typer.testing import CliRunner

from api.settings import ApiSettings
from tuner.cli.commands import app
from tuner.errors import BadInput
from tuner.families.fused_moe.problem import Gemm
from tuner.jobs.job import JobFilter
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import (
    Compiled,
    Entry,
    Environment,
    MeasureKind,
    Measurement,
    RunKey,
    Status,
    Totals,
    Trial,
)
from tuner.store.database import Database
from tuner.store.leases import Leases
from tuner.store.night_diff import diff_nights
from workers.nightly import SCHEDULE, run_nightly
from workers.settings import Settings
from workers.watches import Watch

FIRST, SECOND = date(2026, 11, 24), date(2026, 11, 25)
PROBLEM = parse_problem("fused_moe:E=8,N=512,K=1024,top_k=2,dtype=bfloat16")
POINTS = tuple(Point(size, gemm) for size in (1, 2) for gemm in Gemm)
WATCH = Watch((PROBLEM.spec(),), ("L40S",), batch_sizes=(1, 2), engine="sglang==9.9.9")
HERE = Environment("NVIDIA_L40S", "sglang", "9.9.9", "3.6.0", "ab" * 32, "2.11.0", "13.0", "580.1")


@pytest.fixture
def settings(store_url, tmp_path):
    lines = [f"{name} = {value!r}" for name, value in WATCH.as_json().items()]
    path = tmp_path / "nightly.toml"
    path.write_text("\n".join(["revalidate = 1", "[[watch]]", *lines]).replace("'", '"'))
    return Settings(store_url, nightly=path)


def night(settings: Settings, day: date, blocks: dict[int, float]) -> None:
    """A round, and a worker that measures its job; `blocks`: times by BLOCK_SIZE_M."""
    run_nightly(settings, today=day)
    with Leases.open(settings.database_url) as leases:
        lease = leases.claim([JobFilter(needs_gpu=True)], "worker")
        store = leases.store(lease)
        key = RunKey(
            PROBLEM, HERE, MeasureKind.GPU, "standard", lease.request.seed, POINTS, "sglang"
        )
        run = store.begin_run(key)
        compiled = Compiled(Status.OK)
        configs = {Config({"BLOCK_SIZE_M": block}): us for block, us in blocks.items()}
        store.add_trials(
            run,
            [
                Trial(Candidate(point, config), compiled, Measurement(Status.OK, us, us, 9))
                for point in POINTS
                for config, us in configs.items()
            ],
        )
        best = min(configs, key=configs.__getitem__)
        entries = [Entry(p, best, Status.OK, configs[best], compiled, {}, "") for p in POINTS]
        store.finish_run(run, entries, Totals())


@both_databases
def test_the_fastest_trials_of_two_nights_are_compared(settings):
    night(settings, FIRST, {16: 20.0, 32: 30.0})
    night(settings, SECOND, {16: 18.0, 64: 10.0})
    with Database.open(settings.database_url) as store:
        found = diff_nights(store, SCHEDULE, FIRST, SECOND)
        (one,) = found.problems
        assert (one.change, one.states, one.sizes) == ("changed", ("done", "done"), 4)
        assert one.faster == pytest.approx(2.0)
        assert one.changed[0] == "up,M=1"
        same = diff_nights(store, SCHEDULE, SECOND, SECOND)
        assert [one.change for one in same.problems] == ["the same"]
        with pytest.raises(BadInput, match="tuner nightly run --list"):
            diff_nights(store, SCHEDULE, FIRST, SECOND + timedelta(days=1))


@both_databases
def test_a_problem_of_one_night_alone_and_one_without_times(settings):
    run_nightly(settings, today=FIRST)  # nobody does its job
    night(settings, SECOND, {16: 18.0})
    with Database.open(settings.database_url) as store:
        (one,) = diff_nights(store, SCHEDULE, FIRST, SECOND).problems
        assert one.change == "the same"  # the second night waited for the first one's job
        night(settings, SECOND + timedelta(days=1), {16: 18.0})
        text = diff_nights(store, SCHEDULE, FIRST, SECOND + timedelta(days=1)).as_text()
    assert text.startswith("2026-11-24 and 2026-11-26: ")


def test_the_nights_of_a_server_are_compared_as_its_own(settings, monkeypatch, tmp_path):
    night(settings, FIRST, {16: 20.0, 32: 30.0})
    night(settings, SECOND, {16: 18.0, 64: 10.0})
    monkeypatch.setenv("TUNER_DATABASE_URL", settings.database_url)
    words = ["diff", str(FIRST), str(SECOND)]
    here = CliRunner().invoke(app, words).stdout
    assert "changed: fused_moe:" in here
    with serving(ApiSettings(Settings(settings.database_url), no_auth=True)) as server:
        monkeypatch.setenv("TUNER_DATABASE_URL", f"sqlite:///{tmp_path}/empty.db")
        of_server = [*words, "--server", server.url]
        assert CliRunner().invoke(app, of_server).stdout == here
        other = CliRunner().invoke(app, ["diff", "2026-11-20", *of_server[2:]])
        assert (other.exit_code, "no finished night of 2026-11-20" in other.stderr) == (2, True)
        folders = CliRunner().invoke(app, ["diff", "a", "b", "--server", server.url])
        assert (folders.exit_code, "a server compares nights" in folders.stderr) == (2, True)


def test_the_command_takes_days_or_folders(settings, monkeypatch):
    monkeypatch.setenv("TUNER_DATABASE_URL", settings.database_url)
    night(settings, FIRST, {16: 20.0})
    night(settings, SECOND, {16: 16.0})
    done = CliRunner().invoke(app, ["diff", str(FIRST), str(SECOND), "--json"])
    assert done.exit_code == 0, done.output
    (one,) = json.loads(done.stdout)["problems"]
    assert (one["change"], one["faster"]) == ("the same", pytest.approx(1.25))
    for words, said in (
        (["2026-11-24", "2026-13-01"], "as 2026-11-24"),
        (["2026-11-20", "2026-11-25"], "no finished night of 2026-11-20"),
        (["2026-11-24", "configs_out"], "no provenance/"),
    ):
        refused = CliRunner().invoke(app, ["diff", *words])
        assert refused.exit_code == 2 and said in refused.stderr, refused.output
