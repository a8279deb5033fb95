"""docs/operations.md has the figures of the last runs of its commands, and each setting."""

from __future__ import annotations

import json
import re

from cases import ROOT

from api.settings import read_api_settings

PAGE = (ROOT / "docs" / "operations.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"


def said(title: str) -> str:
    """The text of a section in one line."""
    return " ".join(PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0].split())


def test_the_figures_of_attacks():
    measured = json.loads((RESULTS / "attacks.json").read_text())["rows"]
    assert not [row for row in measured if row["health failed"] or row["list failed"]]
    quiet, attacked = (
        [
            max(row[key] for row in measured if (row["attack"] == "nothing") is alone)
            for key in ("health p99", "list p99")
        ]
        for alone in (True, False)
    )
    assert (
        f"At p99, `/healthz` took at most {attacked[0]} ms and the list of jobs {attacked[1]} ms; "
        f"without an attack {quiet[0]} and {quiet[1]} ms" in said("Attacks and chaos")
    )


def test_the_figures_of_chaos_tests():
    harm, waits = [], []
    for name in ("chaos.json", "chaos-sqlite.json"):
        figures = json.loads((RESULTS / name).read_text())
        for never in (
            "accepted jobs lost",
            "jobs created twice for one key",
            "results published twice",
            "stored trials measured again",
        ):
            assert figures[never].startswith("**0**")
        harm.append((figures["harm to processes"].partition(" ")[0], f"{int(figures['jobs']):,}"))
        wait = re.search(r"p99 \*\*(\S+) s", figures["until a job is queued again: kill worker"])
        assert wait
        waits.append(wait[1])
    page = said("Attacks and chaos")
    assert (
        f"harmed processes {harm[0][0]} times during {harm[0][1]} jobs on PostgreSQL, and "
        f"{harm[1][0]} times during {harm[1][1]} jobs on SQLite." in page
    )
    assert f"after {waits[0]} s on PostgreSQL and {waits[1]} s on SQLite" in page


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
