"""On which databases a test with a store runs.

`make test` runs it on SQLite, and `make test-all` on PostgreSQL too. Where the statements differ,
or what the databases make of them, the test asks for both each time.
"""

import psycopg
import pytest
from sqlalchemy import make_url

both_databases = pytest.mark.parametrize("database", ["sqlite", "postgresql"])


def superuser(url: str) -> psycopg.Connection[tuple[object, ...]]:
    """A connection to a PostgreSQL database that no limit of ours holds for."""
    plain = make_url(url).set(drivername="postgresql")
    return psycopg.connect(plain.render_as_string(hide_password=False), autocommit=True)
