"""Families of kernels, a folder for each, independent of the engine."""
