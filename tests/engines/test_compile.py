"""The compile farm: exact figures, statuses, the cache, and processes that never outlive it."""

import ast
import csv
import gzip
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from cases import FP8, FP8_RECORDING, INT8, config
from strata import of_each_kind
from tiers import only

from tuner.bindings.sglang.fused_moe.binding import lift_fused_moe
from tuner.compile import CompileJob, Farm, KernelCompiler, results
from tuner.compile.farm import triton_build
from tuner.compile.results import ResultCache, compile_code, default_cache_dir
from tuner.devices.table import find_device
from tuner.devices.target import cuda_target
from tuner.engines.engine import TritonRelease, find_engine
from tuner.errors import CompilerUnavailable, UnsupportedKernel
from tuner.families.fused_moe.problem import Gemm
from tuner.kernels.binding import Variant
from tuner.kernels.lift import Lifted
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate, Config, Point
from tuner.problems.registry import parse_problem
from tuner.problems.results import Compiled, Status
from tuner.tuning.request import Request, parse_source, prepare
from tuner.tuning.run import open_source

SMALL = config(16, 64, 64, 4, 2)
PROCESSES = 2


@pytest.fixture(scope="module")
def kernels():
    return lift_fused_moe(find_engine("sglang==0.5.16"))


def job(kernels, problem, gemm, config, arch, batch_size=64, **options):
    target = cuda_target(*divmod(arch, 10))
    binding = kernels.bind(problem, gemm, batch_size, config, target, **options)
    return CompileJob(kernels.lifted, binding.variant(), target)


def compiled(farm, *jobs):
    farm.submit(jobs)
    results = dict(farm.completed())
    return [results[job] for job in jobs]


def program(text):
    """A job whose lifted source does `text` when a worker loads it."""
    lifted = Lifted("test", text + "\n", {})
    return CompileJob(lifted, Variant("kernel", {}, {}, (), {}), cuda_target(8, 9))


def refused(text):
    """A job whose lifted source does `text` when a worker loads it. Triton refuses its kernel."""
    kernel = "@triton.jit\ndef kernel():\n    tl.static_assert(False, 'refused')"
    return program(f"{text}\nimport triton\nimport triton.language as tl\n{kernel}")


def tiny(number=0):
    """A job that compiles in no time."""
    kernel = f"@triton.jit\ndef kernel(to):\n    tl.store(to, {number})\n"
    lifted = Lifted("test", f"import triton\nimport triton.language as tl\n{kernel}", {})
    return CompileJob(lifted, Variant("kernel", {"to": "*i32"}, {}, (), {}), cuda_target(8, 9))


# Figures


def figures_kind(row):
    return row["gemm"], row["status"], row["n_spills"] != "0"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", only([6], [6, 200]))
def test_recorded_configs_compile_to_the_recorded_figures(farm, kernels, count):
    with gzip.open(FP8_RECORDING, "rt") as file:
        every = list(csv.DictReader(file))
    rows = random.Random(20261121).sample(every, 200)  # noqa: S311 (a draw, no secret)
    jobs = {}
    for row in of_each_kind(rows, figures_kind, count):
        names = [name for name in row if name.startswith(("BLOCK_", "GROUP_", "num_"))]
        tile = Config({name: int(row[name]) for name in names})
        jobs[job(kernels, FP8, Gemm(row["gemm"]), tile, 90, int(row["M"]))] = row
    farm.submit(jobs)
    seen = 0
    for done, found in farm.completed():
        row = jobs[done]
        assert found.shared_bytes == int(row["shared"]), row
        if row["status"] == "ok":  # the driver has figures of what it could load alone
            # Triton reports the driver's local memory in words of four bytes.
            found_bytes = (found.n_regs, found.n_spills)
            assert found_bytes == (int(row["n_regs"]), 4 * int(row["n_spills"])), row
        seen += 1
    assert seen == count


DTYPES = (
    *("bfloat16", "float16", "fp8_w8a8", "fp8_w8a8,per_channel_quant"),
    *("fp8_w8a8,block_shape=128x128", "int8_w8a8,per_channel_quant"),
    *("int8_w8a8,block_shape=128x128", "int8_w8a16"),
    *("int8_w8a16,block_shape=0x128", "int4_w4a16,block_shape=0x128"),
)


BOTH = tuple(Gemm)
EACH = [("0.5.23", 90, BOTH[:1]), ("0.5.23", 90, BOTH), ("0.5.12", 89, BOTH), ("0.5.16", 100, BOTH)]


