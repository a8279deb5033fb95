"""Attention through the engine's own functions, without and with the plugin, on one GPU.

    python benchmarks/h200/attention_plugin.py ROOT OUT.json REPORTS.jsonl...

ROOT is what `tuner export` wrote; the reports (`tuner tune --json`, one a line) say at which
points. Each point's inputs go to sglang's own extend_attention_fwd or decode_attention_fwd: once
with the engine's constants, and, after the plugin is applied, once more. Both are CUDA graphs,
replayed in turn. sglang must be importable.
"""

from __future__ import annotations

import importlib
import inspect
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tuner.devices.target import cuda_target
from tuner.engines.engine import find_engine
from tuner.engines.sglang.attention.binding import LAUNCHERS, SGLangAttentionKernels, lift_attention
from tuner.engines.sglang.plugin.backend import apply_files
from tuner.families.attention.inputs import Inputs, make_inputs
from tuner.families.attention.lengths import ragged
from tuner.families.attention.problem import Attention, Phase, parse_attention
from tuner.kernels.launcher import TensorSpec as Outside
from tuner.measure.gpu import INPUT_SEED
from tuner.measure.timing import LAUNCHES, Captured, race
from tuner.problems.points import Point

ROUNDS = 15
MODULES = {Phase.EXTEND: "extend_attention", Phase.DECODE: "decode_attention"}
PACKAGES = ("sglang.kernels.ops.attention", "sglang.srt.layers.attention.triton_ops")
CALLS = 300


@dataclass
class Case:
    """One point's call of the engine's own function."""

    problem: Attention
    point: Point
    inputs: list[Inputs]
    arguments: Mapping[str, Any]  # what is not a tensor

    def call(self, function: Callable[..., object], copy: int) -> None:
        inputs = self.inputs[copy % len(self.inputs)]
        function(**{**self.arguments, **inputs.tensors})

    def graph(self, function: Callable[..., object]) -> Captured:
        self.call(function, 0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(LAUNCHES):
                self.call(function, i)
        return Captured(graph, [self] * LAUNCHES)

    def host_us(self, function: Callable[..., object]) -> float:
        """Microseconds that a call keeps the host, the GPU left to itself; the median."""
        times = []
        for _ in range(CALLS):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            self.call(function, 0)
            times.append(time.perf_counter() - begun)
        return statistics.median(times) * 1e6


def cases(kernels: SGLangAttentionKernels, paths: list[Path]) -> Iterator[Case]:
    target = cuda_target(9, 0)
    for path in paths:
        for line in path.read_text().splitlines():
            report = json.loads(line)
            problem = parse_attention(report["problem"])
            if problem.phase not in MODULES:
                continue
            sizes = {
                (e["batch_size"], e["new_tokens"], e["cached_tokens"]) for e in report["entries"]
            }
            for batch_size, new, cached in sorted(sizes):
                point = Point(batch_size, problem.parts[0], new, cached)
                given = kernels.arguments(problem, point, target)
                rest = {k: v for k, v in given.items() if not isinstance(v, Outside)}
                yield Case(problem, point, inputs_of(kernels, problem, point), rest)


def inputs_of(kernels: SGLangAttentionKernels, problem: Attention, point: Point) -> list[Inputs]:
    properties = torch.cuda.get_device_properties(0)
    lengths = ragged(problem, point, INPUT_SEED)
    first = make_inputs(
        kernels,
        problem,
        lengths,
        device="cuda",
        seed=INPUT_SEED,
        cores=properties.multi_processor_count,
    )
    read = sum(lengths.cached) * problem.kv_heads * problem.Lq * 2
    copies = 1 if not read or read > 2 * properties.L2_cache_size else LAUNCHES
    more = [torch.randn_like(first.tensors["k_buffer"]) for _ in range(copies - 1)]
    return [first, *(first.with_cache(cache) for cache in more)]


def engine_function(phase: Phase) -> Callable[..., object]:
    for package in PACKAGES:
        try:
            module = importlib.import_module(f"{package}.{MODULES[phase]}")
        except ModuleNotFoundError:
            continue
        function: Callable[..., object] = getattr(module, LAUNCHERS[phase][1])
        return function
    raise SystemExit("sglang's attention cannot be imported")


def main() -> None:
    root, out, *reports = map(Path, sys.argv[1:])
    kernels = lift_attention(find_engine("sglang"))
    found = list(cases(kernels, reports))
    plain = {phase: engine_function(phase) for phase in MODULES}
    before = [(c.graph(plain[c.problem.phase]), c.host_us(plain[c.problem.phase])) for c in found]
    outputs = []
    for case, (graph, _) in zip(found, before, strict=True):
        graph.graph.replay()
        outputs.append(case.inputs[(LAUNCHES - 1) % len(case.inputs)].output.clone())
    line = apply_files(root, None)
    print(line)
    tuned = {phase: engine_function(phase) for phase in MODULES}
    assert all(tuned[p] is not plain[p] or p is Phase.DECODE for p in MODULES), "nothing is hooked"
    rows = []
    for case, (graph, host_us), expected in zip(found, before, outputs, strict=True):
        function = tuned[case.problem.phase]
        assert inspect.isfunction(function)
        other = case.graph(function)
        samples = race([graph, other], ROUNDS)
        output = case.inputs[(LAUNCHES - 1) % len(case.inputs)].output
        difference = (output.float() - expected.float()).abs().max().item()
        scale = expected.float().square().mean().sqrt().item()
        own_us, with_us = (statistics.median(s) for s in samples)
        rows.append(
            {
                "problem": case.problem.spec(),
                "batch_size": case.point.batch_size,
                "new_tokens": case.point.new_tokens,
                "cached_tokens": case.point.cached_tokens,
                "engine_us": own_us,
                "plugin_us": with_us,
                "difference": difference / scale,
                "host_us": host_us,
                "host_plugin_us": case.host_us(function),
            }
        )
        print(rows[-1], flush=True)
    about = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "line": line}
    out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
