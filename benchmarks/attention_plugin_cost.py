"""What the attention plugin adds to a launch, on the CPU: its hook around kernels that do nothing.

The kernels and the arguments of the launches are those of a real sglang, and the tensors are
torch's. What a launch itself costs (Triton's own work, tens of microseconds) is left out. Times
are of the thread's CPU, the best of many short rounds in turn, for other processes may be at work.

Run from the repository's root:
    .venv/bin/python benchmarks/attention_plugin_cost.py --json benchmarks/results/FILE
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import timeit
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import thread_time as clock
from typing import Any

import torch

from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.engines.sglang.attention.binding import SGLangAttentionKernels, lift_attention
from tuner.engines.sglang.plugin.files import AttentionEntry, AttentionFile
from tuner.engines.sglang.plugin.kernels import KERNELS, KernelSignature
from tuner.engines.sglang.plugin.launches import TunedLaunches, longest, note_longest, stand_in
from tuner.families.attention.problem import Attention, Stage
from tuner.kernels.launcher import TensorSpec
from tuner.kernels.lift import load_lifted
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import Status

TARGET = cuda_target(9, 0)
POINTS = {
    "extend 16/1 576/512": (
        "extend_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16",
        Point(4, Stage.EXTEND, 256, 4096),
    ),
    "decode 16/1 576/512, stage 1": (
        "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16,kv_splits=256",
        Point(64, Stage.DECODE, 1, 4096),
    ),
    "decode 16/1 576/512, stage 2": (
        "decode_attention:q_heads=16,kv_heads=1,Lq=576,Lv=512,dtype=bfloat16,kv_splits=256",
        Point(64, Stage.REDUCE, 1, 4096),
    ),
}
CALLS, ROUNDS = 500, 300


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="sglang==0.5.16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    engine = find_engine(options.engine)
    kernels = lift_attention(engine)
    rows = {name: measure(kernels, *point) for name, point in POINTS.items()}
    rows["extend_attention_fwd"] = measure_launcher(engine.root)
    for name, row in rows.items():
        print(f"{name}: " + ", ".join(f"{what} {us:.2f} us" for what, us in row.items()))
    report = {
        "engine": engine.version,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "calls": CALLS,
        "rounds": ROUNDS,
        "microseconds_a_launch": rows,
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def measure(kernels: SGLangAttentionKernels, spec: str, point: Point) -> dict[str, float]:
    problem = parse_problem(spec)
    assert isinstance(problem, Attention)
    launch = kernels.launch(problem, point, TARGET)
    with tempfile.TemporaryDirectory() as folder:
        module = load_lifted(kernels.lifted(problem.phase).write(Path(folder)))
    jitted = getattr(module, launch.kernel)
    parameters = kernels.lifted(problem.phase).parameters(launch.kernel)
    # As the launchers do: all that is no constant by position, the rest by name.
    leading = next(i for i, p in enumerate(parameters) if p.constexpr)
    values = {name: _real(value) for name, value in launch.arguments.items()}
    args = [values.pop(p.name) for p in parameters[:leading]]
    kwargs = {**values, **launch.options}

    given: deque[int] = deque(maxlen=1)

    def nothing(*args: object, grid: object, warmup: bool, **kwargs: int) -> None:
        given.append(kwargs["num_warps"])

    longest.tokens = point.new_tokens if point.part is Stage.EXTEND else 0

    jitted.run = nothing

    def hooked(files: list[AttentionFile]) -> type:
        launches = TunedLaunches(_kernel(point, launch.kernel), jitted)
        launches.use(files)
        return stand_in(launches)

    config = kernels.default_config(problem, point, TARGET).replace(num_warps=2)
    objects = {
        "bare": jitted,
        "tuned": hooked([_file(problem, point, config)]),
        "untouched": hooked([]),
    }
    best = dict.fromkeys(objects, float("inf"))
    for _ in range(ROUNDS):
        for name, kernel in objects.items():
            timer = timeit.Timer(partial(_launch, kernel, launch.grid, args, kwargs), timer=clock)
            best[name] = min(best[name], timer.timeit(CALLS) / CALLS * 1e6)
    assert given[-1] == kwargs["num_warps"], "what no file is for was changed"
    _launch(objects["tuned"], launch.grid, args, kwargs)
    assert given[-1] == 2, "the launch was not tuned"
    return {
        "without the plugin": best["bare"],
        "adds, tuned": best["tuned"] - best["bare"],
        "adds, untouched": best["untouched"] - best["bare"],
    }


def measure_launcher(root: Path) -> dict[str, float]:
    """The hook around the engine's `extend_attention_fwd`, wrapped by the engine's registry."""
    spec = importlib.util.spec_from_file_location("hooks", root / "srt/plugins/hook_registry.py")
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)

    def extend_attention_fwd(*args: object, max_len_extend: int, **kwargs: object) -> None:
        pass

    hook = note_longest(extend_attention_fwd, "max_len_extend")
    hooked = hooks._wrap_fn(extend_attention_fwd, hook, hooks.HookType.AROUND)
    # As the backend calls it: sixteen arguments by position, seven by name.
    call = {"args": [0] * 15, "kwargs": dict.fromkeys("abcdef", 0) | {"max_len_extend": 512}}
    best = dict.fromkeys((extend_attention_fwd, hooked), float("inf"))
    for _ in range(ROUNDS):
        for function in best:
            timer = timeit.Timer(partial(_call, function, **call), timer=clock)
            best[function] = min(best[function], timer.timeit(CALLS) / CALLS * 1e6)
    bare = best[extend_attention_fwd]
    return {"without the plugin": bare, "adds": best[hooked] - bare}


def _call(function: Callable[..., object], args: list[Any], kwargs: dict[str, Any]) -> None:
    function(*args, **kwargs)


def _launch(
    kernel: Mapping[object, Callable[..., object]],
    grid: tuple[int, ...],
    args: list[Any],
    kwargs: dict[str, Any],
) -> None:
    kernel[grid](*args, **kwargs)


def _kernel(point: Point, name: str) -> KernelSignature:
    return next(k for k in KERNELS if (k.stage, k.name) == (point.part, name))


def _real(value: object) -> object:
    return torch.empty(16, dtype=torch.bfloat16) if isinstance(value, TensorSpec) else value


def _file(problem: Attention, point: Point, config: Config) -> AttentionFile:
    assert isinstance(point.part, Stage)
    entry = AttentionEntry(point.part, point.batch_size, point.new_tokens, config, Status.OK)
    return AttentionFile(problem, "any", "sglang", "any", "any", "any", (entry,), {})


if __name__ == "__main__":
    main()
