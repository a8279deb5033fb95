"""The README's demo prints what `make demo` prints."""

import os
import re
import shlex
from pathlib import Path

import pytest
from commands import run

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow  # it tunes for 36 points
def test_the_demo_prints_what_the_readme_shows(tmp_path, compile_cache):
    env = {
        **os.environ,
        "COLUMNS": "80",
        "TUNER_DATABASE_URL": f"sqlite:///{tmp_path / 'tuner.db'}",
        "TUNER_CACHE_DIR": str(compile_cache),
    }
    [block] = re.findall(r"^```\n(\$ tuner tune.*?)^```", README.read_text(), re.M | re.S)
    for part in block.split("$ tuner ")[1:]:
        words, *shown = part.splitlines()
        done = run(*shlex.split(words), env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        said = done.stdout.replace(str(tmp_path), "...").splitlines()
        assert not [line for line in shown if line and line not in said], done.stdout
