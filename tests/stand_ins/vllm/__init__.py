"""Stands in for an engine in tests of `tuner prove --server`."""
