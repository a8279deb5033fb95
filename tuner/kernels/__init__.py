"""Engines' jitted kernels: copied out of their source, with arguments bound by name."""
