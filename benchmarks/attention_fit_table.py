"""Does an engine's own choice for attention fit? Over engine versions, GPUs and models.

Run from the repository's root:
    .venv/bin/python benchmarks/attention_fit_table.py [OUT.json]
Prints the table of docs/benchmarks.md; compiles about 250 kernels, which needs no GPU.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tuner.compile.environment import triton_for
from tuner.devices.table import find_device
from tuner.engines.engine import find_engine
from tuner.errors import UnsupportedKernel
from tuner.families.attention.check import check_problems
from tuner.families.attention.models import resolve
from tuner.families.attention.problem import Attention
from tuner.models.serving import Serving

RESULT = Path("benchmarks/results/attention_fit.json")
VERSIONS = ("0.4.4", "0.5.2", "0.5.12", "0.5.16", "0.5.23")
# One for each architecture: its other cards have the same limit, and the same code.
DEVICES = {
    "A100": "A100",
    "L40S": "L40S, RTX 4090",
    "H200": "H20, H200",
    "B200": "B200",
    "RTX PRO 6000": "RTX PRO 6000",
}
MODELS = (("deepseek-r1", 8), ("qwen3-30b-a3b", 1), ("gpt-oss-20b", 1))

Row = dict[str, Any]


def main() -> None:
    rows = list(measure())
    for line in markdown(rows):
        print(line)
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT
    tritons = {v: triton_for(find_engine(f"sglang=={v}")).version for v in VERSIONS}
    result = {"triton": tritons, "rows": rows}
    out.write_text(json.dumps(result, indent=1) + "\n")


def measure() -> Iterator[Row]:
    for version, name, (model, tp) in itertools.product(VERSIONS, DEVICES, MODELS):
        device, engine = find_device(name), find_engine(f"sglang=={version}")
        resolved = resolve(model, Serving(engine_version=version, device=device, tp=tp))
        for problem in resolved.problems:
            about = {"engine": version, "device": name, "model": model, "shape": shape(problem)}
            try:
                report = check_problems([problem], device, engine)
            except UnsupportedKernel as refusal:
                part = problem.parts[0].value
                yield {**about, "part": part, "status": "unsupported", "detail": str(refusal)}
                continue
            for entry in report.as_json()["entries"]:
                yield {**about, **entry}
        print(f"{version} {name} {model}", file=sys.stderr, flush=True)


def shape(problem: Attention) -> str:
    heads = f"{problem.q_heads}/{problem.kv_heads} x {problem.Lq}"
    values = f":{problem.Lv}" if problem.Lv != problem.Lq else ""
    window = f" window {problem.window}" if problem.window else ""
    return heads + values + window


def markdown(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each kernel and each run of versions that agree about it."""
    yield "| kernel | sglang | " + " | ".join(DEVICES.values()) + " |"
    yield "|---" * (2 + len(DEVICES)) + "|"
    for key in dict.fromkeys((r["model"], r["shape"], r["part"]) for r in rows):
        if key[2] == "reduce":
            continue  # no shared memory to speak of, anywhere
        cells = {
            version: tuple(
                cell(r)
                for name in DEVICES
                for r in rows
                if (r["model"], r["shape"], r["part"]) == key
                and (r["engine"], r["device"]) == (version, name)
            )
            for version in VERSIONS
        }
        for same, group in itertools.groupby(VERSIONS, key=lambda version: cells[version]):
            versions = list(group)
            span = versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
            yield f"| {key[0]} {key[2]} {key[1]} | {span} | " + " | ".join(same) + " |"


def cell(row: Row) -> str:
    if row["status"] == "unsupported":
        return "-"
    if row["shared_bytes"] is None:
        return "**does not compile**"
    config = row["config"]
    tile = config.get("BLOCK_M", config.get("BLOCK_H", 1))
    text = f"{tile}x{config['BLOCK_N']}: {row['shared_bytes']:,}"
    return text if row["fits"] else f"**{text}, limit {row['limit_bytes']:,}**"


if __name__ == "__main__":
    main()
