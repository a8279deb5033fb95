"""Check and time a backend's kernels, in calls of a library. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from tuner.backends.operands import Call, Unsupported
from tuner.backends.registry import Backend, find_backend, no_module
from tuner.measure.timing import Chain, LibraryCall, capture_chains, time_graph
from tuner.problems.results import Measurement, Status


def backend_of(name: str, family: str) -> Backend:
    """Return the backend of a name.

    Raises Unsupported if nothing here runs it for the family, or it is missing.
    """
    backend = find_backend(name)
    if backend is None or family not in backend.families:
        raise Unsupported(no_module(name, family))
    if backend.missing:
        raise Unsupported(backend.missing)
    return backend


def chains_of(calls: Sequence[Call]) -> list[Chain]:
    """Make a chain for each call."""
    return [[(LibraryCall(call), [])] for call in calls]


def measured(
    prepare: Callable[[], Sequence[Call]],
    error_of: Callable[[], float],
    bound: float,
    before: Callable[[], object] | None = None,
) -> Measurement:
    """Check a backend, then time it.

    `prepare` returns the calls of a graph; `error_of` checks the backend's output. A refusal by the
    backend is UNSUPPORTED. A CUDA error spoils the process and is raised.
    """
    try:
        error = error_of()
        if not error <= bound:
            detail = f"differs from the reference by {error:.3g}, bound {bound:.3g}"
            return Measurement(Status.WRONG_RESULT, detail=detail)
        timed = time_graph(capture_chains(chains_of(prepare())), None, before)
    except Unsupported as refusal:
        return Measurement(Status.UNSUPPORTED, detail=str(refusal))
    except Exception as failure:  # libraries refuse with errors of all kinds
        torch.cuda.synchronize()  # raises the device's error
        text = " ".join(str(failure).split())
        detail = f"{type(failure).__name__}: {text}"[:300]
        return Measurement(Status.UNSUPPORTED, detail=detail)
    return replace(timed, detail=f"worst error {error:.2g}")
