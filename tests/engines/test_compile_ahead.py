"""What is compiled before it is asked for, and kernels that belong to one candidate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gemm_cases import BLOCKS, point, tile
from test_compile import refused

from tuner.compile import CompileJob, Farm, KernelCompiler
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.problems.points import Candidate
from tuner.problems.results import Compiled, Status


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    with Farm(1, timeout_s=240, cache_dir=tmp_path / "cache") as opened:
        yield opened


class Log:
    """Jobs that write their names to a file when a worker loads them, then fail to compile."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def job(self, name: str) -> CompileJob:
        return refused(f"open({str(self._path)!r}, 'a').write({name + ' '!r})")

    @property
    def names(self) -> list[str]:
        return self._path.read_text().split()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


def finished(farm: Farm) -> list[Compiled]:
    return [compiled for _, compiled in farm.completed()]


def test_what_is_asked_for_comes_before_what_is_compiled_ahead(farm: Farm, log: Log) -> None:
    farm.compile_ahead(log.job(name) for name in "abcdefgh")
    farm.submit([log.job("x"), log.job("h")])
    assert [compiled.status for compiled in finished(farm)] == [Status.COMPILE_ERROR] * 2
    # One job may have been under way.
    assert [name for name in log.names if name in "xh"] == ["x", "h"]
    assert len(log.names) <= 4


def test_nobody_waits_for_what_is_compiled_ahead(farm: Farm, log: Log) -> None:
    farm.compile_ahead([log.job("a")])
    assert farm.poll(wait=True) == []


def test_what_was_compiled_ahead_is_not_compiled_again(farm: Farm, log: Log) -> None:
    farm.compile_ahead([log.job("a"), log.job("a")])
    farm.submit([log.job("b")])  # its own process takes them in turn, so "a" may come first
    finished(farm)
    farm.submit([log.job("a")])
    assert len(finished(farm)) == 1
    farm.submit([log.job("a")])
    (again,) = finished(farm)
    assert again.cached
    assert sorted(log.names) == ["a", "b"]
    assert farm.compiled == 2


class TestCompanions:
    """sglang 0.5.23 adds up the parts of a split in a second kernel."""

    @pytest.fixture
    def compiler(self, farm: Farm) -> KernelCompiler:
        h100 = find_device("H100")
        kernels = gemm_engine(find_engine("sglang==0.5.23")).lift()
        bind = kernels.binder(BLOCKS, h100.target)
        return KernelCompiler(farm, bind, h100, kernels.companions(BLOCKS, h100.target))

    def test_a_candidate_is_ready_when_all_its_kernels_are(self, compiler: KernelCompiler) -> None:
        split = tile(16, 64, stages=3, group=1).replace(SPLIT_K=2)
        wide = tile(16, 128, stages=3, group=1).replace(SPLIT_K=2)
        asked = [Candidate(point(24), split), Candidate(point(24), wide)]
        compiler.submit(asked)
        found: dict[Candidate, Compiled] = {}
        while some := compiler.poll(wait=True):
            found |= dict(some)
        assert set(found) == set(asked)
        # The candidate's figures are its own kernel's: the other one needs hardly any memory.
        assert all(one.ok and one.shared_bytes > 16 * 128 for one in found.values())
        assert compiler.compiled_count == 3  # the second kernels are one
        assert compiler.cached_count == 1

    def test_a_candidate_cannot_run_if_a_further_kernel_cannot(self, farm: Farm) -> None:
        l40s = find_device("L40S")
        bind = gemm_engine(find_engine("sglang==0.5.16")).lift().binder(BLOCKS, l40s.target)
        fits = Candidate(point(24), tile(16, 32, group=1))
        too_large = Candidate(point(24), tile(128, 128, stages=5))
        compiler = KernelCompiler(farm, bind, l40s, lambda _: [bind(too_large)])
        compiler.submit([fits])
        ((candidate, found),) = compiler.poll(wait=True)
        assert (candidate, found.status) == (fits, Status.OUT_OF_RESOURCES)

    def test_compilers_of_one_farm_count_their_own_kernels(
        self, farm: Farm, compiler: KernelCompiler
    ) -> None:
        l40s = find_device("L40S")
        kernels = gemm_engine(find_engine("sglang==0.5.16")).lift()
        other = KernelCompiler(farm, kernels.binder(BLOCKS, l40s.target), l40s)
        for one in (compiler, other):
            one.submit([Candidate(point(24), tile(16, 32, group=1))])
            assert len(one.poll(wait=True)) == 1
            assert one.compiled_count == 1
        assert farm.compiled == 2
