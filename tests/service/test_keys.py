"""Keys in the store, on each database; and how seldom the API asks for them."""

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import pytest
from databases import both_databases
from sqlalchemy import event

from api import keys as api_keys
from api.keys import KnownKeys, TooManyWrong
from tuner.errors import BadInput
from tuner.store.api_key import KeyState, Scope, key_hash, parse_expiry, parse_scopes
from tuner.store.keys import Ensured, KeyStore

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
TOKEN, NEXT, THIRD = "k" * 40, "n" * 40, "t" * 40


class Clock:
    """A time of day and a monotonic clock, which stand until they are moved."""

    def __init__(self) -> None:
        self.day, self.s = NOW, 1000.0

    def now(self) -> datetime:
        return self.day

    def monotonic(self) -> float:
        return self.s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def keys(store_url, clock):
    with KeyStore.open(store_url) as opened:
        yield KeyStore(opened.database, clock.now)


@contextmanager
def statements(store: KeyStore) -> Iterator[list[str]]:
    """What the store is asked within the block."""
    asked: list[str] = []

    def note(connection: object, cursor: object, statement: str, *_: object) -> None:
        asked.append(statement)

    event.listen(store.database.engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(store.database.engine, "before_cursor_execute", note)


def name_of(keys: KeyStore, token: str) -> str | None:
    found = keys.find(token)
    return found and found.name


class TestAdding:
    def test_a_key_from_elsewhere_may_be_added_again(self, keys):
        assert keys.add("admin", Scope.ADMIN, f"{TOKEN}\n") == TOKEN
        assert keys.add("admin", Scope.ADMIN, TOKEN) == TOKEN
        stored = "this key is stored already, as 'admin' with the scope admin"
        for name, scope, given, says in [
            ("admin", Scope.ADMIN, "j" * 40, "a key named 'admin' already"),
            ("admin", Scope.READ, TOKEN, stored),
            ("other", Scope.ADMIN, TOKEN, stored),
            ("short", Scope.READ, "k" * 31, "at least 32"),
            ("../x", Scope.READ, None, "letters, digits"),
            ("admin#1", Scope.READ, None, "letters, digits"),
            ("local", Scope.READ, None, "the service's own"),
            ("nightly", Scope.READ, None, "the service's own"),
        ]:
            with pytest.raises(BadInput, match=says):
                keys.add(name, scope, given)

    def test_a_revoked_key_stays_revoked(self, keys):
        keys.add("admin", Scope.ADMIN, TOKEN)
        with pytest.raises(BadInput, match="the last key of scope admin.*--force"):
            keys.revoke("admin")
        assert keys.any()
        keys.revoke("admin", last_too=True)
        with pytest.raises(BadInput, match="this key of 'admin' was revoked"):
            keys.add("admin", Scope.ADMIN, TOKEN)
        assert (keys.any(), keys.any_ever()) == (False, True)

    @pytest.mark.parametrize(
        ("text", "scope", "urgent"),
        [
            ("read", Scope.READ, False),
            ("submit, urgent", Scope.SUBMIT, True),
            ("urgent,submit", Scope.SUBMIT, True),
            ("admin", Scope.ADMIN, False),
        ],
    )
    def test_scopes_are_read(self, text, scope, urgent):
        assert parse_scopes(text) == (scope, urgent)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("foo", "unknown scope 'foo'; the scopes are read, submit, admin, and urgent beside"),
            ("submt", "did you mean 'submit'?"),
            ("", "unknown scope ''"),
            ("urgent", "--scope submit,urgent"),
            ("read,urgent", "--scope submit,urgent"),
        ],
    )
    def test_other_scopes_are_refused(self, text, says):
        with pytest.raises(BadInput) as refusal:
            parse_scopes(text)
        assert says in str(refusal.value)

    def test_urgent_is_stored_beside_submit(self, keys):
        tokens = [
            keys.add("plain", Scope.SUBMIT),
            keys.add("hasty", Scope.SUBMIT, urgent=True),
            keys.add("admin", Scope.ADMIN),
        ]
        found = [key for key in map(keys.find, tokens) if key]
        assert [(key.scope, key.urgent) for key in found] == [
            (Scope.SUBMIT, False),
            (Scope.SUBMIT, True),
            (Scope.ADMIN, True),
        ]


