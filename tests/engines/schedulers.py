"""Runs the programs `*_scheduler.py`: processes that load the plugin as sglang's scheduler does."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from interpreter import run_interpreted
from plugin_cases import put

from tuner.bindings.sglang.plugin.files import AttentionFile
from tuner.bindings.sglang.plugin.gemm_files import GemmFile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TESTS = Path(__file__).parents[1]


def run_scheduler(
    program: str, folder: Path, version: str, environ: Mapping[str, str], settings: object
) -> str:
    """Run a program with a sglang version. It writes into `folder`; its log is returned."""
    places = [installed(folder), TESTS / "engines", TESTS]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TUNER_", "SGLANG_"))}
    path = os.pathsep.join([*map(str, places), inherited.get("PYTHONPATH", "")])
    environ = {**inherited, **environ, "PYTHONPATH": path}
    words = version, folder, json.dumps(settings)
    done = run_interpreted(TESTS / "engines" / program, *words, environ=environ)
    assert done.returncode == 0, done.stderr
    return done.stderr


def installed(folder: Path) -> Path:
    """A folder in which Python finds the plugin as an installed package's."""
    info = folder / "installed" / "engine_tuner_here-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: engine-tuner-here\nVersion: 1\n")
    pyproject = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())
    text = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items())
        for group, named in pyproject["project"]["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(text)
    return info.parent


def write_files(root: Path, *files: AttentionFile | GemmFile) -> Path:
    """Write the files to where a server that is given `root` looks for them."""
    for file in files:
        put(root, file)
    return root
