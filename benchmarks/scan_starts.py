"""One start of an engine's own code for the chunked scan, beside stand-ins for the rest of it.

    TUNER_ENGINE_PATH=ENGINES TUNER_SCAN_CONFIG_DIR=DIR TRITON_CACHE_DIR=NEW \
        python benchmarks/scan_starts.py sglang==0.5.23 own|tuned

`own`: the engine chooses by itself, at a first prompt of one chunk. `tuned`: its plugin reads DIR.
Prints one JSON object, which has what each kernel was launched with at each size. Two of these at
once are two ranks. The sizes are those of Nemotron 3 Nano.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tuner.families.chunk_scan.inputs import layout, make_prompt, reference, views
from tuner.families.chunk_scan.problem import ScanKernel, parse_chunk_scan
from tuner.measure.timing import Reference
from tuner.problems.points import Point

PROBLEM = parse_chunk_scan("chunk_scan:heads=64,head_dim=64,groups=8,state_size=128,chunk_size=128")
POINTS = ((1, 8192), (1, 1024), (1, 4096), (1, 32768), (8, 2048), (4, 8192))
CHOSEN = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "BLOCK_SIZE", "BLOCK_SIZE_H")
FOLDERS = {"sglang": "kernels/ops/mamba/triton_ops", "vllm": "model_executor/layers/mamba/ops"}


@triton.jit
def softplus(dt):  # noqa: ANN001, ANN201  # a kernel
    return tl.where(dt <= 20.0, tl.math.log(tl.math.exp(dt) + 1), dt)


def rearrange(states: Tensor, pattern: str, n: int = 0) -> Tensor:
    """Join or part the last dimensions, as einops does for the two patterns of the engines."""
    joined = pattern == "... p n -> ... (p n)"
    return states.flatten(-2) if joined else states.unflatten(-1, (-1, n))


def package(name: str, path: Path | None = None, **names: object) -> None:
    """Put a module there, whose submodules lie in a folder."""
    module = ModuleType(name)
    if path is not None:
        module.__path__ = [str(path)]
    vars(module).update(names)
    sys.modules[name] = module
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, module)


def stand_in(engine: str, version: str) -> str:
    """Put an engine's packages there without running their code. Returns that of the kernels."""
    root = Path(os.environ["TUNER_ENGINE_PATH"], f"{engine}-{version}", engine)
    package("einops", rearrange=rearrange)
    package(engine, root, __version__=version)
    name, folder = engine, root
    for part in FOLDERS[engine].split("/"):
        name, folder = f"{name}.{part}", folder / part
        package(name, folder)
    package(f"{name}.mamba_ssm", softplus=softplus)
    if engine == "sglang":
        for part in ("attention", "attention.fla"):
            package(f"sglang.kernels.ops.{part}", root)
        package("sglang.kernels.ops.attention.fla.utils", autotune_cache_kwargs={})
        return name
    major, minor = torch.cuda.get_device_capability()
    platform = {"is_cuda": lambda: True, "is_cpu": lambda: False, "is_rocm": lambda: False}
    platform["is_device_capability"] = (major * 10 + minor).__eq__
    package("vllm.triton_utils", tl=tl, triton=triton)
    package("vllm.platforms", current_platform=SimpleNamespace(**platform))
    return name


def hook(engine: str) -> None:
    """Start the engine's plugin, as its servers do."""
    if engine == "vllm":
        importlib.import_module("tuner.engines.vllm.plugin").register()
    else:
        plugin = importlib.import_module("tuner.engines.sglang.plugin.scan")
        plugin.hook_scan(Path(os.environ["TUNER_SCAN_CONFIG_DIR"]))


def scan_call(engine: str, combined: Any, point: Point) -> tuple[Any, Tensor, Callable[[], Any]]:  # noqa: ANN401
    """A prompt, its output, and the call that a layer makes."""
    prompt = make_prompt(PROBLEM, point, device="cuda", seed=7)
    given, about = views(PROBLEM, prompt), layout(PROBLEM, point, "cuda")
    out = torch.empty_like(given["x"], memory_format=torch.contiguous_format)
    tensors = {**given, "A": prompt.A, "D": prompt.D, "dt_bias": prompt.dt_bias, "out": out}
    alike = {"chunk_size": PROBLEM.chunk_size, "cu_seqlens": about["sequence_ends"]}
    alike |= {"dt_softplus": True, "state_dtype": torch.float32}
    if engine == "sglang":
        batched = {n: t if t.dim() == 1 else t[None] for n, t in tensors.items()}
        batched["seq_idx"] = about["token_sequence"][None]
        wanted = {"return_varlen_states": True, "return_intermediate_states": True}
        call = combined.mamba_chunk_scan_combined
        return prompt, out, lambda: call(**batched, **alike, **wanted)
    shape = (point.batch_size, PROBLEM.heads, PROBLEM.head_dim, PROBLEM.state_size)
    tensors |= {"final_states_out": torch.empty(shape, device="cuda")}
    tensors |= {"final_state_indices": about["final_slots"], "seq_idx": about["chunk_sequence"]}
    tensors |= {"cu_chunk_seqlens": about["chunk_ends"], "last_chunk_indices": about["last_chunks"]}
    call = combined.mamba_chunk_scan_combined_varlen
    return prompt, out, lambda: call(**tensors, **alike)


def record_launches() -> dict[str, str]:
    """What each kernel was last launched with: blocks, warps and stages. Filled by launches."""
    found: dict[str, str] = {}
    launch = triton.JITFunction.run

    def run(kernel: Any, *args: object, **kwargs: Any) -> object:  # noqa: ANN401
        blocks = "x".join(str(kwargs[name]) for name in CHOSEN if name in kwargs)
        options = (kwargs.get(name) for name in ("num_warps", "num_stages"))
        found[kernel.__name__] = " ".join(map(str, (blocks, *options)))
        return launch(kernel, *args, **kwargs)

    triton.JITFunction.run = run
    return found


def timed_s(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def median_us(work: Callable[[], object], times: int) -> float:
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(times)]
    for begin, end in events:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) * 1e3 for begin, end in events)


def measure(
    engine: str, combined: object, point: Point, launched: dict[str, str]
) -> dict[str, Any]:
    """The first call at a size, a call and a CUDA graph of it, the worst error, and the choices."""
    prompt, out, call = scan_call(engine, combined, point)
    first_s, eager_us = timed_s(call), median_us(call, 30)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph_us = median_us(graph.replay, 100)
    expected = reference(PROBLEM, point, prompt, passes_before=engine == "sglang")["out"]
    out.fill_(float("nan"))
    call()
    error = Reference(expected).worst_error(out)
    times = {"graph_us": graph_us, "eager_us": eager_us, "first_s": first_s}
    return {**times, "error": error, "choices": dict(launched)}


def main() -> None:
    spec, mode = sys.argv[1:]
    engine, version = spec.split("==")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.zeros(1, device="cuda")
    package_of_kernels, launched = stand_in(engine, version), record_launches()
    if mode == "tuned":
        hook(engine)
    combined = importlib.import_module(f"{package_of_kernels}.ssd_combined")
    _, _, warm = scan_call(engine, combined, Point(1, ScanKernel.SCAN, PROBLEM.chunk_size))
    found = {"engine": spec, "mode": mode, "card": torch.cuda.get_device_name()}
    found |= {"torch": torch.__version__, "triton": triton.__version__}
    found["first_call_s"] = timed_s(warm)
    found["points"] = {
        f"{n}x{tokens}": measure(engine, combined, Point(n, ScanKernel.SCAN, tokens), launched)
        for n, tokens in POINTS
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