@both_databases
class TestTheFirst:
    def test_it_is_made_once(self, keys):
        kept: list[str] = []
        assert keys.add_first(kept.append)
        assert not keys.add_first(kept.append)
        (key,) = keys.list()
        assert (key.name, key.scope) == ("local", Scope.ADMIN)
        assert [name_of(keys, token) for token in kept] == ["local"]

    def test_it_is_not_made_beside_a_key_or_after_one(self, keys):
        keys.add("team", Scope.READ)
        keys.revoke("team")
        assert not keys.add_first(lambda _: pytest.fail("there was a key"))

    def test_a_key_that_cannot_be_kept_is_not_stored(self, keys):
        def refuse(_: str) -> None:
            raise BadInput("no room")

        with pytest.raises(BadInput, match="no room"):
            keys.add_first(refuse)
        assert not keys.any_ever()

    def test_two_servers_that_start_together_make_one(self, store_url):
        kept: list[str] = []
        with KeyStore.open(store_url) as one, KeyStore.open(store_url) as two:
            with ThreadPoolExecutor(2) as pool:
                made = list(pool.map(lambda keys: keys.add_first(kept.append), (one, two)))
            assert sorted(made) == [False, True]
            assert [name_of(one, token) for token in kept] == ["local"]


class TestExpiry:
    def test_a_key_ends_at_its_time(self, keys, clock):
        token = keys.add("ci", Scope.ADMIN, expires_at=NOW + timedelta(days=1))
        assert keys.any() and keys.hashes() == {key_hash(token)}
        clock.day += timedelta(days=1)
        found = keys.find(token)
        assert found and found.state(clock.day) is KeyState.EXPIRED
        assert not keys.any() and keys.hashes() == frozenset()
        assert keys.any_ever()

    def test_a_key_with_a_new_secret_ends_when_it_did_before(self, keys):
        ends = NOW + timedelta(days=90)
        keys.add("ci", Scope.SUBMIT, expires_at=ends)
        token = keys.rotate("ci")
        found = keys.find(token)
        assert found and (found.name, found.scope, found.expires_at) == ("ci", Scope.SUBMIT, ends)
        assert keys.hashes() == {key_hash(token)}

    def test_an_expired_admin_is_not_the_one_that_remains(self, keys, clock):
        keys.add("old", Scope.ADMIN, expires_at=NOW + timedelta(days=1))
        keys.add("me", Scope.ADMIN)
        clock.day += timedelta(days=2)
        with pytest.raises(BadInput, match="me is the last key of scope admin"):
            keys.revoke("me")
        keys.revoke("old")
        assert [key.state(clock.day).value for key in keys.list()] == ["revoked", "valid"]

    @pytest.mark.parametrize(
        ("text", "ends"),
        [
            ("90d", NOW + timedelta(days=90)),
            ("2026-11-22", datetime(2026, 11, 22, tzinfo=timezone.utc)),
        ],
    )
    def test_days_and_dates_are_read(self, text, ends):
        assert parse_expiry(text, NOW) == ends

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            *((text, "after 1d to 3650d") for text in ("", "0d", "3651d", "-1d", "90", "1h")),
            *((text, "on a date like") for text in ("tomorrow", "2027-1-1", "20270101", "٩d")),
            ("2026-02-30", "is no date"),
            ("2026-11-21", "has begun already"),
            ("1999-01-01", "has begun already"),
        ],
    )
    def test_others_are_refused(self, text, says):
        with pytest.raises(BadInput, match=says):
            parse_expiry(text, NOW)


