"""vLLM: each family of kernels in it."""
