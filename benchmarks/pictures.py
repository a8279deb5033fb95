"""Draw measured results of benchmarks/results, for the README and the documents. Needs no GPU.

python benchmarks/pictures.py                 # writes docs/pictures/
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from textwrap import wrap
from typing import Any

from tuner.devices.table import find_device
from tuner.draw.chart import WIDTH, Row, draw_rows
from tuner.draw.shapes import Colour, Drawing, Line, Shape, Text, svg_text
from tuner.engines.dispatch import what_runs
from tuner.pictures.rows import rows_of, summary_line
from tuner.pictures.write import problem_charts, title_of
from tuner.problems.points import Config, Point
from tuner.problems.registry import parse_problem, read_part
from tuner.problems.results import Compiled, Entry, Environment, Incumbent, Status, Winner
from tuner.tuning.gains import with_backends

ROOT = Path(__file__).parents[1]
NODE, MODELS = 8, 20  # cards of a node; models of a picture
RESULTS = ROOT / "benchmarks" / "results"
OUT = ROOT / "docs" / "pictures"


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    for name, data in pictures().items():
        (OUT / name).write_bytes(data)
        print(OUT / name)


def pictures() -> dict[str, bytes]:
    """The documents' pictures by the names of their files."""
    report = json.loads((RESULTS / "h200/e256n64int8.json").read_text())  # of `tuner tune --json`
    found = {
        "moe-h200": drawing(report),
        "shelf-h100": shelf_drawing("NVIDIA_H100_80GB_HBM3", "sglang==0.5.16"),
    }
    return {f"{name}.svg": svg_text(one).encode() for name, one in found.items()}


def drawing(report: Mapping[str, Any]) -> Drawing:
    card, winners = find_device(report["device"]), winners_of(report)
    problem = winners[0].problem
    title = f"{title_of(problem)} on {card.name}"
    engine = report["engine"].replace("==", " ")
    about = f"{engine}, Triton {report['environment']['triton']}. {summary_line(winners)}."
    charts = problem_charts(rows_of(problem, winners, card))
    return stack([heading(title, about, WIDTH), *charts], title)


def shelf_drawing(card: str, engine: str) -> Drawing:
    """Draw the gains of the files of configs_out for the first models of its index."""
    rows = map(json.loads, (ROOT / "configs_out" / "index.jsonl").read_text().splitlines())
    gains: dict[str, tuple[int, Row]] = {}  # by model: its most cards of one node
    for row in rows:
        if (row["card"], row["engine"]) == (card, engine) and row["gain"]:
            for model, tp in (one.split(" tp ") for one in row["models"] if " ep " not in one):
                shipped = row["gain_over_shipped"]
                over = f"{shipped:.2f}x over file" if shipped else "no file"
                drawn = Row(f"{model} tp {tp}", over, row["gain"])
                if int(tp) <= NODE and int(tp) > gains.get(model, (0, drawn))[0]:
                    gains[model] = int(tp), drawn
    some = sorted((drawn for _, drawn in gains.values()), key=lambda one: -(one.gain or 0))
    chosen = [some[at * len(some) // MODELS] for at in range(min(MODELS, len(some)))]
    mean = math.exp(sum(math.log(one.gain or 1) for one in some) / len(some))
    title = f"Files for {len(some)} models: {mean:.2f}x on average"
    about = (
        f"{card}, {engine.replace('==', ' ')}. Each gain is that of a fused-MoE layer alone: the "
        "geometric mean over its sizes, over what servers run without these files. Here are "
        f"{len(chosen)} of the models, from the greatest gain to the least. “No file”: the release "
        "has none for this card."
    )
    return stack([heading(title, about, WIDTH), draw_rows("", chosen)], title)


def stack(drawings: Sequence[Drawing], label: str, gap: float = 20, margin: float = 14) -> Drawing:
    """The drawings below each other, as one with a margin."""
    shapes: list[Shape] = []
    top = margin
    for one in drawings:
        shapes += [_moved(shape, margin, top) for shape in one.shapes]
        top += one.height + gap
    width = max((one.width for one in drawings), default=0.0)
    return Drawing(width + 2 * margin, top - gap + margin, tuple(shapes), label)


def heading(title: str, details: str, width: float) -> Drawing:
    """A heading: a title in bold, and details below it, each on as many lines as it takes."""
    shapes: list[Shape] = []
    y = 0.0
    for words, size, colour in ((title, 15, Colour.INK), (details, 12, Colour.MUTED)):
        for line in wrap(words, int(width / (0.58 * size))) if words else []:
            y += size + 5
            shapes.append(Text(0, y, line, size, colour, bold=size == 15))
    return Drawing(width, y + 4, tuple(shapes), title)


def _moved(shape: Shape, right: float, down: float) -> Shape:
    if isinstance(shape, Line):
        return replace(shape, points=tuple((x + right, y + down) for x, y in shape.points))
    return replace(shape, x=shape.x + right, y=shape.y + down)


def winners_of(report: Mapping[str, Any]) -> list[Winner]:
    problem = parse_problem(report["problem"])
    fields = {k: v for k, v in report["environment"].items() if k != "fingerprint"}
    environment = Environment(**fields)
    then = datetime(2026, 1, 1, tzinfo=timezone.utc)  # reports do not say when they were made
    runs = what_runs(
        environment.engine, environment.engine_version, problem, find_device(report["device"])
    )
    entries = with_backends(map(entry_of, report["entries"]), [], runs)
    return [Winner(problem, environment, entry, 0, then) for entry in entries]


def entry_of(value: Mapping[str, Any]) -> Entry:
    """An entry of a report."""
    part = read_part(value.get("gemm") or value.get("part") or "")
    tokens = value.get("new_tokens") or 0, value.get("cached_tokens") or 0
    incumbents = {
        name: Incumbent(
            Config(one["config"]), Status(one["status"]), one["median_us"], one["shared_bytes"]
        )
        for name, one in value["incumbents"].items()
    }
    resources = (value["shared_bytes"], value["n_regs"], value["n_spills"])
    return Entry(
        point=Point(value["batch_size"], part, *tokens),
        config=Config(value["config"]),
        status=Status(value["status"]),
        median_us=value["median_us"],
        compiled=Compiled(Status.OK, *resources),
        incumbents=incumbents,
        reason=value["reason"],
    )


if __name__ == "__main__":
    main()
