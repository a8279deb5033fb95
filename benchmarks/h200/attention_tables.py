"""The tables of "Attention on an H200" in docs/benchmarks.md, from benchmarks/results/h200/.

python benchmarks/h200/attention_tables.py
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tuner.families.attention.problem import Attention, parse_attention

RESULTS = Path(__file__).parents[1] / "results" / "h200"
NAMES = {
    "16/1 576/512": "DeepSeek, absorbed (16/1, 576/512)",
    "16/16 192/128": "DeepSeek, not absorbed (16/16, 192/128)",
    "32/8 128": "32/8, 128",
    "32/8 64": "32/8, 64",
    "32/4 128": "Qwen3-30B-A3B (32/4, 128)",
    "64/8 64": "gpt-oss (64/8, 64)",
}
Size = tuple[int, int, int]


def title(problem: Attention) -> str:
    columns = f"{problem.Lq}" if problem.Lq == problem.Lv else f"{problem.Lq}/{problem.Lv}"
    name = NAMES[f"{problem.q_heads}/{problem.kv_heads} {columns}"]
    traits = [f"window {problem.window}"] if problem.window else []
    return ", ".join([f"{problem.phase.value}: {name}", *traits])


def rows() -> list[dict[str, Any]]:
    """One a problem and point: both stages of decode added up."""
    through = {
        (r["problem"], r["batch_size"], r["new_tokens"], r["cached_tokens"]): r
        for r in json.loads((RESULTS / "attention_plugin.json").read_text())["rows"]
    }
    found = []
    for line in (RESULTS / "attention_reports.jsonl").read_text().splitlines():
        report = json.loads(line)
        points: dict[Size, list[dict[str, Any]]] = defaultdict(list)
        for e in report["entries"]:
            points[e["batch_size"], e["new_tokens"], e["cached_tokens"]].append(e)
        for size, entries in points.items():
            plugin = through.get((report["problem"], *size))
            found.append(
                {
                    "problem": parse_attention(report["problem"]),
                    "size": size,
                    "own": sum(e["incumbents"]["default"]["median_us"] for e in entries),
                    "tuned": sum(e["median_us"] for e in entries),
                    "plugin": plugin and plugin["engine_us"] / plugin["plugin_us"],
                    "config": "; ".join(f"{shown(e['config'])}" for e in entries),
                }
            )
    return found


def shown(config: dict[str, int]) -> str:
    blocks = "x".join(str(v) for k, v in sorted(config.items()) if k.startswith("BLOCK_"))
    rest = f"{config['num_warps']}w"
    if "num_stages" in config:
        rest += f" {config['num_stages']}s"
    return f"{blocks} {rest}".strip()


def table(head: Sequence[str], body: Iterable[Sequence[object]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in body:
        print("| " + " | ".join(map(str, row)) + " |")
    print()


def summary(found: list[dict[str, Any]]) -> None:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in found:
        problem = row["problem"]
        splits = f", {problem.kv_splits} splits" if problem.phase.value == "decode" else ""
        groups[title(problem) + splits].append(row)
    for phase in ("extend", "decode", "prefill"):
        groups[f"**all of {phase}**"] = [r for r in found if r["problem"].phase.value == phase]
    body = []
    for name, some in groups.items():
        gains = [r["own"] / r["tuned"] for r in some]
        plugins = [r["plugin"] for r in some if r["plugin"]]
        body.append(
            (
                name,
                len(some),
                f"{statistics.geometric_mean(gains):.3f}x",
                f"{min(gains):.3f}x",
                f"{statistics.geometric_mean(plugins):.3f}x" if plugins else "",
            )
        )
    table(("problem", "points", "gain, geomean", "least", "through the plugin, geomean"), body)


def points(found: list[dict[str, Any]]) -> None:
    table(
        ("problem", "batch x new + cached", "engine us", "tuned us", "gain", "plugin", "tuned to"),
        (
            (
                title(r["problem"])
                + (f", {r['problem'].kv_splits} splits" if r["size"][1] == 1 else ""),
                f"{r['size'][0]} x {r['size'][1]} + {r['size'][2]:,}",
                f"{r['own']:.1f}",
                f"{r['tuned']:.1f}",
                f"{r['own'] / r['tuned']:.3f}x",
                f"{r['plugin']:.3f}x" if r["plugin"] else "",
                r["config"],
            )
            for r in found
        ),
    )


def free_splits(found: list[dict[str, Any]]) -> None:
    """The same batch at each number of splits, beside the engine's 8."""
    by_size: dict[Size, dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in found:
        p = row["problem"]
        if p.phase.value == "decode" and (p.q_heads, p.kv_heads, p.Lq) == (32, 8, 128):
            by_size[row["size"]][p.kv_splits] = row
    counts = sorted({n for some in by_size.values() for n in some})
    head = ["batch x cached", *(f"{n} splits: engine -> tuned us" for n in counts)]
    body = []
    for size, some in sorted(by_size.items()):
        cells = [f"{some[n]['own']:.1f} -> {some[n]['tuned']:.1f}" for n in counts]
        best = min(r["tuned"] for r in some.values())
        cells.append(f"{some[8]['own'] / best:.2f}x")
        body.append([f"{size[0]} x {size[2]:,}", *cells])
    table([*head, "best over the engine's 8"], body)


def main() -> None:
    found = rows()
    summary(found)
    free_splits(found)
    points(found)
    host = json.loads((RESULTS / "attention_plugin.json").read_text())["rows"]
    for phase in ("extend", "decode"):
        some = [r for r in host if r["problem"].startswith(phase)]
        before, after = (
            statistics.median(r[name] for r in some) for name in ("host_us", "host_plugin_us")
        )
        print(f"{phase}: a call keeps the host {before:.1f} us, with the plugin {after:.1f} us")


if __name__ == "__main__":
    main()
