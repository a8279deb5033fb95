"""Stands in for the process that tunes: it notes which GPUs it got, and ends when it is told to.

It writes its request and CUDA_VISIBLE_DEVICES to LANES/JOB.json, and reads its end from LANES/JOB.
"""

import json
import os
from pathlib import Path

from tuner.childprocess import ParentPipes

if __name__ == "__main__":
    parent, folder = ParentPipes(), Path(os.environ["LANES"])
    parent.send({"ready": True})
    while True:
        lease = parent.receive()
        seen = {"gpus": lease["gpus"], "visible": os.environ["CUDA_VISIBLE_DEVICES"]}
        scratch = folder / "scratch"
        scratch.write_text(json.dumps(seen))
        scratch.replace(folder / f"{lease['job_id']}.json")
        reason = (folder / lease["job_id"]).read_text()  # a FIFO: it waits until somebody writes
        parent.send({"outcome": "failed", "reason": reason})
