"""Choose decode's two kernels and its number of KV splits together."""
