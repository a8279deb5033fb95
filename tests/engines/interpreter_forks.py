"""Imports torch and Triton's interpreter once, and runs each program that it is told in a fork.

Programs of few small kernels would spend most of their time with these imports. It reads a line of
JSON for each program (its path, arguments, variables, and the folder of its standard streams), and
writes the exit status. It ends with its stdin.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import torch._dynamo
import triton.language
import triton.runtime.interpreter  # noqa: F401


def run(job: dict[str, Any]) -> None:
    """Run a program in this process, as `python PROGRAM WORDS` would."""
    for number, name in enumerate(("in", "out", "err")):
        os.dup2(os.open(Path(job["folder"], name), os.O_RDWR | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(job["environ"])
    program = job["program"]
    places = filter(None, job["environ"].get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [str(Path(program).parent), *places]
    sys.argv = [program, *job["words"]]
    runpy.run_path(program, run_name="__main__")


def end_with(job: dict[str, Any]) -> None:
    """Run a program, and end this process as Python would have ended that."""
    status = 1
    try:
        run(job)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    assert torch._dynamo  # what engines' decorators import
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            end_with(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
