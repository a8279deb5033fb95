"""Engines' versions, compared as Python packaging compares them."""

from __future__ import annotations

import re

from packaging.version import VERSION_PATTERN, Version

from tuner.errors import BadProblem

Release = tuple[int, int, int]
_LEADING = re.compile(VERSION_PATTERN, re.VERBOSE | re.IGNORECASE)


def version_order(text: str) -> tuple[Version, bool, str]:
    """A sorting key; "0.5.16-ours", a version with something behind it, is before the version."""
    match = _LEADING.match(text)
    if not match:
        return Version("0.dev0"), False, text
    return Version(match[0]), match[0] == text, text


def release_of(text: str) -> Release:
    """(0, 5, 12) for 0.5.12, and for its candidates, post-releases and patched builds too.

    A rule of a release holds for all of them. Raises BadProblem for what is not a version.
    """
    match = _LEADING.match(text)
    version = Version(match[0]) if match else None
    if version is None or len(version.release) < 2:
        raise BadProblem(f"{text!r} is not an engine version such as 0.5.23")
    return version.major, version.minor, version.micro
