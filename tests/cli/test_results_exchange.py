"""Results of a machine give the same winners in another machine's store."""

import os
from dataclasses import replace

import pytest
from cases import H200
from commands import run

from tuner.compile import Farm
from tuner.engines.engine import find_engine
from tuner.measure.workbench import Workbench
from tuner.problems.points import Candidate
from tuner.problems.registry import families, family_of, parse_problem
from tuner.problems.results import Compiled, MeasureKind, Measurement, Status
from tuner.store.exchange import ResultExchange
from tuner.store.result_files import read_results, write_results
from tuner.store.results import ResultStore
from tuner.tuning.request import Effort, Request, Source, prepare
from tuner.tuning.run import SerialBench, compiler_of, execute
from tuner.tuning.tune import FixedStrategy

SGLANG, VLLM = "sglang==0.5.16", "vllm==0.33.0"
HEADS = "q_heads=8,kv_heads=2,Lq=128,Lv=128,dtype=bfloat16"
LAYER = "fused_moe:E=16,N=256,K=512,top_k=4,dtype=bfloat16"
PROMPTS = {"prompts": [{"sequences": 1, "tokens": 1000}, {"sequences": 2, "tokens": 512}]}
EXTEND = {"workload": [{"batch_size": 3, "new_tokens": 100, "cached_tokens": 50}]}
DECODE = {"workload": [{"batch_size": 3, "cached_tokens": n} for n in (700, 9000)]}
# A problem, an engine, and points that are not the family's default points, for each run.
RUNS = [
    (LAYER, SGLANG, {"batch_sizes": [7, 96]}),
    (LAYER, SGLANG, {"batch_sizes": [33], "gemms": ["up"]}),
    (f"extend_attention:{HEADS}", SGLANG, EXTEND),
    (f"decode_attention:{HEADS}", SGLANG, DECODE),
    (f"decode_attention:{HEADS},kv_splits=8", SGLANG, DECODE),
    ("block_gemm:N=1536,K=2048,dtype=fp8_w8a8,block=128x128", SGLANG, {"batch_sizes": [7, 96]}),
    ("gated_delta:key_heads=2,value_heads=4,key_dim=128,value_dim=128", SGLANG, PROMPTS),
    # This engine chooses among a list, at its first prompt.
    ("chunk_scan:heads=8,head_dim=64,groups=1,state_size=128,chunk_size=128", VLLM, PROMPTS),
]


class FakeFarm(Farm):
    """Compile processes that compile nothing: all that a launcher takes fits."""

    def submit(self, jobs):
        self._ready += [(job, Compiled(Status.OK, shared_bytes=1024)) for job in jobs]


class FakeTimes:
    """A GPU whose times depend on the candidate alone."""

    opening, backends, routing_sha256 = "", None, ""

    def __init__(self, request, workbench):
        self.workbench = workbench

    def bench(self, prepared):
        self.compiler = compiler_of(prepared, self.workbench.farm(0, None))
        return SerialBench(self.compiler, self, prepared.points)

    def measure(self, candidate, compiled):
        odd = sum(number * (at + 7) % 37 for at, number in enumerate(candidate.config.values()))
        return Measurement(Status.OK, candidate.point.batch_size + odd)

    def environment(self):
        return {"torch": "2.9.0", "cuda": "13.0", "driver": "580.1"}


