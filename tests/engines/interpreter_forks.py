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
import triton.language as tl
from triton.runtime import interpreter


def leave_out_what_changes_nothing() -> None:
    """Have Triton's interpreter leave out work that takes half of its time.

    It patches a language at each call of a device function, such as `tl.max`; the first time in a
    launch is enough. And it computes whether each sum overflows, and then asks nobody.
    """
    options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter.interpreter_builder.options = options
    patch, launch, patched = interpreter._patch_lang, interpreter.GridExecutor.__call__, set()

    def patching(function: Any) -> object:
        used = {
            id(value) for value in function.__globals__.values() if value is tl or value is tl.core
        }
        if used <= patched:
            return None
        patched.update(used)
        return patch(function)

    def launching(*args: Any, **kwargs: Any) -> None:
        patched.clear()  # the end of the last launch undid its patches
        launch(*args, **kwargs)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patching, launching


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
    leave_out_what_changes_nothing()
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            end_with(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
