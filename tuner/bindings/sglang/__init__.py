"""sglang: each family of kernels in it."""
