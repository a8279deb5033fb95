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


def published(name: str, text: str) -> str:
    """The release of an engine that stands for a build which no package index has: 0.11.1 for
    0.11.1rc2.dev10+g1a2b3c4; "" where none is known, as for 0.1.dev1. vLLM publishes no candidates.
    """
    match = _LEADING.match(text)
    version = Version(match[0]) if match else None
    own = version and (version.dev is not None or version.local or len(version.release) > 3)
    if version is None or not (own or (version.pre and name == "vllm")):
        return text
    if len(version.release) < 3:
        return ""
    # A build after 0.5.6.post2 calls itself 0.5.6.post3.dev12.
    post = (version.post or 0) - (version.dev is not None)
    return ".".join(map(str, version.release[:3])) + (f".post{post}" if post > 0 else "")
