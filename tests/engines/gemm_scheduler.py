"""Stands for a scheduler process of one sglang version, on the CPU, and runs dense GEMMs in it.

Real: sglang's plugin loader and hook registry, and its modules of GEMM kernels with their loaders
and launchers; Triton's interpreter runs the kernels. All else that these import is answered by
stand-ins, and the GPU has a name.

This is a separate program, because Triton decides on import whether to interpret:
TRITON_INTERPRET=1 python gemm_scheduler.py 0.5.16 OUT_FOLDER '{"device": ..., ...}'

It writes report.json (the launches of each call, the imported modules) and outputs.pt.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from pathlib import Path

import torch
from attention_scheduler import Recorder, Stubs
from real_gemm import _FOLDERS

from tuner.families.dense_gemm.problem import parse_dense_gemm
from tuner.problems.dtypes import Dtype

TILES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "SWAP_AB", "SPLIT_K")


def kernel_modules(version: str) -> tuple[str, str]:
    """The names of the modules with fp8's and int8's kernels."""
    place = f"sglang.{_FOLDERS[version].replace('/', '.')}"
    return f"{place}.fp8_kernel", f"{place}.int8_kernel"


def run(fp8, int8, spec: str, M: int) -> torch.Tensor:
    """A GEMM through the engine's own launcher."""
    problem = parse_dense_gemm(spec)
    torch.manual_seed(7)
    N, K = problem.N, problem.K
    n, k = problem.block
    kind = torch.int8 if problem.dtype is Dtype.INT8_W8A8 else torch.float8_e4m3fn
    a, b = (torch.randn(rows, K).mul(3).to(kind) for rows in (M, N))
    scales = torch.rand(M, -(-K // k)) + 0.5, torch.rand(-(-N // n), -(-K // k)) + 0.5
    int8_kind = problem.dtype is Dtype.INT8_W8A8
    launch = int8.w8a8_block_int8_matmul if int8_kind else fp8.w8a8_block_fp8_matmul_triton
    return launch(a, b, *scales, [n, k], output_dtype=torch.float16)


def main() -> None:
    version, out, settings = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    package = Path(sys.prefix, "share", "tuner", "engines", f"sglang-{version}", "sglang")
    names = kernel_modules(version)
    real = "sglang.srt.plugins", *names
    deterministic = settings.get("deterministic", False)
    sys.meta_path.insert(0, Stubs(package, version, real, deterministic=deterministic))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    torch.cuda.get_device_name = lambda *_: settings["device"].replace("_", " ")
    if settings.get("scheduler", True):
        importlib.import_module("sglang.srt.managers.scheduler")
        for name in names:  # the scheduler's module imports these
            importlib.import_module(name)
    importlib.import_module("sglang.srt.plugins").load_plugins()
    loaded = sorted(name for name in sys.modules if name.startswith("sglang"))
    report = {"loaded": loaded, "launches": {}}
    outputs = {}
    if settings.get("scheduler", True):
        fp8, int8 = (importlib.import_module(name) for name in names)
        for module in (fp8, int8):
            module.get_device_name = torch.cuda.get_device_name
        recorder = Recorder((*TILES,))
        for spec, M in settings["calls"]:
            call = f"{spec} M={M}"
            outputs[call] = run(fp8, int8, spec, M)
            report["launches"][call] = recorder.take()
        loader = fp8.get_w8a8_block_fp8_configs
        before = loader.cache_info().misses
        loader.cache_clear()
        report["cache"] = [before, loader.cache_info().misses]
        if asked := settings.get("channel"):
            found = getattr(fp8, "get_w8a8_channelwise_fp8_config", lambda *sizes: "absent")
            report["channel"] = found(*asked)
        if settings.get("compiling"):
            torch._dynamo.is_compiling = torch.compiler.is_compiling = lambda: True
            report["compiling"] = loader(*settings["compiling"])
    torch.save(outputs, out / "outputs.pt")
    (out / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
