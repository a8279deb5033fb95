"""Handlers: each calls one room and shapes its answer."""
