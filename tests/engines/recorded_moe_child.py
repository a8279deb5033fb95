"""Speaks `tuner.measure.gpu_child`'s protocol without a GPU, and writes down what it is asked.

A line of the file that TOLD names is an operation and its point. A time depends on point and
configuration alone.
"""

import json
import os
import sys
import zlib
from pathlib import Path

from tuner.engines.engine import installed_triton
from tuner.measure.messages import read_point
from tuner.problems.points import Config

READY = {
    "device": "NVIDIA_H200",
    "torch": "2.11.0",
    "triton": installed_triton(),
    "cuda": "13.0",
    "driver": os.environ.get("DRIVER", "580.1"),
    "free_bytes": 1000,
    "needed_bytes": 10,
    "backends": {},
    "packages": "",
}


def measurement(request, config):
    text = f"{read_point(request)} {Config(config).key}"
    time_us = 50.0 + zlib.crc32(text.encode()) % 1000 / 10
    found = {"status": "ok", "median_us": time_us, "min_us": time_us}
    return {**found, "samples": 5, "detail": "worst error 0.001"}


def answer(request):
    if request["op"] == "setup":
        return READY
    with Path(os.environ["TOLD"]).open("a") as told:
        gpu = os.environ["CUDA_VISIBLE_DEVICES"]
        told.write(f"{request['op']} {read_point(request)} GPU {gpu}\n")
    if request["op"] == "measure":
        return measurement(request, request["config"])
    return {"measurements": [measurement(request, config) for config in request["configs"]]}


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main():
    say({"imported": True})
    for line in sys.stdin:
        say({**answer(json.loads(line)), "seconds": 0.001})


if __name__ == "__main__":
    main()
