"""What a program of the previous release does on a store that was upgraded under it.

`test_upgrade.py` runs it on that release's code. It claims a job, prints "claimed", waits for a
line, does the job, is refused another one and prints the job's id.
"""

from __future__ import annotations

import sys

import pytest
from store_writer import KEY, POINTS, PROBLEM, batch, say

from tuner.errors import NewerSchema
from tuner.jobs.job import JobFilter, JobRequest, JobState
from tuner.problems.results import Entry, Status, Totals
from tuner.store import JobStore, Leases


def main(url: str) -> None:
    with Leases.open(url) as leases:
        jobs = JobStore.sharing(leases)
        job = jobs.submit(JobRequest(PROBLEM, "L40S", measure="predict")).job
        lease = leases.claim([JobFilter(needs_gpu=False)], "previous")
        assert lease and lease.job_id == job.id
        say("claimed")
        sys.stdin.readline()
        store = leases.store(lease)
        run, trials = store.begin_run(KEY), batch(0)
        store.add_trials(run, trials)
        leases.heartbeat(lease)
        best = trials[0]
        entry = Entry(
            POINTS[0], best.candidate.config, Status.OK, 0.5, best.compiled, {}, "the fastest"
        )
        store.finish_run(run, [entry], Totals(measurements=len(trials)))
        assert jobs.get(job.id).state is JobState.DONE
        with pytest.raises(NewerSchema):  # it may not understand a newer program's jobs
            leases.claim([JobFilter(needs_gpu=False)], "previous")
        say(job.id)


if __name__ == "__main__":
    main(sys.argv[1])
