"""Runs of each family."""
