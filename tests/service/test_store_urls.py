"""Where the store is: the default, and what is refused before anything is written."""

from pathlib import Path

import pytest

from tuner.errors import BadInput, UnusableStore
from tuner.store.connect import connect, database_url
from tuner.store.database import Database, try_file_lock


def test_the_environment_names_the_store():
    assert database_url({"TUNER_DATABASE_URL": "sqlite:///here.db"}) == "sqlite:///here.db"


def test_a_file_may_hold_the_stores_url(tmp_path):
    secret = tmp_path / "database_url"
    secret.write_text("sqlite:///here.db\n")
    environ = {"TUNER_DATABASE_URL_FILE": str(secret)}
    assert database_url(environ) == "sqlite:///here.db"
    with pytest.raises(BadInput, match="TUNER_DATABASE_URL and TUNER_DATABASE_URL_FILE are both"):
        database_url({**environ, "TUNER_DATABASE_URL": "sqlite:///other.db"})
    secret.write_text("\n")
    with pytest.raises(BadInput, match="TUNER_DATABASE_URL_FILE names an empty file"):
        database_url(environ)
    secret.unlink()
    with pytest.raises(BadInput, match="TUNER_DATABASE_URL_FILE cannot be read"):
        database_url(environ)


@pytest.mark.parametrize("environ", [{}, {"TUNER_DATABASE_URL": ""}])
def test_the_default_is_a_file_in_the_users_data_folder(environ, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    url = database_url(environ)
    assert url.startswith(f"sqlite:///{tmp_path}")
    Database.open(url).close()
    assert Path(url.removeprefix("sqlite:///")).is_file()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("tuner.db", "is not a database URL: use sqlite:///FILE"),
        ("postgresql://me:secret@host:port/name", "is not a database URL"),
        ("mysql://me:secret@host/name", "'mysql': use sqlite:///FILE or postgresql://"),
        ("postgresql+psycopg2://me:secret@host/name", "'postgresql+psycopg2': use"),
        ("sqlite://tuner.db", "Invalid SQLite URL"),
        ("postgresql://127.0.0.1/name?speed=high", "speed"),
        ("postgresql://me:secret@127.0.0.1:1/name", "port 1 failed"),
        ("postgres://me:secret@127.0.0.1:1/name", "me:***@127.0.0.1:1/name"),
    ],
)
def test_an_unusable_url_is_refused_in_one_line(url, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnusableStore) as caught:
        Database.open(url)
    message = str(caught.value)
    assert reason in message
    assert "secret" not in message
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_database_is_left_as_it_is(tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("not a database, and long enough not to pass for an empty one\n" * 20)
    before = notes.read_bytes()
    for path, reason in [
        (notes, "file is not a database"),
        (tmp_path, "unable to open"),
        (notes / "below" / "tuner.db", "Not a directory"),
    ]:
        with pytest.raises(UnusableStore, match=reason) as caught:
            Database.open(f"sqlite:///{path}")
        assert "\n" not in str(caught.value)
    assert notes.read_bytes() == before
    assert list(tmp_path.iterdir()) == [notes]


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_leaves_no_file(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    engine = connect(url)
    with try_file_lock(engine, "a name") as mine:
        assert mine
    engine.dispose()
    assert list(tmp_path.iterdir()) == []
