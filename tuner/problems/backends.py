"""The backends: kernel libraries that an engine may run for a problem, by their short names."""

from __future__ import annotations

# dispatch.toml, candidates, incumbents and stores have the names; people read the titles.
TITLES = {
    "aiter": "AITER",
    "cublas": "cuBLAS",
    "cudnn": "cuDNN",
    "cutlass": "CUTLASS",
    "cutlass_mla": "CUTLASS MLA",
    "deep_gemm": "DeepGEMM",
    "ep_moe": "EPMoE's grouped GEMM",
    "fa2": "FlashAttention 2",
    "fa3": "FlashAttention 3",
    "fa4": "FlashAttention 4",
    "flash_mla": "FlashMLA",
    "flashinfer": "FlashInfer",
    "flashinfer_cutlass": "FlashInfer (CUTLASS)",
    "flashinfer_deepgemm": "FlashInfer (DeepGEMM)",
    "flashinfer_mxfp8": "FlashInfer (MXFP8)",
    "flashinfer_trtllm": "FlashInfer (TRT-LLM)",
    "marlin": "Marlin",
    "none": "no kernel",
    "replay_ssm": "ReplaySSM",
    "sdpa": "PyTorch's SDPA",
    "sglang_mxfp8": "sglang's MXFP8 kernels",
    "triton": "Triton",
    "triton_kernels": "triton_kernels",
    "trtllm_mha": "FlashInfer (TRT-LLM MHA)",
    "trtllm_mla": "FlashInfer (TRT-LLM MLA)",
}


def title_of(backend: str) -> str:
    """A backend's name for people; one without a title has its short name."""
    return TITLES.get(backend, backend)
