"""Decode's two kernels and its number of KV splits, chosen together."""
