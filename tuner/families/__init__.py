"""Families of kernels, one folder each, independent of the engine."""
