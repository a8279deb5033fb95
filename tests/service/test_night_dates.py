"""Each night is done once, at its hour or later, whoever asks for a round."""

from dataclasses import dataclass, field
from datetime import datetime, timezone

import pytest
from clocks import Clock
from databases import both_databases
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.errors import StoreFull, StoreUnreachable
from tuner.store.database import Database, utc_now
from tuner.store.jobs import JobStore
from tuner.store.nights import NightStore, Round
from workers.nightly import SCHEDULE, UNDER_WAY, do_round, due_night
from workers.queue import Announcer
from workers.settings import Settings
from workers.watches import read_watch

WATCH = read_watch(
    {
        "models": ["fused_moe:E=8,N=512,K=1024,top_k=2,dtype=bfloat16"],
        "devices": ["L40S"],
        "batch_sizes": [1],
        "engine": "sglang==9.9.9",
    }
)


@dataclass
class Service:
    """A service whose night begins at an hour, with one watch."""

    settings: Settings
    store: Database
    clock: Clock = field(default_factory=Clock)

    def ask(self, day: int, hour: int, minute: int = 0, *, force: bool = False) -> str:
        """Why there is nothing to do at a time in November 2026, or the date of the night."""
        self.clock.now = datetime(2026, 11, day, hour, minute, tzinfo=timezone.utc)
        announcer = Announcer(self.settings)
        done = do_round(self.settings, self.store, announcer, force=force, clock=self.clock)
        return str(done.get("skipped", done["date"]))

    def rounds(self) -> dict[int, list[bool]]:
        """Return whether each round was forced, by the day of its night."""
        nights = NightStore(self.store, self.clock).nights()
        return {
            night.date.day: [one["forced"] for one in (night.summary or {})["rounds"]]
            for night in reversed(nights)
        }


@pytest.fixture
def service(store_url, request):
    with Database.open(store_url) as store:
        NightStore(store).add_watch(WATCH.as_json(), WATCH.key, "team")
        yield Service(Settings(store_url, nightly_hour=22), store)


def test_a_round_by_hand_before_the_hour_leaves_the_night_to_be_done(service):
    assert service.ask(10, 10) == "2026-11-09"  # the last night whose hour has come
    assert service.ask(10, 21, 59).startswith("it was done at 10:00 UTC")
    assert service.ask(10, 22) == "2026-11-10"
    assert service.ask(11, 0).startswith("it was done at 22:00 UTC")  # across midnight
    assert service.rounds() == {9: [False], 10: [False]}


@both_databases
def test_a_forced_round_takes_no_night_s_place(service):
    assert service.ask(10, 22, 10, force=True) == "2026-11-10"  # before beat comes
    assert service.ask(10, 23) == "2026-11-10"
    assert service.ask(11, 9, force=True) == "2026-11-10"
    assert service.ask(11, 10).startswith("it was done at 23:00 UTC")
    assert service.ask(11, 22) == "2026-11-11"
    assert service.rounds() == {10: [True, False, True], 11: [False]}
    assert len(JobStore(service.store).list()) == 1


def test_a_service_that_was_down_for_three_days_does_one_night(service):
    assert service.ask(10, 22) == "2026-11-10"
    assert service.ask(14, 8) == "2026-11-13"
    assert service.ask(14, 9).startswith("it was done")
    assert service.ask(14, 22) == "2026-11-14"
    assert list(service.rounds()) == [10, 13, 14]


def test_a_clock_that_goes_back_does_no_night_again(service):
    service.ask(10, 22)
    service.ask(11, 22)
    assert service.ask(11, 21).startswith("it was done")
    assert list(service.rounds()) == [10, 11]


def test_a_night_whose_jobs_the_store_did_not_take_is_to_be_done(service, monkeypatch):
    def away(*_: object, **__: object) -> None:
        raise StoreUnreachable("the store does not answer")

    with monkeypatch.context() as outage:
        outage.setattr(JobStore, "submit_all", away)
        with pytest.raises(StoreUnreachable):
            service.ask(10, 22)
    assert service.ask(10, 23) == "2026-11-10"
    assert len(JobStore(service.store).list()) == 1


def test_a_command_is_told_to_come_again_for_a_night_that_is_not_done_yet(service, monkeypatch):
    monkeypatch.setenv("TUNER_DATABASE_URL", service.settings.database_url)
    nights, today = NightStore(service.store), due_night(Settings("sqlite://"), utc_now())
    began = nights.begin(SCHEDULE, today)
    run = lambda: CliRunner().invoke(app, ["nightly", "run"])  # noqa: E731
    seen = run()
    assert (seen.exit_code, UNDER_WAY in seen.stdout) == (75, True)
    nights.finish(SCHEDULE, today, Round(began), {"watched": 1})
    assert run().exit_code == 0


def test_a_full_disk_is_no_mistake_of_the_command(service, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise StoreFull("the disk is full")

    monkeypatch.setenv("TUNER_DATABASE_URL", service.settings.database_url)
    monkeypatch.setattr(NightStore, "begin", fail)
    assert CliRunner().invoke(app, ["nightly", "run"]).exit_code == 75
