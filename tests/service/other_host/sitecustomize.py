"""Makes a Python process believe that it is on another host: with its engines, without a package.

Put this folder first on PYTHONPATH. HOST_PREFIX is a folder that stands for the environment's, in
which engines are looked for; HOST_LACKS names packages, separated by commas, that are not there;
HOST_GPU is the UUID of a GPU that torch shows, and that cannot be used.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
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


class _WithGpu:
    """A finder that finds nothing. It changes torch before a module asks for the GPU."""

    def find_spec(self, name: str, *rest: Any) -> Any:
        if name == "tuner.measure.this_gpu":
            import torch  # noqa: PLC0415

            torch.cuda.get_device_properties = lambda _: SimpleNamespace(uuid=uuid)


if uuid := os.environ.get("HOST_GPU"):
    sys.meta_path.insert(0, _WithGpu())  # type: ignore[arg-type]
