"""Store measurements and choices in SQLite or PostgreSQL.

Rows never leave this package. Callers pass in and get back dataclasses of `tuner.problems` and
`tuner.jobs`. A `Database` is open; the classes of queries, each of a topic, take it.
"""
