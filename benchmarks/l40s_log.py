"""Which launch needs the 102,400 bytes of the L40S log? sglang's extend kernel, by Triton.

Run from the repository's root, with other Tritons unpacked in folders (sglang 0.4.3.post2 and 0.4.4
pin torch 2.5.1, so Triton 3.1.0, and 0.5.2 pins torch 2.8.0, so 3.4.0):
    .venv/bin/pip install --no-deps --target /tmp/triton-3.1.0 triton==3.1.0
    .venv/bin/python benchmarks/l40s_log.py /tmp/triton-3.1.0 [FOLDER...]
Each Triton compiles the same lifted source for sm_89, in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner.devices.table import find_device
from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.engines.sglang.attention.binding import LAUNCHERS, launcher_source, lift_attention
from tuner.families.attention.engine import attention_engine
from tuner.families.attention.problem import Phase, Stage, parse_attention
from tuner.kernels.binding import Argument, Constant, Float, Integer, Pointer, bind
from tuner.kernels.launcher import Launcher, TensorSpec
from tuner.problems.points import Point

RESULT = Path("benchmarks/results/l40s_log.json")
PROGRAM = Path(__file__).with_name("l40s_log_compile.py")
TARGET = cuda_target(8, 9)
VERSIONS = ("0.4.3.post2", "0.4.4", "0.5.2")
SHAPES = {
    "DeepSeek, absorbed: 16/1 x 576:512": "q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16",
    "DeepSeek, absorbed, TP 32: 4/1 x 576:512": "q_heads=4,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16",
    "DeepSeek, TP 32: 4/4 x 192:128": "q_heads=4,kv_heads=4,Lq=192,Lv=128,dtype=bfloat16",
    "12/4 x 128": "q_heads=12,kv_heads=4,Lq=128,Lv=128,dtype=bfloat16",
}


def main() -> None:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "jobs.json")
        listed.write_text(
            json.dumps(
                [j for v in VERSIONS for p in (False, True) for j in jobs(v, Path(folder), p)]
            )
        )
        for place in ["", *sys.argv[1:]]:
            env = {**os.environ, "TRITON_CACHE_DIR": tempfile.mkdtemp(dir=folder)}
            if place:
                env["PYTHONPATH"] = place
            command = [sys.executable, str(PROGRAM), str(listed)]
            done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
            rows += json.loads(done.stdout.splitlines()[-1])
    for row in rows:
        print(row)
    RESULT.write_text(json.dumps(rows, indent=1) + "\n")


def jobs(version: str, folder: Path, patched: bool) -> Iterator[dict[str, Any]]:
    """What the engine's launcher launches, with and without a mask of the caller's.

    `patched`: with the patch of `tuner check --attention --write-patch`, where there is one.
    """
    engine = find_engine(f"sglang=={version}")
    remedy = attention_engine(engine).remedy(find_device("L40S"))
    if patched and remedy is None:
        return
    kernels = lift_attention(engine)
    lifted = kernels.lifted(Phase.EXTEND)
    _, function = LAUNCHERS[Phase.EXTEND]
    source = launcher_source(engine, Phase.EXTEND)
    if patched and remedy is not None:
        source = folder / f"patched-{version}.py"
        source.write_text(remedy.patched, encoding="utf-8")
    launcher = Launcher(source, engine.root, kernels.origin, TARGET)
    for name, fields in SHAPES.items():
        problem = parse_attention(f"extend_attention:{fields}")
        for masked in (False, True):
            given = kernels.arguments(problem, Point(19, Stage.EXTEND, 128, 1024), TARGET)
            if masked:
                given["custom_mask"] = TensorSpec("custom_mask", (1 << 20,), "i1")
                given["mask_indptr"] = TensorSpec("mask_indptr", (20,), "i64")
            (launch,) = launcher.run(function, given)
            known = {n: argument(value) for n, value in launch.arguments.items()}
            parameters = lifted.parameters(launch.kernel)
            bound = bind(kernels.origin, launch.kernel, parameters, known, launch.options)
            yield {
                "engine": version,
                "shape": name,
                "custom_mask": masked,
                "patched": patched,
                "blocks": [launch.arguments["BLOCK_M"], launch.arguments["BLOCK_N"]],
                "source": str(lifted.write(folder)),
                "variant": bound.variant().as_json(),
            }


def argument(value: object) -> Argument:
    if isinstance(value, TensorSpec):
        return Pointer(value.dtype, value.name)
    if isinstance(value, float):
        return Float(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return Integer(value)
    assert value is None or isinstance(value, bool)
    return Constant(value)


if __name__ == "__main__":
    main()
