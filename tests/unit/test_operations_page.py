"""The figures of docs/operations.md are those of the last runs of its commands."""

import json
import re

from cases import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, without the head."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    _, _, *lines = re.findall(r"^\| (.+) \|$|^\|---.*", section, re.MULTILINE)
    return [line.split(" | ") for line in lines]


def test_the_table_of_attacks():
    measured = json.loads((RESULTS / "attacks.json").read_text())["rows"]
    shown = {name: (health, jobs) for name, health, jobs in rows("Limits and attacks")}
    assert list(shown) == list(dict.fromkeys(row["attack"] for row in measured))
    for name, cells in shown.items():
        of_attack = [row for row in measured if row["attack"] == name]
        p99 = (max(row[key] for row in of_attack) for key in ("health p99", "list p99"))
        assert cells == tuple(f"{ms:.1f}" for ms in p99)
    assert not [row for row in measured if row["health failed"] or row["list failed"]]


def test_the_table_of_chaos_tests():
    stores = [
        json.loads((RESULTS / name).read_text()) for name in ("chaos.json", "chaos-sqlite.json")
    ]
    shown = rows("What chaos tests promise")
    assert len(shown) > 5
    for what, *cells in shown:
        for cell, figures in zip(cells, stores, strict=True):
            assert cell in figures[what]
