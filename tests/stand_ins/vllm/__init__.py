"""Stands in for an engine in tests of benchmarks/served."""
