"""Stands in for torch where a test imports what only fills tensors."""
