"""Schemas: made from nothing, equal to the tables in code, refused when not ours to write."""

import os
import shutil
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from api_server import ENTRY
from databases import both_databases
from sqlalchemy import inspect, make_url, text
from store_writer import KEY

from tuner.errors import NewerSchema, UnusableStore, WrongSchema
from tuner.problems.points import UNKNOWN_SERVER, ServerSettings
from tuner.problems.results import Totals
from tuner.store.connect import connect, writer
from tuner.store.database import HEAD, Database, alembic_config
from tuner.store.results import ResultStore
from tuner.store.tables import VERSION_TABLE, metadata


def execute(url: str, *statements: str) -> None:
    engine = connect(url)
    with writer(engine).begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def snapshot(url: str) -> dict[str, list[tuple[object, ...]]]:
    """Every table with its rows."""
    engine = connect(url)
    with engine.connect() as connection:
        found = {
            name: [tuple(row) for row in connection.execute(text(f"SELECT * FROM {name}"))]  # noqa: S608
            for name in inspect(connection).get_table_names()
        }
    engine.dispose()
    return found


def refusal(url: str) -> str:
    with pytest.raises(UnusableStore) as caught:
        Database.open(url)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@both_databases
def test_migrations_make_what_the_code_uses(empty_store_url):
    Database.open(empty_store_url).close()
    engine = connect(empty_store_url)
    with engine.connect() as connection:
        options = {"version_table": VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        assert context.get_current_heads() == (HEAD,)
        assert compare_metadata(context, metadata) == []
        names = set(inspect(connection).get_table_names())
    engine.dispose()
    assert names == {*metadata.tables, VERSION_TABLE}


def test_the_code_knows_the_newest_migration():
    assert ScriptDirectory.from_config(alembic_config()).get_current_head() == HEAD


@both_databases
def test_opening_again_changes_nothing(empty_store_url):
    with Database.open(empty_store_url) as store:
        ResultStore(store).begin_run(KEY)
    before = snapshot(empty_store_url)
    Database.open(empty_store_url).close()
    assert snapshot(empty_store_url) == before


@both_databases
def test_results_of_an_older_schema_are_kept_and_their_servers_are_not_known(empty_store_url):
    server = ServerSettings("MixtralForCausalLM", "int8_w8a8 compressed-tensors int8")
    with Database.open(empty_store_url) as store:
        results = ResultStore(store)
        run = results.begin_run(KEY)
        results.finish_run(run, [replace(ENTRY, server=server)], Totals())
        place = {"device": KEY.environment.device, "engine": KEY.environment.engine}
        (kept,) = results.winners(**place)
        assert kept.entry.server == server
    execute(
        empty_store_url,
        "ALTER TABLE winners DROP COLUMN server",
        f"UPDATE {VERSION_TABLE} SET version_num = '0017'",  # noqa: S608
    )
    with Database.open(empty_store_url) as store:
        (found,) = ResultStore(store).winners(**place)
    assert found == replace(kept, entry=replace(kept.entry, server=UNKNOWN_SERVER))


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("9999", "the store was upgraded to schema 9999 and this program knows {}: upgrade and "
         "restart it"),
        ("0013", "the store has schema 0013 of an early development version, and this program "
         "needs {}: export with that version the results worth keeping, and name a new store"),
    ],
)  # fmt: skip
@both_databases
def test_another_schema_is_refused_and_left_alone(empty_store_url, version, said):
    Database.open(empty_store_url).close()
    execute(empty_store_url, f"UPDATE {VERSION_TABLE} SET version_num = '{version}'")  # noqa: S608
    before = snapshot(empty_store_url)
    assert refusal(empty_store_url) == said.format(HEAD)
    assert snapshot(empty_store_url) == before


@both_databases
def test_an_open_program_sees_that_the_schema_is_another_one(empty_store_url):
    with Database.open(empty_store_url) as store:
        store.check_schema()
        for version, kind, said in [
            ("9999", NewerSchema, f"to schema 9999 and this program knows {HEAD}: upgrade"),
            ("0013", WrongSchema, "has schema 0013 of an early development version"),
        ]:
            execute(empty_store_url, f"UPDATE {VERSION_TABLE} SET version_num = '{version}'")  # noqa: S608
            with pytest.raises(WrongSchema, match=said) as caught:
                store.check_schema()
            assert type(caught.value) is kind
        execute(empty_store_url, f"DELETE FROM {VERSION_TABLE}")  # noqa: S608
        with pytest.raises(WrongSchema, match="schema is gone"):
            store.check_schema()


def test_a_store_that_holds_more_than_its_version_says_is_refused(empty_store_url):
    Database.open(empty_store_url).close()
    execute(empty_store_url, f"DELETE FROM {VERSION_TABLE}")  # noqa: S608
    before = snapshot(empty_store_url)
    said = refusal(empty_store_url)
    assert "does not say which schema it has, but it holds more (" in said
    assert "restore a backup" in said
    assert snapshot(empty_store_url) == before


@both_databases
def test_a_migration_that_fails_leaves_nothing(empty_store_url):
    execute(empty_store_url, "CREATE TABLE trials (number INTEGER)")  # as Optuna's own storage has
    assert "trials" in refusal(empty_store_url)
    assert snapshot(empty_store_url) == {"trials": []}


@both_databases
def test_other_programs_migrations_are_left_alone(empty_store_url):
    execute(
        empty_store_url,
        "CREATE TABLE alembic_version (version_num VARCHAR(32))",
        "INSERT INTO alembic_version VALUES ('theirs')",
    )
    Database.open(empty_store_url).close()
    assert snapshot(empty_store_url)["alembic_version"] == [("theirs",)]


@both_databases
def test_a_store_that_may_only_be_read_is_refused(empty_store_url):
    Database.open(empty_store_url).close()
    url = make_url(empty_store_url)
    if url.get_backend_name() == "sqlite":
        url = url.set(database=f"file:{url.database}").update_query_dict({"mode": "ro", "uri": "1"})
    else:
        url = url.update_query_dict({"options": "-c default_transaction_read_only=on"})
    reason = refusal(url.render_as_string(hide_password=False))
    assert "readonly database" in reason or "read-only transaction" in reason


@pytest.fixture
def open_folder():
    """A folder that any account may enter; pytest's own is its user's alone."""
    folder = Path(tempfile.mkdtemp(prefix="tuner-store-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o700)
    shutil.rmtree(folder)


@pytest.fixture
def modes_hold():
    """File modes stop this process, even when it is root."""
    user = os.geteuid()
    os.seteuid(user or 65534)
    yield
    os.seteuid(user)


@pytest.fixture
def read_only_file(open_folder):
    file = open_folder / "tuner.db"
    Database.open(f"sqlite:///{file}").close()
    file.chmod(0o444)
    return file


@pytest.mark.usefixtures("modes_hold")
def test_a_read_only_file_is_refused_and_left_alone(read_only_file):
    before = read_only_file.read_bytes()
    assert str(read_only_file) in refusal(f"sqlite:///{read_only_file}")
    assert read_only_file.read_bytes() == before
    assert stat.S_IMODE(read_only_file.stat().st_mode) == 0o444