@pytest.mark.parametrize(("version", "arch", "gemms"), only(EACH[:1], EACH))
def test_every_dtype_compiles(farm, version, arch, gemms):
    kernels = lift_fused_moe(find_engine(f"sglang=={version}"))
    jobs = [
        job(
            kernels,
            parse_problem(f"fused_moe:E=8,N=256,K=512,top_k=2,dtype={d}"),
            gemm,
            SMALL,
            arch,
        )
        for d in DTYPES
        for gemm in gemms
    ]
    assert [found.detail for found in compiled(farm, *jobs) if not found.ok] == []


@pytest.mark.parametrize("version", only(["0.5.23"], ["0.5.12", "0.5.16", "0.5.23"]))
def test_tma_compiles_for_down_and_its_up(farm, version):
    kernels = lift_fused_moe(find_engine(f"sglang=={version}"))
    down = job(kernels, FP8, Gemm.DOWN, SMALL.replace(USE_TMA=1), 90)
    up = job(kernels, FP8, Gemm.UP, SMALL, 90, sorted_output=True)
    assert [found.detail for found in compiled(farm, down, up)] == ["", ""]


def test_a_config_over_the_devices_limit_is_out_of_resources(farm, kernels):
    l40s, h200 = find_device("L40S"), find_device("H200")
    candidate = Candidate(Point(64, Gemm.UP), config(128, 256, 128, 8, 4))
    for device, status in ((l40s, Status.OUT_OF_RESOURCES), (h200, Status.OK)):
        compiler = KernelCompiler(farm, kernels.binder(FP8, device.target), device)
        compiler.submit([candidate])
        [(done, found)] = compiler.poll(wait=True)
        assert (done, found.status) == (candidate, status)
        assert ("limit 101,376" in found.detail) == (device is l40s)


def test_a_kernel_may_use_all_of_a_blocks_shared_memory():
    whole, over = Compiled(Status.OK, 101_376), Compiled(Status.OK, 101_377)
    assert whole.within(101_376) is whole
    refused = over.within(101_376)
    assert refused.status is Status.OUT_OF_RESOURCES
    assert refused.detail == "needs 101,377 bytes of shared memory, limit 101,376"


# What goes wrong


def test_what_the_compiler_refuses_is_a_compile_error_with_its_words(farm, kernels):
    odd = job(kernels, INT8, Gemm.UP, SMALL.replace(BLOCK_SIZE_N=48), 89)
    (found,) = compiled(farm, odd)
    assert found.status is Status.COMPILE_ERROR
    assert "power of 2" in found.detail
    assert "\n" not in found.detail
    with pytest.raises(UnsupportedKernel, match="sm_80 has no 8-bit floats"):
        job(kernels, FP8, Gemm.UP, SMALL, 80)


def test_what_kills_two_processes_is_lost_and_the_rest_go_on(tmp_path):
    dead = program("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    gone = program(
        "import os, sys\nsys.stderr.write('out of memory\\n')\nsys.stderr.flush()\nos._exit(3)"
    )
    with Farm(1, timeout_s=240, cache_dir=tmp_path) as farm:
        found = compiled(farm, dead, gone, tiny())
        assert [result.status for result in found] == [Status.CRASHED] * 2 + [Status.OK]
        assert found[0].detail == "crashed twice: the process ended (SIGSEGV)"
        assert "exit code 3" in found[1].detail
        assert "out of memory" in found[1].detail
        [again] = compiled(farm, dead)
        assert not again.cached  # a circumstance, not the kernel's nature


@pytest.mark.parametrize(("name", "timeout_s"), [("SIGKILL", 240), ("SIGSTOP", 4)])
def test_a_kernel_whose_process_was_lost_once_is_compiled_in_a_new_one(tmp_path, name, timeout_s):
    seen = tmp_path / "seen"
    lost = refused(
        "import os, signal\nfrom pathlib import Path\n"
        f"if not Path({str(seen)!r}).exists():\n"
        f"    Path({str(seen)!r}).touch()\n"
        f"    os.kill(os.getpid(), signal.{name})"
    )
    with Farm(1, timeout_s, tmp_path) as farm:
        [found] = compiled(farm, lost)
        assert (found.status, found.cached) == (Status.COMPILE_ERROR, False)
        assert "refused" in found.detail  # by the compiler
        [again] = compiled(farm, lost)
        assert again.cached
        assert farm.compiled == 1


