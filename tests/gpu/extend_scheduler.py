"""Stands for a scheduler process of one sglang version on a GPU, and times extend attention in it.

Real: the plugin, sglang's hook registry, its Triton attention backend, launcher and kernels, and
the GPU. All else is answered by the stand-ins of `attention_scheduler.py`:
python extend_scheduler.py 0.5.16 PACKAGE '{"q_heads": 16, ...}'

It prints one line of JSON: for each case the times and the constants with and without the files.
"""

from __future__ import annotations

import importlib
import json
import logging
import statistics
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))
from attention_scheduler import Stubs, build_backend

from tuner.bindings.sglang import plugin
from tuner.bindings.sglang.plugin import backend as hooks
from tuner.bindings.sglang.plugin.kernels import EXTEND

CONSTANTS = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")


def batch(shape: list[int], sequences: int, new: int, cached: int, on: str) -> tuple:
    """The arguments of the engine's launcher; the output is the fourth."""
    q_heads, kv_heads, Lq, Lv = shape
    like = {"dtype": torch.bfloat16, "device": on}
    rows, slots = sequences * new, max(1, sequences * cached)
    q, k = (torch.randn(rows, heads, Lq, **like) for heads in (q_heads, kv_heads))
    keys = torch.randn(slots, kv_heads, Lq, **like)
    latent = kv_heads == 1 and Lq > Lv
    v = k[..., :Lv] if latent else torch.randn(rows, kv_heads, Lv, **like)
    values = keys[..., :Lv] if latent else torch.randn(slots, kv_heads, Lv, **like)
    starts = torch.arange(sequences + 1, dtype=torch.int32, device=on)
    places = torch.randperm(slots, device=on)[: sequences * cached]
    output = torch.empty(rows, q_heads, Lv, **like)
    tensors = q, k, v, output, keys, values, starts * new, starts * cached, places
    return *tensors, None, True, None, new, 1.0, 1.0


def median_us(launch: Callable[[], object]) -> float:
    """The median of 15 launches, after 3 that do not count."""
    times = []
    for _ in range(18):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return statistics.median(times[3:])


def main() -> None:
    version, package, settings = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    on = settings["on"]
    sys.meta_path.insert(0, Stubs(package, version))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    importlib.import_module("sglang.srt.managers.scheduler")
    importlib.import_module("sglang.srt.utils").is_cuda = lambda *_: on == "cuda"
    if find_spec("sgl_kernel") is None:  # the backend asks it for one property of the GPU
        for name in ("sgl_kernel", "sgl_kernel.utils"):
            sys.modules[name] = ModuleType(name)
        sys.modules["sgl_kernel.utils"].is_arch_support_pdl = lambda: True  # as on Hopper
    plugin.register()
    importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry.apply_hooks()
    extend = build_backend(deterministic=False, kv_splits=8).extend_attention_fwd
    (launches,) = (one for one in hooks._state.kernels if one.kernel is EXTEND)
    run, noted = launches.jitted.run, []

    def noting(*args: object, warmup: bool, **kwargs: object) -> object:
        if not warmup:
            noted.append({name: kwargs[name] for name in CONSTANTS})
        return run(*args, warmup=warmup, **kwargs)

    launches.jitted.run = noting
    files = {"own": [], "tuned": hooks._state.files}
    report = {"files": len(hooks._state.files)}
    for name, (shape, *sizes) in settings["cases"].items():
        torch.manual_seed(58)
        given = batch(shape, *sizes, on)
        found: dict[str, list] = {"own": [], "tuned": []}
        outputs, constants = {}, {}
        for _ in range(settings["rounds"]):  # in turns, so that a clock harms both
            for which, used in files.items():
                launches.use(used)
                extend(*given)  # compiles
                outputs[which], constants[which] = given[3].clone(), noted[-1]
                if on == "cuda":
                    found[which].append(median_us(partial(extend, *given)))
        report[name] = {
            **{f"{which}_us": min(times, default=0.0) for which, times in found.items()},
            **constants,
            "difference": float((outputs["own"] - outputs["tuned"]).abs().max()),
        }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
