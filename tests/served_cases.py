"""Runs benchmarks/served with stand-ins for the engine and the driver."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.served.__main__ import app

STAND_INS = Path(__file__).parent / "stand_ins"
NAME = "E=8,N=64,device_name=NVIDIA_L40S.json"
ENTRY = {
    **{"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1},
    **{"num_warps": 4, "num_stages": 3},
}
QUICK = ("--rounds", "2", "--loads", "1x8+4,2x16+8", "--device", "L40S")


def exported(root: Path, folder: str = "configs/triton_3_6_0") -> Path:
    """A folder as `tuner export` writes it, with one tuned file."""
    file = root / folder / NAME
    sidecar = root / "provenance" / Path(folder.removeprefix("configs/")) / NAME
    for path, content in ((file, {"1": ENTRY}), (sidecar, {"entries": {"1": {"status": "ok"}}})):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return root


def environment(folder: Path) -> dict[str, str]:
    """The environment of a command: it finds both stand-ins, and an empty store."""
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(STAND_INS / "bin"), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(STAND_INS), *filter(None, sys.path)]),
        "TUNER_DATABASE_URL": f"sqlite:///{folder / 'tuner.db'}",
        "COLUMNS": "80",
    }


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.served", *words]


@dataclass(frozen=True)
class Run:
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


def compare(folder: Path, *words: str, **environ: str) -> Run:
    """Run the command in a folder that has `configs_out`. Only its servers are processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        given = {**environment(folder), **environ}
        patch.setattr(sys, "path", given["PYTHONPATH"].split(os.pathsep))
        ended = CliRunner().invoke(app, [*QUICK, *words], env=given)
    if not isinstance(ended.exception, SystemExit | None):
        raise ended.exception
    return Run(ended.exit_code, ended.stdout, ended.stderr)