def test_processes_that_are_killed_while_they_idle_cost_no_kernel(tmp_path):
    with Farm(1, timeout_s=240, cache_dir=tmp_path) as farm:
        assert compiled(farm, tiny(1))[0].ok
        [idle] = farm._idle
        os.kill(idle._process.pid, signal.SIGKILL)
        assert compiled(farm, tiny(2))[0].ok


def test_a_process_that_dies_while_it_starts_is_started_again(tmp_path, monkeypatch):
    (tmp_path / "path").mkdir()
    (tmp_path / "path/sitecustomize.py").write_text(
        "import os, sys\nfrom pathlib import Path\n"
        f"first = Path({str(tmp_path / 'first')!r})\n"
        "if not first.exists():\n    first.touch()\n    os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    with Farm(1, timeout_s=240, cache_dir=tmp_path) as farm:
        assert compiled(farm, tiny())[0].ok
    assert (tmp_path / "first").exists()


def test_a_compile_past_its_limit_is_ended_and_not_remembered(tmp_path):
    stuck = program("import time\ntime.sleep(3600)")
    with Farm(1, timeout_s=0.2, cache_dir=tmp_path) as farm:
        for _ in range(2):
            [found] = compiled(farm, stuck)
            assert (found.status, found.cached) == (Status.COMPILE_TIMEOUT, False)
            assert found.detail == "compile timeout twice: more than 0.2 s"
        assert farm.compiled == 2
        assert farm.compile_s >= 0.4


def test_without_triton_there_is_no_farm(monkeypatch, tmp_path):
    monkeypatch.setattr("tuner.engines.engine.find_spec", lambda name: None)
    with pytest.raises(CompilerUnavailable, match="not installed"):
        Farm(1, cache_dir=tmp_path)


def test_a_triton_that_does_not_start_is_said_with_its_words(monkeypatch, tmp_path):
    broken = tmp_path / "path" / "triton"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libcudart is missing')")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    with Farm(1, cache_dir=tmp_path) as farm:
        farm.submit([tiny()])
        with pytest.raises(CompilerUnavailable, match="libcudart is missing"):
            list(farm.completed())


def test_a_cache_folder_that_cannot_be_written_ends_the_run_with_a_clear_error(tmp_path):
    (tmp_path / "lifted").write_text("a file where the folder should be")
    with Farm(1, timeout_s=240, cache_dir=tmp_path) as farm:
        farm.submit([program("x = 1"), program("x = 2")])
        for _ in range(2):  # nobody who asks once more waits for ever
            with pytest.raises(CompilerUnavailable, match=r"cache folder .*TUNER_CACHE_DIR"):
                farm.poll(wait=True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}['absent']", r"KeyError: 'absent' \(lifted_\w+\.py:1\)"),  # before Triton's compiler
        ("x = 1", r"AttributeError: module 'lifted_\w+' has no attribute 'kernel' \(kernel\.py"),
        ("raise OSError(28, 'No space left on device')", ""),  # no fault of the kernel
    ],
)
def test_a_source_that_does_not_load_ends_the_run_and_is_not_remembered(tmp_path, text, why):
    with Farm(1, timeout_s=240, cache_dir=tmp_path) as farm:
        farm.submit([program(text)])
        for _ in range(2):
            says = rf"Triton 3\.6\.0 failed.*{why}.*report" if why else "No space left on device"
            with pytest.raises(CompilerUnavailable, match=says):
                farm.poll(wait=True)
        assert not list(tmp_path.glob("compiled/*/*"))


@pytest.fixture
def broken_reader(tmp_path, monkeypatch):
    """Compile processes in which the reader of cubins has a fault."""
    text = "import tuner.compile.cubin as cubin\ncubin.resources = lambda _: {}['.nv.info']\n"
    (tmp_path / "path").mkdir()
    (tmp_path / "path/sitecustomize.py").write_text(text)
    path = [str(tmp_path / "path"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))


def test_a_fault_of_this_program_is_no_verdict_on_a_kernel(tmp_path, broken_reader):
    good, bad = tiny(), refused("")
    with Farm(1, timeout_s=240, cache_dir=tmp_path) as farm:
        [found] = compiled(farm, bad)  # Triton refuses it before anything of ours is asked
        assert found.status is Status.COMPILE_ERROR
        farm.submit([good])
        with pytest.raises(CompilerUnavailable, match=r"KeyError: '\.nv\.info' \(sitecustomize"):
            farm.poll(wait=True)
        assert farm.failed
        kept = [path.stem for path in tmp_path.glob("compiled/*/*")]
        assert kept == [farm.key(bad)]


