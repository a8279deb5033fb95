"""The store: what was measured, and what was chosen, in SQLite or PostgreSQL.

Rows never leave this package: callers hand in and get back the dataclasses of
`tuner.results` and `tuner.store.records`.
"""

from tuner.problems.records import RunKey, RunState, Winner
from tuner.store.connect import database_url
from tuner.store.jobs import JobStore
from tuner.store.leases import LeasedStore, Leases
from tuner.store.nights import NightStore
from tuner.store.store import Store

__all__ = [
    "JobStore",
    "LeasedStore",
    "Leases",
    "NightStore",
    "RunKey",
    "RunState",
    "Store",
    "Winner",
    "database_url",
]
