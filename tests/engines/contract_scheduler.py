"""Runs each scenario of the plugins' contract in a process of one release, on the CPU.

Real: the plugin, the engine's hook registry, backend, launchers, loaders and kernels, all of which
are launched as in a server. Stand-ins: all else that these import, and Triton's last step: what
would be launched is noted instead.

This is a separate program, because it changes Triton:
python contract_scheduler.py sglang 0.5.16 FOLDER '{"none": {...}, ...}'

A scenario has the package's folder, the files' root and more. FOLDER gets NAME.json for each: the
launches by case, the log's lines, and how often kernels were lifted and files opened.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
import triton
from attention_scheduler import (
    REAL,
    Stubs,
    build_backend,
    prefill_module,
    run_decode,
    run_extend,
    run_prefill,
)
from gemm_scheduler import kernel_modules
from triton.runtime.autotuner import Autotuner

from tuner.bindings.sglang.scan_sources import SOURCES as SGLANG
from tuner.bindings.vllm.scan_sources import SOURCES as VLLM
from tuner.kernels import lift

NAMES = (
    *("BLOCK_M", "BLOCK_N", "BLOCK_H", "HAS_MLA", "MAX_KV_SPLITS", "BT", "BLOCK_SIZE_M"),
    *("BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps", "num_stages"),
)
# name -> as in `attention_scheduler.py`
EXTEND = {
    "extend": (4, 2, 32, 32, (20, 5), (33, 0), {}),
    "extend longer keys": (4, 2, 48, 32, (20, 5), (33, 0), {}),
    "extend far": (4, 2, 32, 32, (400,), (3,), {}),
    "extend window": (4, 2, 32, 32, (20, 5), (40, 9), {"window": 15}),
    "extend sinks": (4, 2, 32, 32, (20, 5), (40, 9), {"sinks": True}),
}
DECODE = {
    "decode": (4, 2, 32, 32, (70, 1), 8, {}),
    "decode longer keys": (4, 2, 48, 32, (70, 1), 8, {}),
    "decode far": (4, 2, 32, 32, (9,) * 12, 8, {}),
    "decode capped": (4, 2, 32, 32, (70, 1), 8, {"logit_cap": 30.0}),
    "decode sinks": (4, 2, 32, 32, (70, 1), 8, {"sinks": True}),
}
PREFILL = {
    "prefill": (4, 2, 32, (40, 20), False),
    "prefill far": (4, 2, 32, (900,), False),
}
GEMM = {"gemm": (256, 256, 3), "gemm other": (384, 256, 3)}  # N, K, M
# chunked scans: heads, tokens; the second model has half of the heads
SCAN = {
    "scan": (64, 1024),
    "scan second": (32, 1024),
    "scan far": (64, 16384),
    "scan other": (16, 1024),
}


class Noted:
    """What reaches Triton."""

    def __init__(self) -> None:
        self.launches: list[dict[str, object]] = []

        def run(kernel, *args, grid, warmup, **kwargs):
            if not warmup:
                names = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
                constants = {k: int(names[k]) for k in NAMES if k in names}
                blocks = grid({**names}) if callable(grid) else grid
                self.launches.append({"kernel": kernel.fn.__name__, "grid": [*blocks], **constants})

        def chosen(kernel, *args, grid, **kwargs):
            self.launches.append({"autotuned": True})

        triton.runtime.JITFunction.run = run
        Autotuner.run = chosen

    def take(self) -> list[dict[str, object]]:
        taken, self.launches[:] = list(self.launches), []
        return taken


def imported(package: Path, folders: tuple[str, ...], module: str) -> ModuleType | None:
    """A module of one of an engine's folders; None if this release has none."""
    place = next((f for f in folders if (package / f / f"{module}.py").is_file()), None)
    if place is None:
        return None
    return importlib.import_module(f"{package.name}.{place.replace('/', '.')}.{module}")


def attention(backends: list, vision: ModuleType, noted: Noted) -> dict[str, list]:
    found = {}
    for way, cases, run in (
        ("extend_attention_fwd", EXTEND, run_extend),
        ("decode_attention_fwd", DECODE, run_decode),
        ("context_attention_fwd", PREFILL, run_prefill),
    ):
        function = getattr(backends[0], way, None) or getattr(vision, way)
        for name, case in cases.items():
            run(function, case)
            found[name] = noted.take()
    return found


