"""Speaks `tuner.measure.gpu_child`'s protocol without a GPU: a config says what becomes of it.

`US` is its time in microseconds; `ACT` is one of the ways to fail below, or absent. With `ONCE`,
the number of a file in the folder that ONCE names, it fails only if it can make that file.
"""

import json
import os
import signal
import sys
from pathlib import Path

from tuner.measure.messages import read_point

CRASH, DIE, HANG, OUT_OF_MEMORY, WRONG, BAD_INPUT, RAISE = 1, 2, 3, 4, 5, 6, 7
ENDS = {CRASH: "crashed", OUT_OF_MEMORY: "out_of_memory", BAD_INPUT: "bad_input"}
READY = {
    "device": "NVIDIA_FAKE",
    "torch": "2",
    "triton": "3",
    "cuda": "13",
    "driver": "1",
    "free_bytes": 1000,
    "needed_bytes": 10,
    "backends": {"deep_gemm": "sgl-deep-gemm 0.1.0"},
    "packages": "sgl-deep-gemm 0.1.0",
}
# What becomes of a backend, which has no config.
BACKENDS = {"deep_gemm": {"US": 4}, "fa3": {"US": 9, "ACT": DIE}}


def say(**values: object) -> None:
    sys.stdout.write(json.dumps({"seconds": 0.001, **values}) + "\n")
    sys.stdout.flush()


def measurement(status: str, config: dict[str, int], request: dict) -> dict[str, object]:
    ok = status == "ok"
    return {
        "status": status,
        "median_us": config["US"] if ok else None,
        "min_us": config["US"] if ok else None,
        "samples": request.get("rounds", 3) if ok else 0,
        "detail": f"{os.getpid()} {read_point(request)}",
    }


def act(config: dict[str, int]) -> str:
    """The status to answer with, if there is an answer."""
    what = config.get("ACT")
    if "ONCE" in config:
        try:
            Path(os.environ["ONCE"], str(config["ONCE"])).touch(exist_ok=False)
        except FileExistsError:
            what = None
    if what == DIE:
        os._exit(7)
    if what == HANG:
        signal.pause()
    if what in ENDS:
        say(status=ENDS[what], detail="as asked")
        os._exit(3)
    return "wrong_result" if what == WRONG else "ok"


def asked(request: dict) -> list[dict[str, int]]:
    if request["op"] == "measure":
        return [BACKENDS.get(request["backend"], request["config"])]
    return request["configs"] + [BACKENDS[name] for name in request["backends"]]


def main() -> None:
    say(imported=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "setup":
            say(**READY | request["answer"])
        elif RAISE in [one.get("ACT") for one in asked(request)]:
            say(error="IndexError: list index out of range")
        elif request["op"] == "measure":
            (config,) = asked(request)
            say(**measurement(act(config), config, request))
        else:
            say(measurements=[measurement(act(c), c, request) for c in asked(request)])


if __name__ == "__main__":
    main()
