"""The gains that a saved proof's profiles let expect, beside the gains that were measured.

    python benchmarks/served_predictions.py CASE...

CASE is a folder that benchmarks/served_gpu.py wrote: it has the store, the exported files and the
proof with its report and profiles. So a change of the predictions is judged without a GPU. It
prints measured / predicted for each cell, and how many predictions lie within 0.03.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from served_gpu import POINTS

from tuner.deploy.served.compare import METRICS
from tuner.deploy.served.expected import expected_gains
from tuner.deploy.served.files import exported_problems
from tuner.deploy.served.loads import Load, parse_loads
from tuner.deploy.served.measure import Speed
from tuner.store import Store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="+", type=Path, metavar="CASE")
    cells = near = 0
    for case in parser.parse_args().cases:
        for line, close in rows(case):
            print(f"{case.name} {line}{'' if close else ' !'}")
            cells, near = cells + 1, near + close
    print(f"predictions within {POINTS:g} of the gain: {near} of {cells}")


def rows(case: Path) -> Iterator[tuple[str, bool]]:
    """(a line about a cell, whether its prediction is near)"""
    report = json.loads((case / "proof/report.json").read_text())
    shipped = exported_problems(case / "configs")
    with Store.open(f"sqlite:///{case / 'tuner.db'}") as store:
        found = store.winners(
            device=report["device"],
            engine=report["engine"],
            engine_version=report["engine_version"],
        )
    winners = [one for one in found if one.problem.spec() in shipped]
    before = {load: speeds(report["gains"], load) for load in loads(report["gains"])}
    expected = expected_gains(case / "proof/traces/before", winners, before, print)
    for gain in report["gains"]:
        (load,) = parse_loads(gain["load"])
        told = expected[load].gains.get(gain["metric"]) if load in expected else None
        if told is not None:
            line = f"{gain['load']:>12} {gain['title']:>7} {gain['gain']:.2f} / {told:.2f}"
            yield line, abs(told - gain["gain"]) <= POINTS


def loads(gains: list[dict[str, Any]]) -> list[Load]:
    return list(dict.fromkeys(load for gain in gains for load in parse_loads(gain["load"])))


def speeds(gains: list[dict[str, Any]], load: Load) -> list[Speed]:
    """The rounds without the files. A report does not have the whole time of a round."""
    of_load = {g["metric"]: g["rounds"]["before"] for g in gains if g["load"] == str(load)}
    rounds = len(next(iter(of_load.values())))
    columns = [of_load.get(metric.field, [None] * rounds) for metric in METRICS]
    prefill, decode, ttft, tpot = columns
    return [Speed(prefill[i], ttft[i], decode[i], tpot[i], total_s=0.0) for i in range(rounds)]


if __name__ == "__main__":
    main()
