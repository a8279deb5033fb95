"""Builds the CUDA kernels that sglang compiles at its first use of each, several at once.

    python benchmarks/sglang_stand_ins/build_kernels.py [PROCESSES]

sglang 0.5.16 has nvcc compile them one after the other while a server starts. These are the kernels
of the models in benchmarks/served_models on an H100. The results lie in $TVM_FFI_CACHE_DIR, where
sglang finds them. A kernel that is there already costs nothing.
"""

from __future__ import annotations

import argparse
import importlib
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
# Module of sglang.jit_kernel, function, arguments.
KERNELS: list[tuple[str, str, tuple[object, ...]]] = [
    ("activation", "_jit_activation_module", (BF16,)),
    ("norm", "_jit_qknorm_module", (128, BF16)),
    ("norm", "_jit_rmsnorm_module", (2048, BF16)),
    ("norm", "_jit_rmsnorm_module", (128, BF16)),
    ("norm", "_jit_rmsnorm_module", (5120, BF16)),
    ("norm", "_jit_rmsnorm_module", (6144, BF16)),
    ("norm", "_jit_rmsnorm_module", (7168, BF16)),
    ("norm", "_jit_rmsnorm_module", (8192, BF16)),
    ("norm", "_jit_rmsnorm_module", (1536, BF16)),
    ("norm", "_jit_rmsnorm_module", (512, BF16)),
    ("norm", "_jit_fused_add_rmsnorm_module", (BF16, False)),
    ("rope", "_jit_rotary_embedding_module", ()),
    ("rope", "_jit_fused_rope_module", (True, 128, BF16)),
    ("rope", "_jit_fused_rope_module", (False, 64, BF16)),
    ("rope", "_jit_fused_rope_module", (False, 128, BF16)),
    ("fused_qknorm_rope", "_jit_fused_qknorm_rope_module", (128, True, False)),
    ("kvcache", "_jit_kvcache_module", (1024,)),
    ("kvcache", "_jit_kvcache_module", (512,)),
    ("kvcache", "_jit_kvcache_module", (256,)),
    ("clamp_position", "_jit_clamp_position_module", (torch.int64,)),
    ("clamp_position", "_jit_clamp_position_module", (torch.int32,)),
    ("concat_mla", "_jit_concat_mla_k_module", ()),
    ("concat_mla", "_jit_concat_mla_absorb_q_module", ()),
    ("per_token_group_quant_8bit", "_jit_per_token_group_quant_8bit_module", (BF16, FP8, 128)),
    ("per_token_group_quant_8bit_v2", "_jit_module", (BF16, FP8, True)),
    ("resolve_future_token_ids", "_jit_resolve_future_token_ids_module", (torch.int64,)),
    ("resolve_future_token_ids", "_jit_resolve_future_token_ids_module", (torch.int32,)),
    ("set_mla_kv_buffer", "_jit_set_mla_kv_buffer_module", (1024, 128, True)),
    ("dsv3_router_gemm", "_jit_dsv3_router_gemm_module", (256, 7168, True, True)),
    ("dsv3_router_gemm", "_jit_dsv3_router_gemm_module", (256, 7168, True, False)),
    ("dsv3_router_gemm", "_jit_dsv3_router_gemm_module", (384, 7168, True, True)),
    ("dsv3_router_gemm", "_jit_dsv3_router_gemm_module", (384, 7168, True, False)),
    ("dsv3_fused_a_gemm", "_jit_dsv3_fused_a_gemm_module", (7168, 2112, True)),
]


def build(number: int) -> str:
    """Build one of KERNELS. Returns a line about it; a kernel that fails stops no other."""
    module, name, arguments = KERNELS[number]
    began = time.perf_counter()
    try:
        getattr(importlib.import_module(f"sglang.jit_kernel.{module}"), name)(*arguments)
    except Exception as error:  # noqa: BLE001  # the server builds it, or says more
        said = f"failed: {type(error).__name__}: {str(error)[-800:]}"
    else:
        said = f"{time.perf_counter() - began:.1f} s"
    return f"{module}.{name}{arguments}: {said}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("processes", type=int, nargs="?", default=14)
    processes = parser.parse_args().processes
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for line in pool.map(build, range(len(KERNELS))):
            print(line, flush=True)


if __name__ == "__main__":
    main()
