"""Which jobs have their kernels compiled before they get a GPU, and by whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.jobs.job import COMPILE, Job, JobRequest
from tuner.jobs.workers import SHARED_CACHE, Need, WorkerStatus


def compile_request(request: JobRequest) -> JobRequest:
    """The work that any CPU worker can do for a job that measures."""
    return replace(request, measure=COMPILE)


def is_compiled_ahead(request: JobRequest, workers: Sequence[WorkerStatus]) -> bool:
    """Whether a worker without a GPU will compile the job's kernels, and put them where a worker
    with its GPU looks for them.
    """
    if not request.needs_gpu:
        return False
    by_cpu = _caches(compile_request(request), workers, with_gpu=False)
    return bool(by_cpu & _caches(request, workers, with_gpu=True))


def waits_for(job: Job) -> str:
    """That a queued job waits for its compile work; "" where it does not."""
    return f"job {job.after_id} compiles its kernels first" if job.after_id else ""


def _caches(
    request: JobRequest, workers: Sequence[WorkerStatus], *, with_gpu: bool
) -> set[str | None]:
    """The shared caches of the workers that could do a job now."""
    able = [
        one.info
        for one in workers
        if one.takes_jobs and bool(one.info.gpu) == with_gpu and Need.of(request).met_by(one.info)
    ]
    return {info.packages.get(SHARED_CACHE) for info in able} - {None}
