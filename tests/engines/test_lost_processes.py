"""Whole runs whose processes are killed or stopped, or whose GPU fails.

After each, another run ends as if nothing had happened. Kernels are really compiled; a stand-in for
the GPU's child gives the times.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from cases import H200
from gemm_cases import BLOCKS
from mishap_child import OUT_OF_MEMORY, WORDS
from tiers import only

from tuner.compile import CompileJob, Farm
from tuner.engines.engine import find_engine
from tuner.errors import MeasurerFailed, MeasurerUnavailable
from tuner.families.dense_gemm import tuning
from tuner.families.dense_gemm.family import GemmSelection
from tuner.measure.gpu_worker import ChildLimits
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.results import MeasureKind, Status, Trial
from tuner.store.results import ResultStore
from tuner.tuning.progress import Progress
from tuner.tuning.report import RunReport
from tuner.tuning.request import Effort, KnownBefore, Request, Source, prepare
from tuner.tuning.run import execute, open_source
from tuner.tuning.search import Budget
from tuner.tuning.tune import UNWATCHED, Watcher

SIZES = (8, 64)
ENGINE = find_engine("sglang==0.5.16")
KINDS = (MeasureKind.GPU, MeasureKind.PREDICT)
Found = dict[Point, tuple[Config, float | None]]


def asked(kind: MeasureKind = MeasureKind.GPU) -> Request:
    return Request(BLOCKS, H200, ENGINE, Source(kind), GemmSelection(SIZES), Effort.QUICK)


@pytest.fixture(autouse=True)
def few_tries(monkeypatch: pytest.MonkeyPatch, few_kernels: None) -> None:
    small = Budget(per_point=3, kernels=3, seeds=3)
    monkeypatch.setitem(tuning.BUDGETS, Effort.QUICK, small)


@pytest.fixture
def mishaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what befalls the processes; `mishap_child` says how."""
    folder = tmp_path / "mishaps"
    folder.mkdir()
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("MISHAPS", str(folder))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    return folder


def suffer(mishaps: Path, **files: str) -> None:
    for name, what in files.items():
        (mishaps / name.replace("_", "-")).write_text(what)


def run(
    store: ResultStore,
    watching: Callable[[Workbench], Watcher] = lambda _: UNWATCHED,
    *,
    request: Request | None = None,
    limits: ChildLimits = ChildLimits(),
) -> RunReport:
    request = request or asked()
    with Workbench("mishap_child", limits=limits, compile_s=240) as workbench:
        source = open_source(request, workbench)
        return execute(prepare(request), source, store, watching(workbench))


def found(report: RunReport) -> Found:
    return {entry.point: (entry.config, entry.median_us) for entry in report.entries}


def stored(store: ResultStore) -> list[Trial]:
    """The trials of the store's only run."""
    trials = store.trials_page(1, None, 1000)
    return [replace(t, compiled=replace(t.compiled, cached=False)) for t in trials]


@pytest.fixture(scope="module")
def clean(
    tmp_path_factory: pytest.TempPathFactory, compile_cache: Path
) -> Callable[..., tuple[Found, list[Trial]]]:
    """What a second run finds, and the trials that the store then has, if nothing ever happens."""
    known: dict[MeasureKind, tuple[Found, list[Trial]]] = {}

    def of(kind: MeasureKind = MeasureKind.GPU) -> tuple[Found, list[Trial]]:
        if kind not in known:
            url = f"sqlite:///{tmp_path_factory.mktemp('clean')}/t.db"
            with ResultStore.open(url) as store, pytest.MonkeyPatch.context() as patch:
                patch.setenv("TUNER_CACHE_DIR", str(compile_cache))
                run(store, request=asked(kind))
                known[kind] = found(run(store, request=asked(kind))), stored(store)
        return known[kind]

    return of


