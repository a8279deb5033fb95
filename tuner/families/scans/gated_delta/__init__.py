"""The scan of gated delta nets over a prompt, by chunks: kernels that engines tune themselves."""
