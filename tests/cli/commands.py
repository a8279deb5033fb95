"""The console script's commands, run in this process: they end as they would in their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from typer.testing import CliRunner

from tuner.cli import app


def run(
    *words: object, env: Mapping[str, str], cwd: Path | None = None, stdin: str = ""
) -> CompletedProcess[str]:
    """Run `tuner WORDS` with these variables alone; an exception that it lets through is raised."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - env.keys():
            patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
        done = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return CompletedProcess(words, done.exit_code, done.stdout, done.stderr)