def gemms(fp8: ModuleType, noted: Noted) -> dict[str, list]:
    found = {}
    for name, (N, K, M) in GEMM.items():
        a, b = (torch.zeros(rows, K).to(torch.float8_e4m3fn) for rows in (M, N))
        scales = torch.zeros(M, K // 128), torch.zeros(N // 128, K // 128)
        fp8.w8a8_block_fp8_matmul_triton(a, b, *scales, [128, 128], output_dtype=torch.float16)
        found[name] = noted.take()
    return found


def scans(module: ModuleType, noted: Noted) -> dict[str, list]:
    kernel, found = module._chunk_scan_fwd_kernel, {}
    for name, (heads, tokens) in SCAN.items():
        x = SimpleNamespace(shape=(tokens, heads, 64), dtype=torch.bfloat16)
        sums = SimpleNamespace(shape=(heads, tokens // 128, 128))
        sizes = {"chunk_size": 128, "hdim": 64, "dstate": 128, "nheads_ngroups_ratio": 8}
        for _ in range(3):  # what is found out once is not found out again
            kernel[(1, 2, 3)](x_ptr=x, dA_cumsum_ptr=sums, **sizes)
        found[name] = noted.take()
    return found


def counted(root: str) -> tuple[list[object], list[object]]:
    """The texts that are lifted, and the files that are opened, from now on."""
    lifts, opened = [], []
    lifted = lift.lift_from

    def lifting(*given):
        lifts.append(given)
        return lifted(*given)

    def heard(event, given):
        if event == "open" and isinstance(given[0], str) and given[0].startswith(root):
            opened.append(given[0])

    lift.lift_from = lifting
    sys.addaudithook(heard)
    return lifts, opened


def scenario(engine: str, version: str, settings: dict) -> dict[str, object]:
    package, sources = Path(settings["package"]), SGLANG if engine == "sglang" else VLLM
    folders, deterministic = sources.folders["chunk_scan"], settings["deterministic"]
    places = [f"{engine}.{folder.replace('/', '.')}." for folder in folders]
    kernels = kernel_modules(version) if engine == "sglang" else ()
    stubs = Stubs(package, version, (*REAL, *places, *kernels), deterministic=deterministic)
    sys.meta_path.insert(0, stubs)
    lifts, opened = counted(settings["root"])
    noted, found = Noted(), {}
    if engine == "sglang":
        importlib.import_module("sglang.srt.managers.scheduler")
        modules = [importlib.import_module(name) for name in kernels]
        for module in modules:
            module.get_device_name = torch.cuda.get_device_name
        importlib.import_module("sglang.srt.plugins").load_plugins()
        vision = ModuleType("a.model")
        vision.context_attention_fwd = prefill_module(package).context_attention_fwd
        sys.modules["a.model"] = vision
        backends = [build_backend(deterministic, 8) for _ in range(2)]  # and a draft model's
        found = {**attention(backends, vision, noted), **gemms(modules[0], noted)}
    else:
        importlib.import_module("tuner.bindings.vllm.plugin").register()
    module = imported(package, folders, "ssd_chunk_scan")
    found |= scans(module, noted) if module else {}
    return {"launches": found, "lifts": len(lifts), "opened": len(opened)}


class Lines(logging.Handler):
    """Keeps what the plugins log, as load-proof reads it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def main() -> None:
    engine, version, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if engine == "sglang":  # whose decorators import it: once here, and not in each scenario
        importlib.import_module("torch._dynamo")
    torch.cuda.get_device_name = lambda *_: "NVIDIA H200"
    triton.__version__ = "3.6.0"
    for name, settings in json.loads(sys.argv[4]).items():
        child = os.fork()
        if child == 0:
            heard = Lines()
            logger = logging.getLogger("tuner.plugin")
            logger.addHandler(heard)
            logger.setLevel(logging.INFO)
            for variable in ("ATTENTION", "GEMM", "SCAN"):
                os.environ[f"TUNER_{variable}_CONFIG_DIR"] = settings["root"]
            try:
                report = scenario(engine, version, settings)
                report["lines"] = heard.lines
            except BaseException:
                report = {"error": traceback.format_exc()}
            (folder / f"{name}.json").write_text(json.dumps(report))
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
