"""One start of an engine's own code for the chunked scan, beside stand-ins for the rest of it.

    TUNER_SCAN_CONFIG_DIR=DIR TRITON_CACHE_DIR=NEW \
        python benchmarks/scan_starts.py sglang==0.5.23 own|tuned [PROBLEM [PROMPTS]]

`own`: the engine chooses by itself, at a first prompt of one chunk. `tuned`: its plugin reads DIR.
Prints one JSON object, with what each kernel was launched with at each size. Two starts at once are
two ranks. PROBLEM is of any family of chunked scans; without one, it is that of Nemotron 3 Nano.
PROMPTS: sequences x tokens, e.g. 1x8192,8x2048; without them, six sizes.
"""

# ruff: noqa: ANN401
from __future__ import annotations

import argparse
import contextlib
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
from torch.nn.functional import normalize
from triton.language.extra import libdevice

from tuner.bindings.sglang.plugin.scan import hook_scans as hook_sglang
from tuner.bindings.vllm.plugin.scan import hook_scans as hook_vllm
from tuner.engines.engine import find_engine
from tuner.families.scans.scan import ScanProblem, scan_named
from tuner.measure.timing import Reference
from tuner.problems.points import Point

NANO = "chunk_scan:heads=64,head_dim=64,groups=8,state_size=128,chunk_size=128"
POINTS = ((1, 8192), (1, 1024), (1, 4096), (1, 32768), (8, 2048), (4, 8192))
# The folder of the kernels, and the module that runs them all.
MODULES = {
    ("sglang", "chunk_scan"): ("kernels/ops/mamba/triton_ops", "ssd_combined"),
    ("sglang", "gated_delta"): ("kernels/ops/attention/fla", "chunk"),
    ("vllm", "chunk_scan"): ("model_executor/layers/mamba/ops", "ssd_combined"),
    ("vllm", "gated_delta"): ("third_party/flash_linear_attention/ops", "chunk"),
}


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


def stand_in(engine: str, version: str, family: str) -> str:
    """Put an engine's packages there without running their code. Returns the kernels' module."""
    parts, last = MODULES[engine, family]
    root = find_engine(f"{engine}=={version}").root
    package("einops", rearrange=rearrange)
    package(engine, root, __version__=version)
    name, folder = engine, root
    for part in parts.split("/"):
        name, folder = f"{name}.{part}", folder / part
        package(name, folder)
    (stand_in_sglang if engine == "sglang" else stand_in_vllm)(name, root, family)
    return f"{name}.{last}"


def stand_in_sglang(name: str, root: Path, family: str) -> None:
    """What sglang's kernels import of the rest of it. `name`: their package."""
    if family != "chunk_scan":
        for part in ("sglang.srt", "sglang.srt.utils"):
            package(part, root)
        release = tuple(int(n) for n in torch.__version__.split(".")[:2])
        package("sglang.srt.utils.common", torch_release=release)
        package(f"{name}.fused_norm_gate", layer_norm_gated_fwd=None)  # runs after the scan
        return
    package(f"{name}.mamba_ssm", softplus=softplus)
    for part in ("attention", "attention.fla"):
        package(f"sglang.kernels.ops.{part}", root)
    package("sglang.kernels.ops.attention.fla.utils", autotune_cache_kwargs={})


def stand_in_vllm(name: str, root: Path, family: str) -> None:
    """What vLLM's kernels import of the rest of it. `name`: their package."""
    major, minor = torch.cuda.get_device_capability()
    platform = {"is_cuda": lambda: True, "is_cpu": lambda: False, "is_rocm": lambda: False}
    platform |= {"is_cuda_alike": lambda: True, "is_xpu": lambda: False}
    platform["is_device_capability"] = (major * 10 + minor).__eq__
    platform["has_device_capability"] = (major * 10 + minor).__ge__
    package("vllm.triton_utils", tl=tl, triton=triton, tldevice=libdevice)
    package("vllm.platforms", current_platform=SimpleNamespace(**platform))
    if family == "chunk_scan":
        package(f"{name}.mamba_ssm", softplus=softplus)
        return
    package("vllm.third_party", root / "third_party")
    package("vllm.third_party.flash_linear_attention", root / "third_party/flash_linear_attention")
    fla = "third_party/flash_linear_attention/ops"
    package(f"vllm.{fla.replace('/', '.')}", root / fla)
    package("vllm.utils", root / "utils")
    package("vllm.utils.gpu_sync_debug", gpu_sync_allowed=contextlib.nullcontext)
    package("vllm.utils.torch_utils", async_tensor_h2d=Tensor.to)


def delta_call(
    combined: Any, problem: Any, given: dict[str, Tensor], about: dict[str, Tensor]
) -> Callable[[], Tensor]:
    """The call of a gated delta net's layer, whose states begin as zeros. Returns the output."""
    batched = {n: t[None] for n, t in given.items()}
    if problem.chain == "split":  # vLLM's layer gives q and k their length, and the chunks
        for n in ("q", "k"):
            batched[n] = normalize(batched[n].float(), dim=-1).to(batched[n].dtype)
        chunks = {n: about[n] for n in ("chunk_indices", "chunk_offsets")}
        more = {"initial_state": about["initial"], "output_final_state": True, **chunks}
        more["cu_seqlens"] = about["sequence_ends"]
        return lambda: combined.chunk_gated_delta_rule(**batched, **more)[0][0]
    shape = len(about["slots"]), problem.value_heads, problem.value_dim, problem.key_dim
    pool = torch.zeros(shape, device="cuda")
    batched |= {"initial_state": pool, "initial_state_indices": about["slots"]}
    more = {"cu_seqlens": about["sequence_ends"], "use_qk_l2norm_in_kernel": True}
    return lambda: combined.chunk_gated_delta_rule(**batched, **more)[0][0]


