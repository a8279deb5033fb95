"""The layout that docs/architecture.md draws: few packages at the top, and no circle of imports."""

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]


def test_few_modules_lie_at_the_top():
    found = [
        p for p in (ROOT / "tuner").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    ]
    names = sorted(p.stem for p in found if p.stem != "__init__")
    assert 10 < len(names) <= 25, names


def test_no_circle_of_imports_not_even_for_types_alone():
    graph = grimp.build_graph("tuner", "api", "workers", exclude_type_checking_imports=False)
    assert len(graph.modules) > 200
    sorter = TopologicalSorter(
        {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    )
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_map_names_every_package():
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawn = set(re.findall(r"^\| `tuner/(\w+)(?:/|\.py)", page, re.M))
    there = {p.stem for p in (ROOT / "tuner").iterdir() if (p / "__init__.py").exists()}
    assert there <= drawn


def test_the_files_that_the_map_names_are_there():
    page = (ROOT / "docs" / "architecture.md").read_text()
    tops = "api|benchmarks|migrations|tests|tuner|workers"
    named = re.findall(rf"`((?:{tops})/[\w/.]+)`", page)
    assert len(named) > 60
    assert [one for one in named if not (ROOT / one).exists()] == []


def test_the_licence_is_in_the_checkout_and_in_the_wheel():
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    assert 'license = "Apache-2.0"\nlicense-files = ["LICENSE"]\n' in project
