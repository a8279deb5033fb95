"""Texts of others, made harmless for the text around them."""

from __future__ import annotations

import re

_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(value: object) -> object:
    """A value without characters that turn the direction of the text around them, or control it."""
    if not isinstance(value, str) or not _STEERS.search(value):
        return value
    return type(value)(_STEERS.sub("\N{REPLACEMENT CHARACTER}", value))
