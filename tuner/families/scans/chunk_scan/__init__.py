"""The scan of Mamba-2 layers over a prompt, by chunks: kernels that engines tune themselves."""
