"""What tests of several folders use."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.testing

# Tests read whole rows of tables; `tests/cli/test_widths.py` has 80 columns.
os.environ.setdefault("COLUMNS", "200")
# What this program's shelf has grows with each card; tests of a shelf name one.
os.environ.setdefault("TUNER_SHELF", "")
# The processes of a run share the cores: threads of theirs would wait for each other, busily.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Each of the many processes that tests start would compile this code anew where it is not kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Typer builds all commands anew for each invocation, which takes longer than most invocations.
typer.testing._get_command = cache(typer.testing._get_command)  # noqa: SLF001


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes more than cores, because many tests wait for other processes.

    One file runs in this process: that starts at once, and a debugger or -s works. So do tests on
    a GPU, which share it.
    """
    files = {argument.partition("::")[0] for argument in config.args}
    one_file = len(files) == 1 and files.pop().endswith(".py")
    if one_file or config.option.markexpr == "gpu":
        return 0
    return len(os.sched_getaffinity(0)) + 2


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector, which takes a third of that time.

    It leaves out what is there by then: modules and tests, which live as long as the process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run share: who makes a file there takes a lock first."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def compile_cache(run_folder: Path) -> Iterator[Path]:
    """A folder of compiled kernels for all tests of a run; a test about compiling has another.

    Results lie there under keys of all that decides them, and several processes may use it. Compile
    processes of this process that use it go from one farm to the next.
    """
    folder = run_folder / "compile-cache"
    folder.mkdir(exist_ok=True)
    with importlib.import_module("warm_compilers").warm_compilers(folder):
        yield folder


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with an empty store, to be copied: migrations take longer than many a test."""
    database = importlib.import_module("tuner.store.database").Database
    file = tmp_path_factory.mktemp("template") / "tuner.db"
    database.open(f"sqlite:///{file}").close()
    return file


@pytest.fixture
def few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick predictions of this process compile four kernels, which say as much as fifty."""
    for family in ("fused_moe", "dense_gemm"):
        tuning = importlib.import_module(f"tuner.families.{family}.tuning")
        (quick,) = (effort for effort in tuning.PREDICT_KERNELS if effort.value == "quick")
        monkeypatch.setitem(tuning.PREDICT_KERNELS, quick, 4)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> None:
    """Set how Hypothesis draws before a file that uses it makes its tests."""
    if b"hypothesis" in module_path.read_bytes():
        importlib.import_module("draws").draw_for(parent.config.option.markexpr)
