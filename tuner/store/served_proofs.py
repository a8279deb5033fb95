"""Proofs in a live engine: what `tuner prove --server` found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from tuner.store.database import Queries, insert_into
from tuner.store.tables import served_proofs


@dataclass(frozen=True)
class StoredProof:
    """A stored proof; `report` is the JSON of `tuner prove --server --json`."""

    id: int
    model: str
    device: str
    engine: str
    engine_version: str
    files: str  # the hash of the tuned files
    proven: bool
    report: Mapping[str, Any]
    created_at: datetime


class ServedProofStore(Queries):
    """Stores proofs, each method in one transaction. Raises UnusableStore."""

    def add(self, report: Mapping[str, Any]) -> None:
        """Store a report."""
        names = ("model", "device", "engine", "engine_version", "files", "proven")
        row = {**{name: report[name] for name in names}, "report": dict(report)}
        with self._write() as connection:
            insert = insert_into(connection, served_proofs)
            connection.execute(insert, {**row, "created_at": self._now()})

    def proofs(
        self,
        *,
        after: int | None = None,
        limit: int = 50,
        device: str | None = None,
        model: str | None = None,
        engine: str | None = None,
        engine_version: str | None = None,
    ) -> Sequence[StoredProof]:
        """A page of proofs, the newest first; `after` is the id of the last page's last one."""
        wanted = {
            "device": device,
            "model": model,
            "engine": engine,
            "engine_version": engine_version,
        }
        query = select(served_proofs).order_by(served_proofs.c.id.desc()).limit(limit)
        for name, value in wanted.items():
            if value is not None:
                query = query.where(served_proofs.c[name] == value)
        if after is not None:
            query = query.where(served_proofs.c.id < after)
        with self._read() as connection:
            return [StoredProof(**row) for row in connection.execute(query).mappings()]