@both_databases
class TestEnsuring:
    def test_again_it_does_nothing(self, keys):
        assert keys.ensure("admin", Scope.ADMIN, f"{TOKEN}\n") is Ensured.ADDED
        before = keys.list()
        assert keys.ensure("admin", Scope.ADMIN, TOKEN) is Ensured.NOTHING
        assert keys.list() == before

    def test_another_token_takes_the_name_and_the_old_one_never_returns(self, keys):
        keys.ensure("admin", Scope.ADMIN, TOKEN)
        assert keys.ensure("admin", Scope.ADMIN, NEXT) is Ensured.REPLACED
        assert (name_of(keys, TOKEN), name_of(keys, NEXT)) == (None, "admin")
        with pytest.raises(BadInput, match="this key of 'admin' was revoked.*rotate admin_key"):
            keys.ensure("admin", Scope.ADMIN, TOKEN)
        assert keys.ensure("admin", Scope.ADMIN, THIRD) is Ensured.REPLACED
        assert [key.revoked_at is None for key in keys.list()] == [False, False, True]

    def test_a_revoked_token_is_refused_and_a_new_one_brings_the_name_back(self, keys):
        keys.ensure("admin", Scope.ADMIN, TOKEN)
        keys.revoke("admin", last_too=True)
        with pytest.raises(BadInput, match="was revoked"):
            keys.ensure("admin", Scope.ADMIN, TOKEN)
        assert not keys.any()
        assert keys.ensure("admin", Scope.ADMIN, NEXT) is Ensured.BACK
        assert (name_of(keys, TOKEN), name_of(keys, NEXT)) == (None, "admin")

    def test_an_expired_token_is_refused_and_a_new_one_does_not_expire(self, keys, clock):
        keys.add("ci", Scope.SUBMIT, TOKEN, expires_at=NOW + timedelta(days=1))
        clock.day += timedelta(days=2)
        with pytest.raises(BadInput, match="this key of 'ci' expired"):
            keys.ensure("ci", Scope.SUBMIT, TOKEN)
        assert keys.ensure("ci", Scope.SUBMIT, NEXT) is Ensured.REPLACED
        assert keys.list()[-1].expires_at is None

    def test_its_scopes_are_what_was_asked_for(self, keys):
        keys.ensure("ci", Scope.READ, TOKEN)
        assert keys.ensure("ci", Scope.SUBMIT, TOKEN, urgent=True) is Ensured.CHANGED
        (key,) = keys.list()
        assert (key.scope, key.urgent) == (Scope.SUBMIT, True)

    @pytest.mark.parametrize("token", [TOKEN, NEXT])
    def test_the_last_admin_stays_one(self, keys, token):
        keys.ensure("admin", Scope.ADMIN, TOKEN)
        with pytest.raises(BadInput, match="admin is the last key of scope admin: make another"):
            keys.ensure("admin", Scope.SUBMIT, token)
        assert name_of(keys, TOKEN) == "admin"

    def test_a_token_has_one_name(self, keys):
        keys.add("ci", Scope.SUBMIT, TOKEN)
        with pytest.raises(BadInput, match="stored already, as 'ci'"):
            keys.ensure("admin", Scope.ADMIN, TOKEN)
        for name in ("local", "nightly", "a b"):
            with pytest.raises(BadInput, match="name"):
                keys.ensure(name, Scope.ADMIN, NEXT)

    def test_processes_that_do_it_together_agree(self, store_url):
        with KeyStore.open(store_url) as one, KeyStore.open(store_url) as two:
            one.ensure("admin", Scope.ADMIN, TOKEN)
            with ThreadPoolExecutor(8) as pool:
                did = list(
                    pool.map(lambda keys: keys.ensure("admin", Scope.ADMIN, NEXT), [one, two] * 8)
                )
            assert sorted(done.value for done in did) == ["nothing"] * 15 + ["replaced"]
            assert [key.revoked_at is None for key in one.list()] == [False, True]


