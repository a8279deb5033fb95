"""Dense GEMMs through sglang's own function, without and with the plugin, on one GPU.

    python benchmarks/gemm_plugin.py ROOT OUT.json TUNED.json

ROOT is what `tuner export` wrote, and TUNED.json what `gemm_gpu.py tune` wrote about the same
winners. Each size's inputs go to the engine's own function: once with the file or default that the
engine has, and once more after the plugin hooked its loader. Both are CUDA graphs that are replayed
in turn. Prints the gain of each shape beside the tuner's own. sglang must be importable.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tuner.engines.sglang.plugin.gemm import hook_loaders
from tuner.engines.sglang.plugin.gemm_loaders import FP8_BLOCKS, PACKAGES
from tuner.engines.sglang.plugin.hooks import hook_registry
from tuner.families.dense_gemm.batch import Batch, Batches
from tuner.families.dense_gemm.inputs import OUTPUT_TYPES
from tuner.families.dense_gemm.problem import DenseGemm, parse_dense_gemm
from tuner.measure.gpu import INPUT_SEED
from tuner.measure.timing import LAUNCHES, Captured, replay

ROUNDS = 31

Call = Callable[..., torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("tuned", type=Path)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    module = engine_module()
    call: Call = next(
        getattr(module, name) for name in FP8_BLOCKS.launchers if hasattr(module, name)
    )
    plain = getattr(module, FP8_BLOCKS.function)
    hook_loaders(args.root)
    hook_registry().HookRegistry.apply_hooks()
    hooked = getattr(module, FP8_BLOCKS.function)
    assert hooked is not plain, "nothing is hooked"
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "shapes": []}
    for shape in json.loads(args.tuned.read_text())["shapes"]:
        problem = parse_dense_gemm(shape["problem"])

        def loading(loader: object, call: Call = call) -> Call:
            def with_loader(*arguments: object) -> torch.Tensor:
                setattr(module, FP8_BLOCKS.function, loader)
                return call(*arguments)

            return with_loader

        rows = list(compared(problem, shape["sizes"], loading(plain), loading(hooked)))
        found["shapes"].append({"problem": shape["problem"], "sizes": rows})
        gains = [geomean([row[name] for row in rows]) for name in ("plugin", "tuner")]
        print(f"{shape['problem']}: plugin {gains[0]:.3f}x, tuner {gains[1]:.3f}x", flush=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    rows = [row for shape in found["shapes"] for row in shape["sizes"]]
    found["plugin"], found["tuner"] = (
        geomean([r[name] for r in rows]) for name in ("plugin", "tuner")
    )
    found["worst error"] = max(row["difference"] for row in rows)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print({name: found[name] for name in ("plugin", "tuner", "worst error")})


def engine_module() -> Any:  # noqa: ANN401  # the engine's
    """The module that defines the engine's loader and launcher."""
    for package in PACKAGES:
        with contextlib.suppress(ModuleNotFoundError):
            module = importlib.import_module(f"{package}.{FP8_BLOCKS.module}")
            if hasattr(module, FP8_BLOCKS.function):
                return module
    raise SystemExit("sglang's fp8 kernels cannot be imported")


def compared(problem: DenseGemm, sizes: list[dict[str, Any]], plain: Call, tuned: Call) -> Any:  # noqa: ANN401
    """The gains at each size: through the engine's function, and as the tuner measured them."""
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    batches = Batches(problem, INPUT_SEED, l2_bytes)
    for size in sizes:
        batch = batches.at(size["M"])
        graphs = [graph(problem, batch, call) for call in (plain, tuned)]
        samples: list[list[float]] = [[], []]
        for turn in range(ROUNDS):
            for at in (0, 1) if turn % 2 else (1, 0):
                batches.push_out()
                samples[at].append(replay(graphs[at])[0])
        plain_us, tuned_us = map(statistics.median, samples)
        us = size["us"]
        yield {
            "M": size["M"],
            "engine_us": plain_us,
            "plugin_us": tuned_us,
            "plugin": plain_us / tuned_us,
            "tuner": us.get("shipped", us["default"]) / us["tuned"],
            "difference": difference(problem, batch, plain, tuned),
        }


def graph(problem: DenseGemm, batch: Batch, call: Call) -> Captured:
    launch(problem, batch, call, 0)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for at in range(LAUNCHES):
            launch(problem, batch, call, at)
    return Captured(captured, [batch] * LAUNCHES)


def launch(problem: DenseGemm, batch: Batch, call: Call, at: int) -> torch.Tensor:
    a, b = batch.activations[at], batch.weights[at % len(batch.weights)]
    block = list(problem.block or ())
    return call(a.values, b.values, a.scale, b.scale, block, OUTPUT_TYPES[problem.out])


def difference(problem: DenseGemm, batch: Batch, plain: Call, tuned: Call) -> float:
    """The largest difference of the outputs, in units of their root mean square."""
    first, second = (launch(problem, batch, call, 0).float() for call in (plain, tuned))
    return float((first - second).abs().max() / first.square().mean().sqrt())


def geomean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


if __name__ == "__main__":
    main()
