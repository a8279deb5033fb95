"""Bind each engine to each family of kernels: its kernels, files, plugin and delivery."""