def scan_call(
    engine: str, combined: Any, problem: Any, point: Point
) -> tuple[Any, Callable[[], Tensor]]:
    """A prompt, and the call that a layer makes, which returns its output."""
    inputs = scan_named(problem.family).inputs
    prompt = inputs.make_prompt(problem, point, device="cuda", seed=7)
    given, about = inputs.views(problem, prompt), inputs.layout(problem, point, "cuda")
    if problem.family == "gated_delta":
        return prompt, delta_call(combined, problem, given, about)
    out = torch.full_like(given["x"], torch.nan, memory_format=torch.contiguous_format)
    tensors = {**given, "out": out}
    alike = {"chunk_size": problem.chunk_size, "cu_seqlens": about["sequence_ends"]}
    alike |= {"dt_softplus": True, "state_dtype": torch.float32}
    if engine == "sglang":
        batched = {n: t if t.dim() == 1 else t[None] for n, t in tensors.items()}
        batched["seq_idx"] = about["token_sequence"][None]
        wanted = {"return_varlen_states": True, "return_intermediate_states": True}
        call = combined.mamba_chunk_scan_combined
        return prompt, lambda: (call(**batched, **alike, **wanted), out)[1]
    shape = (point.batch_size, problem.heads, problem.head_dim, problem.state_size)
    tensors |= {"final_states_out": torch.empty(shape, device="cuda")}
    tensors |= {"final_state_indices": about["final_slots"], "seq_idx": about["chunk_sequence"]}
    tensors |= {"cu_chunk_seqlens": about["chunk_ends"], "last_chunk_indices": about["last_chunks"]}
    call = combined.mamba_chunk_scan_combined_varlen
    return prompt, lambda: (call(**tensors, **alike), out)[1]


def record_launches() -> dict[str, dict[str, object]]:
    """The constants that each kernel was last launched with. Launches fill it."""
    found: dict[str, dict[str, object]] = {}
    launch = triton.JITFunction.run

    def run(kernel: Any, *args: object, **given: Any) -> object:
        kept = (
            (n, v)
            for n, v in given.items()
            if n.startswith(("BLOCK_SIZE", "BD", "BH", "BK", "BS", "BV", "num_"))
        )
        found[kernel.__name__] = dict(kept)
        return launch(kernel, *args, **given)

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


def measure(engine: str, combined: object, problem: ScanProblem, point: Point) -> dict[str, Any]:
    """The first call at a size, a call and a CUDA graph of it, and the worst error."""
    _, call = scan_call(engine, combined, problem, point)
    first_s, eager_us = timed_s(call), median_us(call, 30)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph_us = median_us(graph.replay, 100)
    scan = problem.family == "chunk_scan"
    differs = {"passes_before": engine == "sglang"} if scan else {}
    inputs = scan_named(problem.family).inputs
    # As it was, from states of zeros.
    prompt, call = scan_call(engine, combined, problem, point)
    expected = inputs.reference(problem, point, prompt, **differs)
    found = {"graph_us": graph_us, "eager_us": eager_us, "first_s": first_s}
    found["error"] = Reference(expected["out"]).worst_error(call())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("engine", help="sglang==VERSION or vllm==VERSION")
    parser.add_argument("mode", choices=("own", "tuned"))
    parser.add_argument("problem", nargs="?", default=NANO)
    parser.add_argument("prompts", nargs="?", help="sequences x tokens, e.g. 1x8192,8x2048")
    options = parser.parse_args()
    spec, mode, text = options.engine, options.mode, options.problem
    engine, version = spec.split("==")
    problem = scan_named(text.partition(":")[0]).parse(text)
    sizes = POINTS
    if options.prompts:
        sizes = [tuple(map(int, one.split("x"))) for one in options.prompts.split(",")]
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.zeros(1, device="cuda")
    launched, kernels = record_launches(), stand_in(engine, version, problem.family)
    if mode == "tuned":
        hook = hook_sglang if engine == "sglang" else hook_vllm
        hook(Path(os.environ["TUNER_SCAN_CONFIG_DIR"]))
    combined = importlib.import_module(kernels)
    part = problem.parts[0]
    _, warm = scan_call(engine, combined, problem, Point(1, part, problem.chunk_size))
    found = {"engine": spec, "problem": problem.spec(), "mode": mode}
    found |= {"card": torch.cuda.get_device_name(), "torch": torch.__version__}
    found |= {"triton": triton.__version__, "first_call_s": timed_s(warm), "points": {}}
    for n, tokens in sizes:
        measured = measure(engine, combined, problem, Point(n, part, tokens))
        found["points"][f"{n}x{tokens}"] = {**measured, "choices": dict(launched)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
