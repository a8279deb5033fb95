"""Which environments have new winners since somebody last looked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select

from tuner.store.database import utc_now
from tuner.store.tables import environments, winners

# Winners have the time of the host that published them. Its clock may be so far behind.
CLOCKS_APART = timedelta(minutes=10)
_Recent = Mapping[int, tuple[int, datetime | None]]


@dataclass(frozen=True)
class SeenSoFar:
    """What was published lately, by environment: the number of winners, and the newest one's time.

    Both are needed: a winner that replaces another one leaves the number as it is.
    """

    since: datetime
    recent: _Recent

    def changed(self, connection: Connection) -> list[int]:
        """The ids of the environments that have new winners."""
        now = _recent(connection, self.since)
        return [one for one, recent in now.items() if self.recent.get(one) != recent]


def seen_now(connection: Connection) -> SeenSoFar:
    """What is there now. Winners that are read after this call are seen, or will be new again."""
    since = utc_now() - CLOCKS_APART
    return SeenSoFar(since, _recent(connection, since))


def _recent(connection: Connection, since: datetime) -> _Recent:
    """An index has all of this. To count all winners takes 40 ms if there are half a million."""
    fresh = (winners.c.environment_id == environments.c.id) & (winners.c.published_at >= since)
    number, newest = (
        select(one).select_from(winners).where(fresh).scalar_subquery()
        for one in (func.count(), func.max(winners.c.published_at))
    )
    rows = connection.execute(select(environments.c.id, number, newest))
    return {row[0]: (row[1], row[2]) for row in rows}
