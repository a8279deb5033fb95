"""The store: what was measured, and what was chosen, in SQLite or PostgreSQL.

Rows never leave this package. Callers pass in and get back dataclasses of `tuner.problems` and
`tuner.jobs`.
"""

from tuner.problems.results import RunKey, RunState, Winner
from tuner.store.connect import database_url
from tuner.store.jobs import JobStore
from tuner.store.leases import Leases
from tuner.store.nights import NightStore
from tuner.store.served_proofs import ServedProofStore, StoredProof
from tuner.store.store import LeasedStore, Store

__all__ = [
    "JobStore",
    "LeasedStore",
    "Leases",
    "NightStore",
    "RunKey",
    "RunState",
    "ServedProofStore",
    "Store",
    "StoredProof",
    "Winner",
    "database_url",
]