def test_a_process_that_cannot_be_started_ends_the_run(monkeypatch, tmp_path):
    def refuse(module, env):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("tuner.compile.farm.ChildProcess", refuse)
    with Farm(1, cache_dir=tmp_path) as farm:
        farm.submit([program("x = 1")])
        with pytest.raises(CompilerUnavailable, match="temporarily unavailable"):
            farm.poll(wait=True)


def test_an_error_that_nobody_foresaw_reaches_the_caller(monkeypatch, tmp_path):
    def fail(self, worker, job):
        raise KeyError("seconds")

    monkeypatch.setattr(Farm, "_compile", fail)
    with Farm(1, cache_dir=tmp_path) as farm:
        farm.submit([program("x = 1")])
        for _ in range(2):
            with pytest.raises(KeyError, match="seconds"):
                farm.poll(wait=True)


def test_there_is_a_process_for_each_core_that_may_be_used(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 9, 11})
    counts = [Farm(cache_dir=tmp_path, spare_cores=spare).processes for spare in (0, 1, 3)]
    assert counts == [3, 2, 1]
    assert Farm(5, cache_dir=tmp_path).processes == 5


@pytest.mark.parametrize(("measure", "processes"), [("predict", 3), ("gpu", 2)])
def test_a_run_leaves_the_process_that_owns_the_gpu_a_core(monkeypatch, measure, processes):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 9, 11})
    engine, card = find_engine("sglang==0.5.16"), find_device("L40S")
    request = Request(INT8, card, engine, parse_source(measure))
    monkeypatch.setattr(Workbench, "start", lambda *_: None)
    with Workbench() as workbench:
        source = open_source(request, workbench)
        if measure == "predict":
            source.bench(prepare(request))
        assert workbench._farm.processes == processes


# The cache


def test_a_result_that_the_cache_cannot_keep_is_not_lost(tmp_path):
    (tmp_path / "compiled").write_text("a file where the folder should be")
    with Farm(1, timeout_s=240, cache_dir=tmp_path) as farm:
        results = [compiled(farm, tiny())[0] for _ in range(2)]
    assert [(result.status, result.cached) for result in results] == [(Status.OK, False)] * 2


def test_a_write_that_fails_leaves_nothing_half_written(monkeypatch, tmp_path):
    def run_out(self, text):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", run_out)
    ResultCache(tmp_path / "compiled").put("a1", Compiled(Status.OK))
    with pytest.raises(OSError, match="No space left"):
        Lifted("test", "x = 1", {}).write(tmp_path / "lifted")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a1", "compiled", "lifted"]


def test_a_cached_result_starts_no_process_and_is_counted(tmp_path):
    wanted = tiny()
    with Farm(1, timeout_s=240, cache_dir=tmp_path) as farm:
        [first] = compiled(farm, wanted)
        assert (farm.compiled, farm.cached, first.cached) == (1, 0, False)
        assert farm.compile_s > 0
    with Farm(1, timeout_s=240, cache_dir=tmp_path) as farm:
        threads = threading.active_count()
        [second] = compiled(farm, wanted)
        assert threading.active_count() == threads
        assert (farm.compiled, farm.cached, second.cached) == (0, 1, True)
    assert second == replace(first, cached=True)
    assert second.n_regs > 0


def test_a_broken_cache_file_is_compiled_anew(tmp_path):
    wanted = tiny()
    with Farm(1, timeout_s=240, cache_dir=tmp_path) as farm:
        path = tmp_path / "compiled" / farm.key(wanted)[:2] / f"{farm.key(wanted)}.json"
        path.parent.mkdir(parents=True)
        path.write_text('{"status": "ok", "shared')
        [found] = compiled(farm, wanted)
        assert (found.status, found.cached) == (Status.OK, False)
        [found] = compiled(farm, wanted)
        assert found.cached


def test_equal_jobs_are_compiled_once(tmp_path, kernels):
    jobs = [job(kernels, INT8, Gemm.UP, SMALL, 89, m) for m in (2, 16, 4096)]
    with Farm(PROCESSES, timeout_s=240, cache_dir=tmp_path) as farm:
        found = compiled(farm, *jobs)
        assert (farm.compiled, farm.cached) == (1, 2)
    assert len({result.shared_bytes for result in found}) == 1