class TestKnownKeys:
    """What the API asks the store, in the event loop of a test."""

    @pytest.fixture
    def keys(self, sqlite_url):
        with KeyStore.open(sqlite_url) as opened:
            yield opened

    def test_a_key_is_asked_for_again_after_two_seconds(self, keys, clock):
        token = keys.add("team", Scope.READ)
        keys.find(token)  # its first use of this hour is stored

        async def run() -> None:
            known = KnownKeys(clock.monotonic)

            async def name() -> str | None:
                found = await known.find(keys, token, "::1", "/")
                return found and found.name

            with statements(keys) as asked:
                assert await name() == "team"
                first = len(asked)
                assert [await name() for _ in range(5)] == ["team"] * 5
                assert len(asked) == first > 0
            keys.revoke("team")
            clock.s += 1.9
            assert await name() == "team"
            clock.s += 0.1
            assert await name() is None

        asyncio.run(run())

    def test_wrong_keys_are_limited_before_the_store_is_asked(self, keys, clock):
        async def run() -> None:
            known = KnownKeys(clock.monotonic)

            async def wrong(number: int, address: str = "::1") -> str:
                try:
                    assert await known.find(keys, f"wrong-{number}", address, "/") is None
                except TooManyWrong as error:
                    return f"wait {error.wait_s}"
                return "asked"

            with statements(keys) as asked:
                said = await asyncio.gather(*map(wrong, range(200)))  # all at once
            assert said.count("asked") == 30
            assert sum("key_hash = " in one for one in asked) == 30
            assert len([one for one in asked if "key_hash" in one]) == 31  # and all hashes, once
            clock.s += 20
            assert await wrong(200) == "wait 40"
            assert await wrong(201, "::1:0:0:0:1") == "asked"

        asyncio.run(run())

    def test_a_valid_key_is_found_beside_them(self, keys, clock):
        token = keys.add("team", Scope.READ)

        async def run() -> None:
            known = KnownKeys(clock.monotonic)

            async def ask(text: str) -> str | None:
                try:
                    found = await known.find(keys, text, "::1", "/")
                except TooManyWrong:
                    return "limited"
                return found and found.name

            said = {await ask(f"wrong-{number}") for number in range(40)}
            assert said == {None, "limited"}
            assert await ask(token) == "team"  # asked for the first time
            new = keys.add("new", Scope.READ)
            assert await ask(new) == "limited"  # the hashes were read before
            clock.s += 2.0
            assert await ask(new) == "new"
            keys.revoke("team")
            assert await ask("wrong") == "limited"
            clock.s += 2.0
            assert await ask(token) == "limited"

        asyncio.run(run())

    def test_many_are_logged_as_one_line_for_an_address(self, keys, monkeypatch, caplog):
        monkeypatch.setattr(api_keys, "WINDOW_S", 0.01)

        async def run() -> None:
            summed_up = asyncio.Event()

            class Watch(logging.Handler):
                def emit(self, record: logging.LogRecord) -> None:
                    if " wrong keys in " in record.getMessage():
                        summed_up.set()

            watch = Watch()
            api_keys.log.addHandler(watch)
            try:
                wrong = api_keys.WrongKeys(lambda: 0.0)
                for _ in range(50):
                    wrong.add("::1", "/v1/jobs")
                wrong.add("::1:0:0:0:1", "/v1/jobs")
                assert wrong.too_many("::2")  # of the same network
                assert not wrong.too_many("::1:0:0:0:2")
                await asyncio.wait_for(summed_up.wait(), 60)
                assert not wrong.too_many("::1")  # the count has begun again
            finally:
                api_keys.log.removeHandler(watch)

        with caplog.at_level(logging.WARNING, "tuner.api.auth"):
            asyncio.run(run())
        said = [(record.getMessage(), vars(record)["address"]) for record in caplog.records]
        assert said == [("a wrong key", "::1")] * 3 + [
            ("a wrong key", "::1:0:0:0:1"),
            ("50 wrong keys in 0 s", "::/64"),
        ]
