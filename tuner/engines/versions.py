"""Engine versions, compared by the rules of Python packaging."""

from __future__ import annotations

import re

from packaging.version import VERSION_PATTERN, Version

from tuner.errors import BadProblem

Release = tuple[int, ...]  # three numbers, and a fourth for a post-release
_LEADING = re.compile(VERSION_PATTERN, re.VERBOSE | re.IGNORECASE)


def version_order(text: str) -> tuple[Version, bool, str]:
    """A sorting key. A version with an unknown suffix, "0.5.16-ours", sorts before the version."""
    match = _LEADING.match(text)
    if not match:
        return Version("0.dev0"), False, text
    return Version(match[0]), match[0] == text, text


def release_of(text: str) -> Release:
    """(0, 5, 12) for 0.5.12 and its candidates and builds; (0, 5, 4, 2) for 0.5.4.post2.

    A post-release may follow other rules than its release. Raises BadProblem for text that is not a
    version.
    """
    match = _LEADING.match(text)
    version = Version(match[0]) if match else None
    if version is None or len(version.release) < 2:
        raise BadProblem(f"{text!r} is not an engine version such as 0.5.23")
    release = version.major, version.minor, version.micro
    return (*release, version.post) if version.post else release
