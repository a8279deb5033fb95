"""Stands for a scheduler process of one sglang version, on the CPU, and launches attention in it.

Real: sglang's plugin loader and hook registry, its Triton attention backend with its constructor,
and its attention modules, whose kernels Triton's interpreter runs. All else that these import is
answered by stand-ins, and the GPU has a name.

This is a separate program, because Triton decides on import whether to interpret:
TRITON_INTERPRET=1 python attention_scheduler.py 0.5.16 OUT_FOLDER '{"device": ..., ...}'

It writes launches.json (the kernels' names, grids and constants, by case) and outputs.pt.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import torch
import triton
from triton.runtime.errors import OutOfResources
from triton.runtime.interpreter import InterpretedFunction

REAL = (
    "sglang.srt.plugins",
    "sglang.srt.layers.attention.base_attn_backend",
    "sglang.srt.layers.attention.triton_backend",
    "sglang.srt.layers.attention.triton_ops",
    "sglang.kernels.ops.attention.",
)
PROBES = (
    *("is_cuda", "is_hip", "is_xpu", "is_musa", "is_cpu"),
    *("is_gfx95_supported", "is_gfx942_supported", "is_gfx1250_supported"),
)
CONSTANTS = ("BLOCK_M", "BLOCK_N", "BLOCK_N_PREFIX", "BLOCK_H", "HAS_MLA")
OPTIONS = ("num_warps", "num_stages")

# name -> (q heads, kv heads, Lq, Lv, new tokens, cached tokens, what else is asked of the launch)
EXTEND = {
    "plain": (4, 2, 32, 32, (20, 5, 1), (33, 0, 7), {}),
    "long": (4, 2, 32, 32, (200,), (3,), {}),
    "mla": (4, 1, 576, 512, (9, 3), (5, 0), {}),
    "window and sinks": (4, 2, 32, 32, (20, 5), (40, 9), {"window": 15, "sinks": True}),
    "custom mask": (4, 2, 32, 32, (20, 5), (33, 0), {"mask": True}),
    "not causal": (4, 2, 32, 32, (20, 5), (33, 0), {"is_causal": False}),
    "other heads": (8, 2, 32, 32, (20, 5), (33, 0), {}),
    "other type": (4, 2, 32, 32, (20, 5), (33, 0), {"dtype": torch.float32}),
    "paged": (4, 2, 32, 32, (20, 5), (33, 0), {"page_size": 4}),
}
# name -> (q heads, kv heads, Lq, Lv, cached tokens, KV splits, what else)
DECODE = {
    "grouped": (32, 1, 32, 32, (70, 1), 8, {}),
    "mha": (2, 2, 32, 32, (70, 33), 8, {}),
    "mla": (16, 1, 576, 512, (40, 7), 8, {"has_mla": True}),
    "sinks": (32, 1, 32, 32, (33,), 8, {"sinks": True}),
    "other splits": (32, 1, 32, 32, (33,), 4, {}),
    "capped": (32, 1, 32, 32, (33,), 8, {"logit_cap": 30.0}),
}
# name -> (heads, key heads, columns, image tokens, whether each sees only those before it)
PREFILL = {"image": (4, 2, 32, (40, 20), False), "causal": (4, 2, 32, (40, 20), True)}


class _Stub(ModuleType):
    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("Pool"):  # asked for with isinstance
            return type(name, (), {})
        return (lambda *_: False) if name in PROBES else MagicMock(name=name)


class Stubs(MetaPathFinder, Loader):
    """Answers an engine's modules: the `real` ones are left to Python, the others are stand-ins."""

    def __init__(
        self,
        package: Path,
        version: str,
        real: tuple[str, ...] = REAL,
        *,
        deterministic: bool = False,
    ) -> None:
        self.package, self.version, self.real = package, version, real
        self.settings = MagicMock(enable_deterministic_inference=deterministic)
        self.settings.deterministic.enable_deterministic_inference = deterministic

    def find_spec(self, name, path=None, target=None):
        real = name.startswith(self.real) and not name.endswith(".fla.utils")
        if name.partition(".")[0] != self.package.name or real:
            return None
        place = self.package.parent.joinpath(*name.split("."))
        if not (place.is_dir() or place.with_suffix(".py").is_file()):
            return None
        spec = ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations.append(str(place))  # real modules may lie below
        return spec

    def create_module(self, spec):
        module = _Stub(spec.name)
        if spec.name == self.package.name:
            module.__version__ = self.version
        if spec.name.endswith(".fla.utils"):  # it asks for the GPU
            module.autotune_cache_kwargs = {}
        if spec.name == "vllm.triton_utils":
            module.triton, module.tl = triton, triton.language
        if spec.name == "sglang.srt.server_args":
            module.get_global_server_args = lambda: self.settings
        if spec.name == "sglang.srt.runtime_context":  # 0.5.16's has no `get_exec`
            module.get_exec = lambda: self.settings
        if spec.name == "sglang.srt.environ":
            module.envs = MagicMock()
            module.envs.SGLANG_PLUGINS.get.return_value = None
            module.envs.SGLANG_PLATFORM.get.return_value = None
            module.envs.SGLANG_FORCE_LEAN_GRID_CU_MULT.get.return_value = 1
        return module

    def exec_module(self, module):
        pass


