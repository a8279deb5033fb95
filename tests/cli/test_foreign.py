"""Another distribution's `workers` or `api` on the path."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = {
    "workers": (["worker"], ["nightly", "run", "--last"]),
    "api": (["serve"],),
}


def run(arguments: list[str], path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from tuner.cli import main; main()", *arguments],
        env=os.environ | {"PYTHONPATH": str(path), "TUNER_DATABASE_URL": f"sqlite:///{path}/t.db"},
        cwd=path,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("package", COMMANDS)
def test_a_command_refuses_the_package_of_another_distribution(tmp_path, package):
    foreign = tmp_path / package
    foreign.mkdir()
    (foreign / "__init__.py").write_text("raise SystemExit('the foreign package was imported')\n")
    for arguments in COMMANDS[package]:
        done = run(arguments, tmp_path)
        assert done.returncode == 2, done.stderr
        assert f"the package {package!r} of engine-tuner" in done.stderr
        assert str(foreign) in done.stderr
    assert not (tmp_path / "t.db").exists()
    assert run(["list", "devices"], tmp_path).returncode == 0
