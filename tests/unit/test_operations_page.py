"""docs/operations.md has the figures of the last runs of its commands, and each setting."""

from __future__ import annotations

import json
import re

from cases import ROOT

from api.settings import read_api_settings

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


def test_each_setting_of_the_service_is_listed():
    asked = set()

    class Environ(dict[str, str]):
        def get(self, name: str, default: str | None = None) -> str | None:
            asked.add(name)
            return default

    read_api_settings(Environ())
    section = PAGE.partition("\n## Settings\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`(TUNER_\w+)`", section))
    assert {name for name in asked if not name.endswith("_FILE")} <= listed
