"""Describe GPUs: their names, limits and peak rates."""
