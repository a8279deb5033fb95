"""Does compile work: a job that compiles what another one will ask its GPU's host for."""

from __future__ import annotations

import time

from tuner.measure.workbench import Workbench
from tuner.store.ahead import AheadStore
from tuner.tuning.ahead import Ahead
from tuner.tuning.run import TuningRun

STORE_EVERY_S = 2.0  # progress is stored so often at most


def compile_for_others(run: TuningRun, store: AheadStore) -> None:
    """Compile what the run would, put it into the shared cache, and end the job."""
    store.begin()
    stored = Ahead(0, enough=False)
    stored_at = time.monotonic()

    def report(now: Ahead) -> None:
        nonlocal stored, stored_at
        due = time.monotonic() - stored_at >= STORE_EVERY_S
        if due or now.enough != stored.enough:
            store.add(now.tried, enough=now.enough)
            stored, stored_at = now, time.monotonic()

    with Workbench(publish=True) as workbench:
        run.share(workbench)
        totals = run.ahead(report)
    store.finish(totals)
