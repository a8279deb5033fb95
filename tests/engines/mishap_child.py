"""Speaks `tuner.measure.gpu_child`'s protocol without a GPU, and fails as files say.

Times are those of `recorded_moe_child`. Of the folder that MISHAPS names, each request takes the
first file whose name begins with its operation ("race-1"), and suffers what the file says: for any
candidate ("killed"), or for one ("killed 8:BLOCK_SIZE_M=16,..."). A file whose name ends with
"always" stays there for the next request. Other backends are not installed.
"""

import os
import signal
from pathlib import Path

import recorded_moe_child as recorded

from tuner.problems.points import Config

WORDS = "AcceleratorError: CUDA error: unspecified launch failure"
OUT_OF_MEMORY = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def mishap(operation: str, candidate: str = "") -> str:
    """What befalls this request; empty if nothing does."""
    for path in sorted(Path(os.environ["MISHAPS"]).glob(f"{operation}-*")):
        what, _, only = path.read_text().partition(" ")
        if only not in ("", candidate):
            continue
        if not path.name.endswith("always"):
            path.unlink()
        return what
    return ""


def answer(request):
    if request.get("backend", "triton") != "triton":
        absent = {"status": "unsupported", "median_us": None, "min_us": None, "samples": 0}
        return {**absent, "detail": "not installed"}
    candidate = f"{request.get('batch_size')}:{Config(request.get('config', {})).key}"
    match mishap(request["op"], candidate):
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "device":
            return {"status": "crashed", "detail": WORDS}
        case "memory":
            return {"status": "out_of_memory", "detail": OUT_OF_MEMORY}
        case "error":
            return {"error": "IndexError: list index out of range"}
    return _recorded(request)


_recorded = recorded.answer

if __name__ == "__main__":
    recorded.answer = answer
    recorded.main()
