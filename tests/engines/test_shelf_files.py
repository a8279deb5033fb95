"""The shelf's files: the index and the config files follow from them, and no entry is a loss."""

import json

import pytest
from benchmark_scripts import load_script
from cases import ROOT
from tiers import only

from tuner.engines.engine import engine_triton, find_engine, kernel_hash
from tuner.problems.registry import family_of
from tuner.problems.results import MISHAPS, MeasureKind
from tuner.store.result_files import read_results
from tuner.store.shelf import SHIPPED
from tuner.tuning.gains import NOISE, gains

PLAIN = ROOT / "configs_out"
FILES = sorted(path.relative_to(SHIPPED).as_posix() for path in SHIPPED.glob("*/*.jsonl.gz"))
ROWS = [json.loads(line) for line in (PLAIN / "index.jsonl").read_text().splitlines()]
MOST_BYTES = 8e6


def files_below(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.json")}


@pytest.mark.parametrize("name", only(FILES[:1], FILES))
def test_the_index_and_the_config_files_follow_from_the_results(tmp_path, name):
    script = load_script("shelf_files.py")
    folder = name.removesuffix(".jsonl.gz")
    rows = list(script.write_release(read_results(SHIPPED / name), tmp_path, folder))
    results = {one.key.problem.spec() for one in read_results(SHIPPED / name)}
    mine = [row for row in ROWS if f"{row['card']}/{row['engine']}".replace("==", "-") in name]
    assert rows == mine
    assert {row["problem"] for row in rows} == results
    assert files_below(tmp_path / folder) == files_below(PLAIN / folder)


def test_the_index_has_every_file_and_all_is_small():
    paths = {file for row in ROWS for file in row["files"]}
    cards = [PLAIN / folder.name for folder in SHIPPED.iterdir()]  # an export may lie beside them
    found = [path for card in cards for path in card.rglob("*.json")]
    assert paths == {path.relative_to(PLAIN).as_posix() for path in found}
    assert sum(path.stat().st_size for path in [*found, *SHIPPED.rglob("*.gz")]) < MOST_BYTES


@pytest.mark.parametrize("name", FILES)
def test_results_are_measured_for_the_kernels_of_engines_and_never_slower(name):
    found = read_results(SHIPPED / name)
    assert len({one.key.problem for one in found}) == len(found)
    places = {one.key.environment for one in found}
    (spec,) = {f"{place.engine}=={place.engine_version}" for place in places}
    engine = find_engine(spec)
    assert {place.triton for place in places} == {engine_triton(engine)}
    assert "" not in {place.driver for place in places}
    kernels = {(family_of(one.key.problem).name, one.key.environment.kernel_hash) for one in found}
    assert kernels == {(family, kernel_hash(engine, family)) for family, _ in kernels}
    assert {one.key.measure for one in found} == {MeasureKind.GPU}
    assert not {entry.status for one in found for entry in one.entries} & MISHAPS
    slower = [
        (one.key.problem.spec(), gain)
        for one in found
        for gain in gains(one.entries)
        if gain.ratio < 1 - NOISE
    ]
    assert not slower
