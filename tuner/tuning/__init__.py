"""Tune one problem of any family."""
