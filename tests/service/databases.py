"""On which databases a test with a store runs.

`make test` runs it on SQLite, and `make test-all` on PostgreSQL too. Where the statements differ,
or what the databases make of them, the test asks for both each time.
"""

import pytest

both_databases = pytest.mark.parametrize("database", ["sqlite", "postgresql"])