class Recorder:
    """Notes what Triton is told to launch; refuses what needs too many warps for this GPU."""

    def __init__(self, names: tuple[str, ...] = CONSTANTS) -> None:
        self.launches = []
        run = InterpretedFunction.run

        def recording(kernel, *args, grid, warmup, **kwargs):
            constants = {k: kwargs[k] for k in (*names, *OPTIONS) if k in kwargs}
            blocks = grid({**kwargs}) if callable(grid) else grid
            note = {"kernel": kernel.fn.__name__, "grid": list(blocks), "warmup": warmup}
            self.launches.append({**note, **constants})
            if constants.get("num_warps") == 32:
                raise OutOfResources(300_000, 232_448, "shared memory")
            return run(kernel, *args, grid=grid, warmup=warmup, **kwargs)

        InterpretedFunction.run = recording

    def take(self):
        taken, self.launches[:] = list(self.launches), []
        return taken


def build_backend(deterministic: bool, kv_splits: int):
    """The engine's own backend, built by its own constructor."""
    module = importlib.import_module("sglang.srt.layers.attention.triton_backend")
    settings = MagicMock()  # as 0.5.23 has them
    settings.kernel.triton_attention_num_kv_splits = kv_splits
    settings.kernel.triton_attention_split_tile_size = None
    settings.deterministic.enable_deterministic_inference = deterministic
    module.get_exec = lambda: settings
    module.get_int_env_var = lambda name, default: default
    runner = MagicMock()
    runner.req_to_token_pool.size = 16
    runner.sliding_window_size = None
    runner.device = "cpu"
    runner.model_config.context_len = 4096
    runner.model_config.head_dim = 32
    runner.server_args.triton_attention_num_kv_splits = kv_splits  # as earlier ones have them
    runner.server_args.triton_attention_split_tile_size = None
    runner.server_args.enable_deterministic_inference = deterministic
    return module.TritonAttnBackend(runner)


