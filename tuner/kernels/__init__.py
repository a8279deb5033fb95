"""Engines' jitted kernels: lifted out of their source, their arguments bound by name."""