def test_the_key_holds_all_that_decides_a_result(tmp_path, monkeypatch, kernels):
    older = lift_fused_moe(find_engine("sglang==0.5.12"))
    with Farm(1, cache_dir=tmp_path) as farm:
        keys = {
            farm.key(job(kernels, INT8, Gemm.UP, SMALL, 89)),
            farm.key(job(kernels, INT8, Gemm.UP, SMALL, 90)),
            farm.key(job(kernels, INT8, Gemm.DOWN, SMALL, 89)),
            farm.key(job(kernels, INT8, Gemm.UP, SMALL.replace(num_stages=3), 89)),
            farm.key(job(older, INT8, Gemm.UP, SMALL, 89)),
        }
        monkeypatch.setattr("tuner.compile.farm.compile_code", lambda: "other")
        keys.add(farm.key(job(kernels, INT8, Gemm.UP, SMALL, 89)))
    assert len(keys) == 6


COMPILE = Path(results.__file__).parent


def imported(module):
    """The modules of `tuner.compile` that one of them imports, or reaches by its name alone."""
    tree = ast.parse((COMPILE / f"{module}.py").read_text())
    package = "tuner.compile"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == package:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{package}."):
            yield node.module.rpartition(".")[2]
        elif isinstance(node, ast.Constant) and str(node.value).startswith(f"{package}."):
            yield node.value.rpartition(".")[2]


def test_all_that_a_compile_process_runs_of_this_program_is_in_the_key(tmp_path):
    """So what an older version of it got wrong is compiled again."""
    ran, left = set(), {"worker"}
    while left:
        ran |= left
        left = {name for module in left for name in imported(module)} - ran
    assert {"worker", "kernel", "triton_3_1", "triton_3_3", "elf"} <= ran
    hashes = {compile_code()}
    for name in sorted(ran):
        changed = tmp_path / name
        shutil.copytree(COMPILE, changed, ignore=shutil.ignore_patterns("__pycache__"))
        assert compile_code(changed) == compile_code(), "the folder's place is in the hash"
        compile_code.cache_clear()
        with (changed / f"{name}.py").open("a") as file:
            file.write("# changed\n")
        hashes.add(compile_code(changed))
    assert len(hashes) == len(ran) + 1


def test_two_farms_that_share_a_folder_compile_each_kernel_once(tmp_path):
    jobs = [tiny(number) for number in (2, 3, 4)]
    with Farm(1, 240, tmp_path) as one, Farm(1, 240, tmp_path) as two:
        one.submit(jobs)
        two.submit(jobs)
        first, second = dict(one.completed()), dict(two.completed())
        assert one.compiled + two.compiled == len(jobs)
        assert one.cached + two.cached == len(jobs)
    assert first.keys() == second.keys() == set(jobs)
    assert all(result.ok for result in (*first.values(), *second.values()))


def test_a_kernel_is_compiled_by_whoever_holds_its_claim(tmp_path):
    one, two = ResultCache(tmp_path), ResultCache(tmp_path)
    key, other = "a" * 64, "b" * 64
    with one.claim(key) as mine, two.claim(key) as theirs, two.claim(other) as another:
        assert (mine, theirs, another) == (True, False, True)
    with two.claim(key) as mine:
        assert mine


@pytest.fixture
def held(tmp_path):
    """A farm that has done one of two kernels; another process has claimed the other one."""
    has, free = tiny(2), tiny(3)
    cache = ResultCache(tmp_path / "compiled")
    with Farm(1, 240, tmp_path) as farm, cache.claim(farm.key(has)):
        farm._held_limit_s = float("inf")
        farm.submit([has, free])
        [(done, found)] = farm.poll(wait=True)
        assert done == free
        yield farm, cache, has, found


def test_a_kernel_that_a_stopped_process_has_is_left_to_it_for_a_while(held):
    farm, _, has, _ = held
    assert farm.waits
    farm._held_limit_s = 0
    [(done, found)] = farm.poll(wait=True)
    assert (done, found.status, found.cached) == (has, Status.OK, False)
    assert not farm.waits


def test_a_kernel_that_somebody_else_did_not_wait_for_is_there_for_all(held):
    farm, cache, has, found = held
    cache.put(farm.key(has), found)
    [(done, again)] = farm.poll(wait=True)
    assert (done, again) == (has, replace(found, cached=True))


