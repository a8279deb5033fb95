"""A store of 0.1.0 is upgraded, and keeps all rows.

The SQL in tests/data/stores is that of stores that 0.1.0 made, with rows in each table. No later
migration exists: so a test adds one, as its author would, and walks it.
"""

import shutil
import sqlite3
from pathlib import Path

import pytest
from databases import both_databases, superuser
from sqlalchemy import inspect, make_url, text

from tuner.errors import UnusableStore
from tuner.jobs.job import JobState
from tuner.store import database
from tuner.store.connect import connect
from tuner.store.database import HEAD, Database
from tuner.store.jobs import JobStore
from tuner.store.results import ResultStore
from tuner.store.tables import VERSION_TABLE, metadata

STORES = Path(__file__).parents[1] / "data" / "stores"
NEXT = f"{int(HEAD) + 1:04}"
# A new column, and another change of a table, which SQLite makes by copying and dropping the table;
# rows of other tables refer to its rows.
MIGRATION = f'''
import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{HEAD}"


def upgrade() -> None:
    op.add_column("winners", sa.Column("note", sa.Text(), server_default="", nullable=False))
    with op.batch_alter_table("jobs") as batch:
        batch.alter_column("error", existing_type=sa.Text(), nullable=True)
'''


@pytest.fixture
def url_of_0_1_0(empty_store_url):
    """A store as 0.1.0 left it."""
    url = make_url(empty_store_url)
    script = (STORES / f"0.1.0-{url.get_backend_name()}.sql").read_text()
    if url.get_backend_name() == "sqlite":
        Path(str(url.database)).parent.mkdir()
        with sqlite3.connect(str(url.database)) as connection:
            connection.executescript(script)
        connection.close()
    else:
        with superuser(empty_store_url) as connection:
            connection.execute(script.encode())
    return empty_store_url


@pytest.fixture
def next_migration(tmp_path, monkeypatch):
    """The program with one migration more."""
    folder = tmp_path / "migrations"
    shutil.copytree(database._MIGRATIONS, folder)
    (folder / "versions" / f"{NEXT}_next.py").write_text(MIGRATION)
    monkeypatch.setattr(database, "_MIGRATIONS", folder)
    monkeypatch.setattr(database, "HEAD", NEXT)
    monkeypatch.setattr(database, "_OLDER", (*database._OLDER, HEAD))


def rows_of(url: str) -> dict[str, list[dict[str, object]]]:
    """The rows of each table, in order."""
    engine = connect(url)
    found = {}
    with engine.connect() as connection:
        for name in (*metadata.tables, VERSION_TABLE):
            rows = connection.execute(text(f"SELECT * FROM {name}"))  # noqa: S608
            found[name] = [dict(row) for row in rows.mappings()]
    engine.dispose()
    return {name: sorted(rows, key=repr) for name, rows in found.items()}


@both_databases
def test_a_store_of_0_1_0_is_read(url_of_0_1_0):
    before = rows_of(url_of_0_1_0)
    assert all(before.values())
    with Database.open(url_of_0_1_0) as store:
        jobs = JobStore(store).list()
        (winner,) = ResultStore(store).winners(device="NVIDIA_L40S", engine="sglang")
    assert [job.state for job in jobs].count(JobState.DONE) == 1
    assert winner.entry.median_us == 10.0
    after = rows_of(url_of_0_1_0)
    assert {name: len(rows) for name, rows in after.items()} == {
        name: len(rows) for name, rows in before.items()
    }


@both_databases
@pytest.mark.usefixtures("next_migration")
def test_the_next_migration_keeps_all_rows(url_of_0_1_0):
    before = rows_of(url_of_0_1_0)
    Database.open(url_of_0_1_0).close()
    after = rows_of(url_of_0_1_0)
    assert after.pop(VERSION_TABLE) == [{"version_num": NEXT}]
    assert [row.pop("note") for row in after["winners"]] == [""]
    assert before.pop(VERSION_TABLE) == [{"version_num": HEAD}]
    assert after == before
    engine = connect(url_of_0_1_0)
    (error,) = (one for one in inspect(engine).get_columns("jobs") if one["name"] == "error")
    foreign = inspect(engine).get_foreign_keys("job_events")
    engine.dispose()
    assert error["nullable"] and [one["referred_table"] for one in foreign] == ["jobs"]


@pytest.mark.parametrize("database", ["sqlite"])
@pytest.mark.usefixtures("next_migration", "database")
def test_rows_that_refer_to_nothing_are_found_and_nothing_is_changed(url_of_0_1_0):
    with sqlite3.connect(str(make_url(url_of_0_1_0).database)) as connection:
        connection.execute("DELETE FROM runs")  # whoever does so by hand has no foreign keys
    connection.close()
    before = rows_of(url_of_0_1_0)
    with pytest.raises(UnusableStore, match="not upgraded: a row of .* refers to a row of runs"):
        Database.open(url_of_0_1_0)
    assert rows_of(url_of_0_1_0) == before
