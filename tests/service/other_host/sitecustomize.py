"""Makes a Python process believe that it is on another host: with its engines, without a package.

Put this folder first on PYTHONPATH. HOST_PREFIX is a folder that stands for the environment's, in
which engines are looked for; HOST_LACKS names packages, separated by commas, that are not there.
"""

from __future__ import annotations

import os
import sys
from typing import Any

if prefix := os.environ.get("HOST_PREFIX"):
    sys.prefix = prefix


class _Without:
    """A finder that does not find some packages."""

    def __init__(self, finder: Any) -> None:
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    def find_spec(self, name: str, *rest: Any) -> Any:
        return None if name.partition(".")[0] in lacks else self._finder.find_spec(name, *rest)


if lacks := set(filter(None, os.environ.get("HOST_LACKS", "").split(","))):
    sys.meta_path[:] = [_Without(finder) for finder in sys.meta_path]  # type: ignore[misc]
