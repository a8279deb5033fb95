"""Families of kernels, each in a folder, whatever the engine."""