def test_without_locks_a_kernel_may_be_compiled_twice(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("tuner.compile.results.fcntl.fcntl", refuse)
    with ResultCache(tmp_path).claim("a" * 64) as mine:
        assert mine


def test_two_builds_of_one_triton_have_two_keys(tmp_path):
    builds = []
    for name in ("one", "other"):
        info = tmp_path / name / "triton-3.6.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: triton\nVersion: 3.6.0\n")
        (info / "RECORD").write_text(f"triton/compiler.py,sha256={name},1\n")
        builds.append(triton_build(TritonRelease("3.6.0", tmp_path / name)))
    assert len(set(builds)) == 2
    assert triton_build(TritonRelease("3.6.0", tmp_path)) == "3.6.0"


def test_the_users_triton_settings_and_cache_stay_out(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "theirs"))
    with Farm(1, timeout_s=240, cache_dir=tmp_path / "ours") as farm:
        [found] = compiled(farm, tiny())
    assert found.ok
    assert not (tmp_path / "theirs").exists()


def test_the_cache_folder_may_be_named(monkeypatch, tmp_path):
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("TUNER_CACHE_DIR")
    assert default_cache_dir().name == "tuner"


# Processes


class Watch:
    """Says when a worker that runs `text` is busy, and when that worker is gone."""

    def __init__(self, path):
        os.mkfifo(path)
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        hold = f"os.write(os.open({str(path)!r}, os.O_WRONLY), b'busy')"
        self.text = f"import os, time\n{hold}\ntime.sleep(3600)"

    def wait(self, expected):
        assert select.select([self.fd], [], [], 120)[0], "nothing happened in two minutes"
        assert os.read(self.fd, 16) == expected

    def wait_until_busy(self):
        self.wait(b"busy")

    def wait_until_gone(self):
        self.wait(b"")  # end of file: the last writer has ended


@pytest.fixture
def watch(tmp_path):
    watch = Watch(tmp_path / "fifo")
    yield watch
    os.close(watch.fd)


def zombies():
    """Ended children of this process that nobody has waited for."""
    children = Path("/proc/self/task").glob("*/children")
    pids = [pid for file in children for pid in file.read_text().split()]
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids]
    return states.count("Z")


def test_closing_ends_busy_workers_and_leaves_no_zombie(tmp_path, watch):
    farm = Farm(PROCESSES, cache_dir=tmp_path)
    farm.submit([program(watch.text)])
    watch.wait_until_busy()
    farm.close()
    watch.wait_until_gone()
    farm.close()
    assert zombies() == 0


def test_the_process_that_was_busy_last_gets_the_next_job(tmp_path):
    """A process takes a second to start, so jobs that come singly should not wake all of them."""
    seen = tmp_path / "seen"
    say = f"import os\nwith open({str(seen)!r}, 'a') as file: print(os.getpid(), file=file)"
    with Farm(3, cache_dir=tmp_path) as farm:
        compiled(farm, *(refused(f"{say}\n# {number}") for number in range(3)))
        seen.unlink()
        for number in range(3, 6):
            compiled(farm, refused(f"{say}\n# {number}"))
    assert len(set(seen.read_text().split())) == 1


def test_compile_processes_leave_cores_to_the_process_that_measures(tmp_path):
    seen, mine = tmp_path / "seen", os.getpriority(os.PRIO_PROCESS, 0)
    say = f"import os\nopen({str(seen)!r}, 'w').write(str(os.getpriority(os.PRIO_PROCESS, 0)))"
    with Farm(1, cache_dir=tmp_path) as farm:
        compiled(farm, refused(say))
    assert int(seen.read_text()) == min(19, mine + 5)


@pytest.mark.parametrize(
    "ending", only([signal.SIGKILL, signal.SIGINT], [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
)
def test_workers_end_with_their_parent(tmp_path, watch, ending):
    # A shell's background jobs, and all they start, ignore Ctrl-C until told otherwise.
    parent = f"""
import signal
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from tuner.compile import Farm, CompileJob
from tuner.devices.target import cuda_target
from tuner.kernels.binding import Variant
from tuner.kernels.lift import Lifted
lifted = Lifted("test", {watch.text!r}, {{}})
with Farm(1, cache_dir=Path({str(tmp_path)!r})) as farm:
    farm.submit([CompileJob(lifted, Variant("kernel", {{}}, {{}}, (), {{}}), cuda_target(8, 9))])
    list(farm.completed())
"""
    process = subprocess.Popen([sys.executable, "-c", parent], stderr=subprocess.PIPE)
    watch.wait_until_busy()
    process.send_signal(ending)
    process.communicate()
    assert process.returncode == -ending
    watch.wait_until_gone()


def test_the_cache_is_its_owner_s_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with Farm(cache_dir=tmp_path / "new" / "cache"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "cache").stat().st_mode & 0o777 == 0o700
