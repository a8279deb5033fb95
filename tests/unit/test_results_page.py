"""What pages say of the files that come with this program is what their index says."""

import json
import re

from cases import ROOT

from tuner.render import gain_text
from tuner.tuning.gains import mean_gain

INDEX = (ROOT / "configs_out" / "index.jsonl").read_text().splitlines()
ROWS = [row for row in map(json.loads, INDEX) if row["gain"]]


def span(gains: list[float]) -> str:
    return f"{gain_text(min(gains))} to {gain_text(max(gains))}"


def test_the_table_of_measured_files():
    page = (ROOT / "docs" / "results.md").read_text()
    section = page.partition("\n## Measured files that come")[2].partition("\n## ")[0]
    _, _, *shown = re.findall(r"^\| (.+) \|$|^\|---.*", section, re.MULTILINE)
    kinds = dict.fromkeys((row["card"], row["engine"], row["triton"]) for row in ROWS)
    made = []
    for card, engine, triton in kinds:
        rows = [row for row in ROWS if (row["card"], row["engine"]) == (card, engine)]
        over = [row["gain_over_shipped"] for row in rows if row["gain_over_shipped"]]
        gains = [row["gain"] for row in rows]
        name, version = engine.replace("vllm", "vLLM").split("==")
        cells = (
            card.removeprefix("NVIDIA_").replace("_", " "),
            f"{name} {version}, {triton}",
            str(len(rows)),
            f"{gain_text(mean_gain(gains))} ({span(gains)})",
            f"{len(over)} layers: {gain_text(mean_gain(over))} ({span(over)})",
        )
        made.append(" | ".join(cells))
    assert sorted(shown) == sorted(made)


def test_the_gains_of_fused_moe():
    page = (ROOT / "docs" / "kernels.md").read_text()
    gains = [row["gain"] for row in ROWS]
    assert f"{span(gains)} for {len(gains)} layers of common models on H100 and H200" in page
