"""The console script's commands, run in this process: they end as they would in their own."""

import os
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from typer.testing import CliRunner, Result

from tuner.cli.commands import app


def run(
    *words: object,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdin: str = "",
    code: int | None = None,
) -> CompletedProcess[str]:
    """Run `tuner WORDS` with these variables alone; an exception that it lets through is raised.

    It must end with the exit code `code`, unless that is None.
    """
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
    assert code in (None, done.exit_code), (words[:4], done.exit_code, done.stderr[-3000:])
    return CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def tuner(*words: object, code: int = 0) -> Result:
    """Run `tuner WORDS` with this process's variables; it must end with that exit code."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done
