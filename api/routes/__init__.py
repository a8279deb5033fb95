"""Handlers: each calls the tuner and shapes its answer."""
