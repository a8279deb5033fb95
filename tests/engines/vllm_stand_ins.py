"""vLLM's `fused_moe` module, imported without vLLM's compiled parts and without what it depends on.

The module is the release's own file, as are the few others in REAL. Every other module of vLLM is a
stand-in: the names that matter are given here, in plain torch, and the rest are placeholders that
fail when they are used. A CUDA graph can capture the functions given here.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import logging
import re
import sys
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LAYER = "vllm.model_executor.layers.fused_moe"
REAL = (
    "vllm.envs",
    "vllm.triton_utils.allocation",
    "vllm.utils.math_utils",
    f"{LAYER}.activation",
    f"{LAYER}.config",
    f"{LAYER}.fused_moe",
    f"{LAYER}.utils",
)
OTHERS = ("compressed_tensors",)  # of which the files in REAL import something
FP8 = torch.float8_e4m3fn


def import_fused_moe(root: Path, device_name: str, capability: int) -> Any:  # noqa: ANN401
    """The module `fused_moe` of the release whose package folder is `root`.

    `device_name`: as the driver gives it. `capability`: 90 for sm_90.
    """
    known = _known(device_name, capability)
    sys.meta_path.insert(0, _Finder(root, known))
    module: Any = importlib.import_module(f"{LAYER}.fused_moe")
    # Compiled kernels, on the path that `fused_experts_impl` takes.
    module.ops = SimpleNamespace(moe_sum=lambda x, out: torch.sum(x, 1, out=out))
    module.moe_align_block_size = align_block_size
    module.moe_kernel_quantize_input = quantise_input
    module.apply_moe_activation = silu_and_mul
    # What 0.10 to 0.16 call instead.
    torch.ops._C = SimpleNamespace(silu_and_mul=lambda out, x: silu_and_mul("silu", out, x))
    return module


def served_layer(root: Path, device_name: str, capability: int) -> Any:  # noqa: ANN401
    """`vllm_layer.VLLMLayer` of the release, on these stand-ins."""
    import_fused_moe(root, device_name, capability)
    return importlib.import_module("vllm_layer").VLLMLayer()


def align_block_size(
    topk_ids: Tensor, block_size: int, num_experts: int, *further: object, **options: object
) -> tuple[Tensor, Tensor, Tensor]:
    """`moe_align_block_size`: slots sorted by expert, each expert's padded to whole blocks."""
    flat, device = topk_ids.flatten().long(), topk_ids.device
    slots = flat.numel() + num_experts * (block_size - 1)
    if flat.numel() < num_experts:
        slots = min(flat.numel() * block_size, slots)
    order = flat.argsort(stable=True)
    expert = flat[order]
    counts = torch.zeros(num_experts, dtype=torch.long, device=device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    padded = (counts + block_size - 1) // block_size * block_size
    ends = padded.cumsum(0)
    within = torch.arange(flat.numel(), device=device) - (counts.cumsum(0) - counts)[expert]
    ids = torch.full((slots,), flat.numel(), dtype=torch.int32, device=device)
    ids.scatter_(0, (ends - padded)[expert] + within, order.to(torch.int32))
    starts = torch.arange(-(-slots // block_size), device=device) * block_size
    experts = torch.searchsorted(ends, starts, right=True).clamp_(max=num_experts - 1)
    return ids, experts.to(torch.int32), ends[-1:].to(torch.int32)


def quantise_input(
    A: Tensor,
    A_scale: Tensor | None = None,
    quant_dtype: object = None,
    per_act_token_quant: bool = False,
    block_shape: list[int] | None = None,
    **options: object,
) -> tuple[Tensor, Tensor | None]:
    """`moe_kernel_quantize_input` for fp8: one scale a block of a row, a row, or the tensor."""
    if quant_dtype is None:
        return A, None
    assert quant_dtype is FP8, quant_dtype
    width = block_shape[1] if block_shape else A.shape[1]
    parts = A.float().view(A.shape[0], -1, width)
    most = parts.abs().amax(-1, keepdim=True)
    if not block_shape and not per_act_token_quant:
        most = most.amax(0, keepdim=True)
    scale = most.clamp_min(1e-10) / torch.finfo(FP8).max
    found = (parts / scale).to(FP8).view(A.shape)
    return found, scale.view(1) if scale.numel() == 1 else scale.squeeze(-1)


def silu_and_mul(activation: object, output: Tensor, x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    torch.mul(torch.nn.functional.silu(x[..., :half]), x[..., half:], out=output)
    return output


class Placeholder:
    """A name that nothing may use, except as a decorator, a base class or in an annotation."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self._name}.{name}")

    def __call__(self, *args: object, **kwargs: object) -> object:
        alone = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if alone else Placeholder(f"{self._name}()")

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return ()

    def __getitem__(self, key: object) -> Placeholder:
        return self

    def __or__(self, other: object) -> Placeholder:
        return self

    __ror__ = __or__

    def __bool__(self) -> bool:
        raise RuntimeError(f"the code asks for {self._name}, which has no stand-in")


class _Experts:
    """The base class of vLLM's layers."""

    @staticmethod
    def adjust_N_for_activation(N: int, activation: object) -> int:  # noqa: N802, N803  # vLLM's
        return N // 2


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds vLLM's modules: the files in REAL, and stand-ins for all others and for OTHERS."""

    def __init__(self, root: Path, known: dict[str, dict[str, Any]]) -> None:
        self._root, self._known = root, known

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:  # noqa: ANN401
        if name.partition(".")[0] not in ("vllm", *OTHERS):
            return None
        if name in REAL:
            file = self._root.parent.joinpath(*name.split(".")).with_suffix(".py")
            return spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:  # noqa: ANN401
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._known.get(module.__name__, {}))


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self.__name__}.{name}")


class _Logger(logging.LoggerAdapter[logging.Logger]):
    """vLLM's loggers, which can say a thing once."""

    def info_once(self, text: str, *args: object, scope: str = "") -> None:
        self.info(text, *args)

    def warning_once(self, text: str, *args: object, scope: str = "") -> None:
        self.warning(text, *args)


def _known(device_name: str, capability: int) -> dict[str, dict[str, Any]]:
    platform = SimpleNamespace(
        is_cuda=lambda: True,
        is_cuda_alike=lambda: True,
        is_rocm=lambda: False,
        is_xpu=lambda: False,
        is_cpu=lambda: False,
        fp8_dtype=lambda: FP8,
        get_device_name=lambda *index: device_name,
        is_device_capability=lambda wanted: wanted == capability,
        has_device_capability=lambda wanted, *index: capability >= wanted,
        simple_compile_backend="eager",
    )
    torch_utils = {
        "direct_register_custom_op": lambda *args, **kwargs: None,
        "is_torch_equal_or_newer": lambda version: True,
    }
    return {
        "vllm.platforms": {"current_platform": platform},
        "vllm.triton_utils": {"triton": triton, "tl": tl, "HAS_TRITON": True},
        "vllm.logger": {"init_logger": lambda name: _Logger(logging.getLogger(name), {})},
        "vllm.utils": {**torch_utils, "round_up": lambda n, to: -(-n // to) * to},
        "vllm.utils.import_utils": {
            "get_triton_kernels_version": lambda: None,
            "has_triton_kernels": lambda: False,
        },
        "vllm.utils.platform_utils": {
            "get_device_name_as_file_name": lambda: re.sub(r"[\s/]+", "_", device_name)
        },
        "vllm.utils.torch_utils": torch_utils,
        "vllm.model_executor.layers.batch_invariant": {"vllm_is_batch_invariant": lambda: False},
        LAYER: {"get_config": lambda: None},
        f"{LAYER}.modular_kernel": dict.fromkeys(
            ("FusedMoEExpertsModular", "FusedMoEPermuteExpertsUnpermute"), _Experts
        ),
    }
