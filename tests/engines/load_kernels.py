"""Loads kernels as a GPU's process does, without a GPU, and says what Triton made of each.

`python load_kernels.py (load|compile)` reads JSON jobs from stdin. With `load`, it refuses to
compile.
"""

import hashlib
import json
import sys
from pathlib import Path

from triton.compiler import ASTSource

from tuner.compile.kernel import cache_files, compile_kernel
from tuner.devices.target import Target


def refuse(*_args, **_kwargs):
    raise AssertionError("this kernel is not in Triton's cache")


def described(job):
    kernel = compile_kernel(Path(job["source"]), job["variant"], Target(**job["target"]))
    return {
        "name": kernel.name,
        "hash": kernel.hash,
        "metadata": json.loads(json.dumps(kernel.metadata._asdict(), default=str)),
        "packed": str(kernel.packed_metadata),
        "signature": list(kernel.src.signature.items()),
        "constants": [[str(place), str(value)] for place, value in kernel.src.constants.items()],
        "binary": hashlib.sha256(kernel.kernel).hexdigest(),
        "files": sorted(Path(path).name for path in cache_files(kernel)),
    }


if sys.argv[1] == "load":
    ASTSource.make_ir = refuse
json.dump([described(job) for job in json.load(sys.stdin)], sys.stdout)
