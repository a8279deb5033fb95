"""Make the jobs of a model: a job for each of its problems that is worth tuning."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from tuner.devices.table import Device
from tuner.errors import BadProblem
from tuner.export.plan import served_problems
from tuner.jobs.job import JobRequest, refuse_undoable
from tuner.problems.points import Problem
from tuner.problems.results import MeasureKind
from tuner.targets import LeftOut, TuningTarget


@dataclass(frozen=True)
class ModelJobs:
    """The jobs of a model, and its parts that are left out."""

    requests: Sequence[JobRequest]
    left_out: Sequence[LeftOut]  # problems, and families in words
    notes: Sequence[str] = ()  # sentences for the user


def model_jobs(
    targets: Sequence[TuningTarget],
    engine: tuple[str, str],
    device: Device,
    settings: Mapping[str, str],
    kind: MeasureKind,
    request_of: Callable[[TuningTarget, Problem], JobRequest],
    *,
    unread: bool = False,
    only: Collection[Problem] = (),
) -> ModelJobs:
    """Return a job for each problem that is to be tuned and that a worker can do.

    `engine`, `settings` and `unread` are passed to `served_problems`; with `only`, all other
    problems are skipped. A target that is one problem is not left out. Raises BadInput as
    `request_of` does, and for such a problem as `refuse_undoable` does.
    """
    target_of = {problem: target for target in targets for problem in target.problems}
    notes = [note for target in targets for note in target.notes]
    left_out = [note for note in notes if isinstance(note, LeftOut) and not only]
    requests = []
    served = served_problems(target_of, engine, device, settings, unread=unread, kind=kind)
    for one in [one for one in served if not only or one.problem in only]:
        target = target_of[one.problem]
        try:
            if one.left_out and target.is_model:
                raise BadProblem(one.left_out)
            request = request_of(target, one.problem)
            refuse_undoable(request)
        except BadProblem as error:
            if not target.is_model:
                raise
            left_out.append(LeftOut.of(one.problem.spec(), error))
        else:
            requests.append(request)
    return ModelJobs(requests, left_out, [one for one in notes if not isinstance(one, LeftOut)])
