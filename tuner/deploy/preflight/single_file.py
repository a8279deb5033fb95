"""Write the preflight as a single file, for machines that have only Python 3.8 or later.

The file is an archive as the standard library's `zipapp` makes them: Python runs its `__main__.py`.
`zipapp` itself writes the times of files in the local time zone, so equal sources would give other
bytes elsewhere.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

_INTERPRETER = b"#!/usr/bin/env python3\n"
_MAIN = "import sys\n\nfrom tuner.deploy.preflight.main import main\n\nsys.exit(main())\n"
_MODULES = ("__init__.py", "errors.py", "shell.py", "deploy/__init__.py", "deploy/preflight/*.py")


def build_single_file(path: Path) -> None:
    """Write the file. Equal sources give equal bytes."""
    with path.open("wb") as file:
        file.write(_INTERPRETER)
        with zipfile.ZipFile(file, "w") as archive:
            for name, source in (("__main__.py", _MAIN), *packaged_sources()):
                archive.writestr(zipfile.ZipInfo(name), source)
    path.chmod(0o755)


def packaged_sources() -> list[tuple[str, str]]:
    """Return (path in the archive, text) of each module that the preflight imports."""
    package = Path(__file__).parents[2]
    paths = [path for pattern in _MODULES for path in sorted(package.glob(pattern))]
    return [
        (path.relative_to(package.parent).as_posix(), path.read_text(encoding="utf-8"))
        for path in paths
    ]