@pytest.fixture(autouse=True)
def as_if_nothing_had_happened(
    store: ResultStore,
    mishaps: Path,
    clean,
    request: pytest.FixtureRequest,
    compile_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """After a test, and with its mishaps gone, another run ends as ever."""
    yield
    for path in mishaps.iterdir():
        path.unlink()
    monkeypatch.setenv("TUNER_CACHE_DIR", str(compile_cache))
    kind = getattr(request.node, "callspec", None)
    kind = MeasureKind.GPU if kind is None else kind.params.get("kind", MeasureKind.GPU)
    expected, trials = clean(kind)
    assert found(run(store, request=asked(kind))) == expected
    assert stored(store) == trials


# What happens once


# Each step and each mishap is there on each commit.
ONCE = [{"setup_1": "killed"}, {"measure_1": "device"}, {"race_1": "memory"}]
MORE = [{"setup_1": "device"}, {"measure_1": "killed"}, {"race_1": "killed"}]


@pytest.mark.parametrize("what", only(ONCE, [*ONCE, *MORE]), ids=str)
def test_what_befalls_the_gpu_s_process_once_is_not_noticed(store, mishaps, clean, what):
    suffer(mishaps, **what)
    report = run(store)
    assert found(report) == clean()[0]
    assert report.mishaps == []
    assert list(mishaps.iterdir()) == []


def test_a_stopped_process_is_given_up_after_its_limit(store, mishaps, clean):
    suffer(mishaps, measure_1="stopped", race_1="stopped")
    report = run(store, limits=ChildLimits(request_s=1, inputs_s=1, race_s=1))
    assert found(report) == clean()[0]
    assert report.mishaps == []


class Killing(Watcher):
    """Kills the processes that own the GPU, the spare one too, before any trial."""

    def __init__(self, workbench: Workbench) -> None:
        self._workers = workbench._workers

    def asked(self, fresh: object, stored: object) -> None:
        while self._workers:
            _, worker = self._workers.popitem()
            for child in (worker._child, worker._spare):
                os.kill(child._process.pid, signal.SIGKILL)
                os.waitid(os.P_PID, child._process.pid, os.WEXITED | os.WNOWAIT)


def test_processes_that_are_killed_while_they_idle_are_not_noticed(store, clean):
    report = run(store, Killing)
    assert found(report) == clean()[0]
    assert report.mishaps == []


# What happens twice


def default_at(size: int) -> str:
    """What the engine runs at a size, as `mishap_child` wants to have it named."""
    configs = {p.batch_size: c for p, c in prepare(asked()).goal(KnownBefore()).incumbents.items()}
    return f"{size}:{configs[size]['default'].key}"


def test_an_incumbent_that_was_lost_twice_was_not_compared(store, mishaps):
    suffer(mishaps, measure_1=f"device {default_at(8)}", measure_2=f"killed {default_at(8)}")
    report = run(store)
    first, other = report.entries
    assert (first.status, first.median_us) == (Status.INCUMBENT, None)
    assert first.config == first.incumbents["default"].config
    died = "crashed twice: the process ended (SIGKILL)"
    assert first.reason == f"the default configuration was not compared: {died}"
    assert other.status is Status.OK
    said = f"1 candidate was lost to mishaps, and the next run tries again: {died}"
    assert report.as_json()["mishaps"] == [said]
    assert said in " ".join(report.as_text().split())
    assert report.totals.extra["lost"] == 1
    kept = {one.entry.point: one for one in store.winners_in(BLOCKS, report.environment)}
    assert kept[first.point].entry.config == first.config


def test_a_python_error_is_its_candidate_s_and_costs_no_process(store, mishaps):
    suffer(mishaps, measure_1="error")
    report = run(store)
    assert report.totals.extra["children_replaced"] == 0
    (said,) = report.mishaps
    assert said.endswith("IndexError: list index out of range")


@pytest.mark.parametrize(
    ("what", "words"),
    only([("memory", OUT_OF_MEMORY)], [("killed", "SIGKILL"), ("memory", OUT_OF_MEMORY)]),
)
def test_races_that_fail_leave_the_times_of_the_search(store, mishaps, clean, what, words):
    suffer(mishaps, race_always=what)
    report = run(store)
    assert found(report) == clean()[0]  # a stand-in's times are the same in a race
    (said,) = report.mishaps
    assert said.startswith("2 of 2 points keep the times of the search, because their race failed")
    assert words in said


# A GPU that fails until its machine is booted again


def test_a_gpu_on_which_everything_fails_ends_the_run_with_its_words(store, mishaps):
    suffer(mishaps, measure_always="device")
    with pytest.raises(MeasurerFailed, match=f"candidates were lost .*twice: {WORDS}"):
        run(store)
    assert {t.measurement.status for t in stored(store)} == {Status.INCUMBENT, Status.UNSUPPORTED}


class Failing(Watcher):
    """Has the GPU fail from the second time on."""

    def __init__(self, mishaps: Path) -> None:
        self._mishaps, self._times = mishaps, 0

    def tried(self, trial: Trial) -> None:
        self._times += trial.measurement.timed
        if self._times == 2:
            suffer(self._mishaps, measure_always="device", setup_always="device")


def test_a_gpu_that_is_lost_ends_the_run_with_its_words(store, mishaps):
    with pytest.raises(MeasurerUnavailable, match=f"the GPU cannot be used: {WORDS}"):
        run(store, lambda _: Failing(mishaps))
    assert any(trial.measurement.timed for trial in stored(store))


# Compilers

KILLED_COMPILER = """
import os, signal, sys
if sys.orig_argv[-1] == "tuner.compile.worker":
    from mishap_child import mishap
    from tuner.compile import kernel
    compile_source = kernel.compile_source
    def suffering(*about):
        if mishap("compile"):
            os.kill(os.getpid(), signal.SIGKILL)
        return compile_source(*about)
    kernel.compile_source = suffering
"""


@pytest.fixture
def cache(tmp_path: Path, mishaps: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without kernels, for compile processes that suffer what is in the folder."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path/sitecustomize.py").write_text(KILLED_COMPILER)
    path = [str(tmp_path / "path"), os.environ["PYTHONPATH"]]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def missing(cache: Path, compile_cache: Path, clean) -> str:
    """The key of the only kernel that the cache lacks, which the engine runs."""
    for kind in KINDS:
        clean(kind)
    shutil.copytree(compile_cache / "compiled", cache / "compiled", dirs_exist_ok=True)
    prepared = prepare(asked())
    own = prepared.goal(KnownBefore()).incumbents[prepared.points[0]]["default"]
    bind = prepared.kernels.binder(BLOCKS, H200.target)
    kernel, binding = bind(Candidate(prepared.points[0], own))
    with Farm(1, cache_dir=cache) as farm:
        key = farm.key(CompileJob(kernel, binding.variant(), H200.target))
    (cache / "compiled" / key[:2] / f"{key}.json").unlink()
    return key


@pytest.mark.usefixtures("missing")
@pytest.mark.parametrize("kind", only([MeasureKind.PREDICT], KINDS))
def test_a_compiler_that_is_killed_once_is_not_noticed(store, mishaps, clean, kind):
    suffer(mishaps, compile_1="killed")
    report = run(store, request=asked(kind))
    assert found(report) == clean(kind)[0]
    assert report.mishaps == []
    assert list(mishaps.iterdir()) == []


@pytest.mark.usefixtures("missing")
@pytest.mark.parametrize("kind", only([MeasureKind.GPU], KINDS))
def test_an_incumbent_whose_compiler_was_killed_twice_was_not_compared(store, mishaps, kind):
    suffer(mishaps, compile_1="killed", compile_2="killed")
    report = run(store, request=asked(kind))
    first = report.entries[0]
    assert (first.status, first.median_us) == (Status.INCUMBENT, None)
    assert first.incumbents["default"].config == first.config
    assert "the default configuration was not compared: crashed twice: " in first.reason
    assert list(mishaps.iterdir()) == []


@pytest.mark.usefixtures("cache")
def test_compilers_that_are_always_killed_leave_no_verdict(store, mishaps):
    suffer(mishaps, compile_always="killed")
    with pytest.raises(MeasurerFailed, match=r"crashed twice: the process ended \(SIGKILL\)"):
        run(store)
    assert {trial.measurement.status for trial in stored(store)} == {Status.UNSUPPORTED}


# A `tuner` that was stopped while it compiles

STOPPED = """
import os, signal, sys
from pathlib import Path
from tuner.compile.results import ResultCache
with ResultCache(Path(sys.argv[1])).claim(sys.argv[2]) as mine:
    assert mine
    print("claimed", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_stopped_tuner_holds_up_no_other(store, clean, cache, missing, monkeypatch):
    said: list[str] = []
    given_up = Farm._given_up
    prepared = prepare(asked())
    command = [sys.executable, "-c", STOPPED, str(cache / "compiled"), missing]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as stopped,
        Workbench("mishap_child", compile_s=240) as workbench,
        closing(Progress(io.StringIO(), prepared.tries)) as progress,
    ):

        def and_say(self: Farm, key: str) -> bool:
            self._held_limit_s = float("inf")
            if self.waits:
                said.append(progress._text(79))
                self._held_limit_s = 0
            return given_up(self, key)

        monkeypatch.setattr(Farm, "_given_up", and_say)
        assert stopped.stdout is not None
        assert stopped.stdout.readline() == b"claimed\n"
        report = execute(prepared, open_source(asked(), workbench), store, progress)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)  # it still is
        stopped.kill()
    assert found(report) == clean()[0]
    assert said[0].endswith("waits for another process that compiles the rest")