@pytest.fixture(scope="module")
def farm(tmp_path_factory):
    return FakeFarm(1, cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def given(farm, tmp_path_factory):
    """The winners of a store, by engine, and the file of each engine."""
    url = f"sqlite:///{tmp_path_factory.mktemp('there')}/tuner.db"
    with pytest.MonkeyPatch.context() as patch, ResultStore.open(url) as store:
        fake_machine(patch, farm)
        for spec, engine, fields in RUNS:
            tune(store, spec, engine, fields)
        winners = {engine: winners_of(store, engine) for engine in (SGLANG, VLLM)}
    words = ("results", "export", "--device", "H200", "--out", tmp_path_factory.mktemp("out"))
    env = {**os.environ, "TUNER_DATABASE_URL": url}
    done = [run(*words, "--engine", engine, env=env, code=0) for engine in winners]
    return winners, [one.stdout.strip() for one in done]


def fake_machine(patch, farm):
    patch.setenv("TUNER_SHELF", "")
    patch.setattr("tuner.tuning.run.GpuTimes", FakeTimes)
    patch.setattr("tuner.measure.workbench.Workbench.farm", lambda *_: farm)


@pytest.fixture(autouse=True)
def here(monkeypatch, farm, env):
    """The variables of commands on a machine without a GPU."""
    fake_machine(monkeypatch, farm)
    monkeypatch.setattr("tuner.devices.here.gpu_of_kind", lambda card: None)
    return {**env, "TUNER_SHELF": ""}


def tune(store, spec, engine, fields):
    """Tune a problem at the points that the fields name, with few candidates."""
    problem = parse_problem(spec)
    selection = family_of(problem).read_selection(problem, fields)
    wide, source = False if spec == LAYER else None, Source(MeasureKind.GPU)
    asked = Request(problem, H200, find_engine(engine), source, selection, Effort.QUICK, wide)
    prepared = prepare(asked)
    some = {part: space.configs()[:3] for part, space in prepared.spaces.items()}
    few = [Candidate(point, one) for point in prepared.points for one in some[point.part]]
    with Workbench() as workbench:
        quick = replace(prepared, strategy=lambda _: FixedStrategy(few))
        return execute(quick, FakeTimes(asked, workbench), store)


def winners_of(store, engine):
    found = find_engine(engine)
    return store.winners(device=H200.name, engine=found.name, engine_version=found.version)


def stored(env, engine):
    with ResultStore.open(env["TUNER_DATABASE_URL"]) as store:
        return winners_of(store, engine)


def test_every_family_is_asked_for():
    assert {family_of(parse_problem(spec)) for spec, *_ in RUNS} == set(families())


def test_an_import_has_the_winners_of_the_export(here, given, subtests):
    winners, files = given
    run("results", "import", *files, env=here, code=0)
    for engine, theirs in winners.items():
        mine = stored(here, engine)
        assert [one.problem for one in mine] == [one.problem for one in theirs]
        for problem in dict.fromkeys(one.problem for one in theirs):
            with subtests.test(problem.spec()):
                told, found = (
                    [(one.environment, one.entry) for one in some if one.problem == problem]
                    for some in (theirs, mine)
                )
                assert found == told


def test_a_machine_with_the_card_chooses_the_same(here, given, monkeypatch, subtests):
    monkeypatch.setattr("tuner.devices.here.gpu_of_kind", lambda card: "0")
    winners, files = given
    done = run("results", "import", *files, env=here, code=0)
    assert done.stdout.count("measured again here, and stored") == len(RUNS)
    for engine, theirs in winners.items():
        mine = {(one.problem, one.entry.point): one.entry for one in stored(here, engine)}
        for one in theirs:
            with subtests.test(f"{one.problem.spec()} {one.entry.point}"):
                found = mine[one.problem, one.entry.point]
                assert replace(found, reason="") == replace(one.entry, reason="")


def layer_of(files, sizes):
    """The first result of the layer, with the entries of some sizes."""
    one = next(one for one in read_results(files[0]) if one.key.problem.spec() == LAYER)
    return replace(one, entries=tuple(e for e in one.entries if e.point.batch_size in sizes))


def test_sizes_that_the_store_has_measured_stay_and_others_are_taken(here, given, tmp_path):
    _, files = given
    for name, sizes in (("first", (7,)), ("later", (7, 96))):
        result = layer_of(files, sizes)
        slower = tuple(replace(e, median_us=len(sizes) * e.median_us) for e in result.entries)
        (path,) = write_results(tmp_path / name, [replace(result, entries=slower)])
        done = run("results", "import", path, env=here, code=0)
        assert "2 entries stored" in done.stdout
    done = run("results", "import", path, env=here, code=0)
    assert "left out: the store has measured entries of its own" in done.stdout
    mine = {one.entry.point: one.entry.median_us for one in stored(here, SGLANG)}
    said = {entry.point: entry.median_us for entry in layer_of(files, (7, 96)).entries}
    assert mine == {point: us * (1 + (point.batch_size == 96)) for point, us in said.items()}


@pytest.mark.parametrize("change", [{"engine_version": "0.5.15"}, {"triton": "3.5.1"}])
def test_results_of_other_kernels_are_no_own_results(tmp_path, given, change):
    """An engine's releases may share their source, and a source may run with several Tritons."""
    result = layer_of(given[1], (7, 96))
    place = replace(result.key.environment, **change)
    other = replace(result, key=replace(result.key, environment=place))
    with ResultExchange.open(f"sqlite:///{tmp_path}/tuner.db") as store:
        store.add(other)
        assert store.unmeasured(result) == result
        assert store.unmeasured(other) is None