def _indptr(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def _cache(kv_heads, Lq, Lv, lengths, dtype, page_size=1):
    """Keys, values (of latent attention: the keys' first columns), and shuffled places."""
    slots = max(1, sum(lengths))
    slots += -slots % page_size
    keys = torch.randn(slots, kv_heads, Lq).to(dtype)
    values = keys[..., :Lv] if Lq != Lv else torch.randn(slots, kv_heads, Lv).to(dtype)
    places = torch.randperm(slots)[: sum(lengths)].to(torch.int64)
    return keys, values, _indptr(lengths), places


def run_extend(extend, case):
    q_heads, kv_heads, Lq, Lv, new, cached, more = case
    dtype, page_size = more.get("dtype", torch.float16), more.get("page_size", 1)
    rows = sum(new)
    q, k = (torch.randn(rows, heads, Lq).to(dtype) for heads in (q_heads, kv_heads))
    v = torch.randn(rows, kv_heads, Lv).to(dtype)
    o = torch.full((rows, q_heads, Lv), float("nan"), dtype=dtype)
    keys, values, kv_indptr, places = _cache(kv_heads, Lq, Lv, cached, dtype, page_size)
    mask, mask_indptr = None, None
    if more.get("mask"):
        sizes = [n * (n + c) for n, c in zip(new, cached, strict=True)]
        mask, mask_indptr = torch.ones(sum(sizes), dtype=torch.bool), _indptr(sizes)
    optional = {"sinks": torch.randn(q_heads)} if more.get("sinks") else {}
    optional |= {"page_size": page_size} if page_size > 1 else {}
    extend(
        *(q, k, v, o, keys, values, _indptr(new), kv_indptr, places),
        *(mask, more.get("is_causal", True), mask_indptr, max(new), 1.0, 1.0),
        sliding_window_size=more.get("window", -1),
        **optional,
    )
    return o


def run_decode(decode, case):
    q_heads, kv_heads, Lq, Lv, cached, splits, more = case
    batch = len(cached)
    q = torch.randn(batch, q_heads, Lq).to(torch.float16)
    o = torch.full((batch, q_heads, Lv), float("nan"), dtype=torch.float16)
    keys, values, kv_indptr, places = _cache(kv_heads, Lq, Lv, cached, torch.float16)
    logits, lse = torch.empty(batch, q_heads, splits, Lv), torch.empty(batch, q_heads, splits)
    counts = torch.full((batch,), splits, dtype=torch.int32)
    sinks = torch.randn(q_heads) if more.get("sinks") else None
    options = {name: more[name] for name in ("has_mla", "logit_cap") if name in more}
    decode(
        *(q, keys, values, o, kv_indptr, places, logits, lse, counts, splits, Lq**-0.5, 1.0, 1.0),
        sinks=sinks,
        **options,
    )
    return o


def prefill_module(package: Path) -> ModuleType:
    since = "kernels/ops/attention", "srt/layers/attention/triton_ops"
    place = next(p for p in since if (package / p / "prefill_attention.py").is_file())
    return importlib.import_module(f"sglang.{place.replace('/', '.')}.prefill_attention")


def run_prefill(prefill, case):
    q_heads, kv_heads, columns, lengths, causal = case
    heads = (q_heads, kv_heads, kv_heads)
    q, k, v = (torch.randn(sum(lengths), n, columns).to(torch.float16) for n in heads)
    o = torch.full_like(q, float("nan"))
    starts = _indptr(lengths)
    prefill(q, k, v, o, starts, starts[1:] - starts[:-1], max(lengths), is_causal=causal)
    return o


def main():
    version, out, settings = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    package = Path(sys.prefix, "share", "tuner", "engines", f"sglang-{version}", "sglang")
    deterministic = settings.get("deterministic", False)
    sys.meta_path.insert(0, Stubs(package, version, deterministic=deterministic))
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    if settings.get("scheduler", True):
        importlib.import_module("sglang.srt.managers.scheduler")
    if "triton" in settings:
        triton.__version__ = settings["triton"]
    torch.cuda.get_device_name = lambda *_: settings["device"].replace("_", " ")

    importlib.import_module("sglang.srt.plugins").load_plugins()
    loaded = sorted(name for name in sys.modules if name.startswith("sglang"))
    recorder = Recorder()
    # A model that sees is loaded before the backend is built, and has the launcher's name by then.
    vision = sys.modules["a.model"] = ModuleType("a.model")
    vision.context_attention_fwd = prefill_module(package).context_attention_fwd
    backend = build_backend(deterministic, settings.get("kv_splits", 8))
    ways = {
        "extend": (EXTEND, run_extend, backend.extend_attention_fwd),
        "decode": (DECODE, run_decode, backend.decode_attention_fwd),
        "prefill": (PREFILL, run_prefill, vision.context_attention_fwd),
    }
    launches, outputs = {}, {}
    for case in settings["cases"]:
        phase, _, name = case.partition(" ")
        known, run, function = ways[phase]
        for again in range(settings.get("repeat", 1)):
            torch.manual_seed(7)
            outputs[case] = run(function, known[name])
            launches[f"{case} {again + 1}" if again else case] = recorder.take()
    torch.save(outputs, out / "outputs.pt")
    report = {"launches": launches, "loaded": loaded}
    (out / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
