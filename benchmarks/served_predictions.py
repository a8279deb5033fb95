"""The gains that a saved proof's profiles let expect, beside the gains that were measured.

    python benchmarks/served_predictions.py CASE...

CASE is a folder that benchmarks/served_gpu.py wrote: it has the store, the exported files and the
proof with its report and profiles. So a change of the predictions is judged without a GPU. It
prints measured / predicted for each cell, and how many predictions lie within 0.03.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from served_gpu import is_near, summary

from tuner.deploy.served.compare import METRICS
from tuner.deploy.served.expected import expected_gains
from tuner.deploy.served.files import exported_problems
from tuner.deploy.served.loads import parse_loads
from tuner.deploy.served.measure import Speed
from tuner.store import Store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="+", type=Path, metavar="CASE")
    reports = {case.name: predicted(case) for case in parser.parse_args().cases}
    for name, report in reports.items():
        for gain in report["gains"]:
            if gain["predicted"] is not None:
                cell = f"{name} {gain['load']:>12} {gain['title']:>7}"
                mark = "" if is_near(gain) else " !"
                print(f"{cell} {gain['gain']:.2f} / {gain['predicted']:.2f}{mark}")
    print(summary(reports))


def predicted(case: Path) -> dict[str, Any]:
    """The report of a case, with the predictions that its profiles give now."""
    report: dict[str, Any] = json.loads((case / "proof/report.json").read_text())
    shipped = exported_problems(case / "configs")
    with Store.open(f"sqlite:///{case / 'tuner.db'}") as store:
        found = store.winners(
            device=report["device"],
            engine=report["engine"],
            engine_version=report["engine_version"],
        )
    winners = [one for one in found if one.problem.spec() in shipped]
    loads = parse_loads(",".join(dict.fromkeys(gain["load"] for gain in report["gains"])))
    before = {load: speeds(report["gains"], str(load)) for load in loads}
    expected = expected_gains(case / "proof/traces/before", winners, before, print)
    told = {str(load): of_load.gains for load, of_load in expected.items()}
    for gain in report["gains"]:
        gain["predicted"] = told.get(gain["load"], {}).get(gain["metric"])
    return report


def speeds(gains: list[dict[str, Any]], load: str) -> list[Speed]:
    """The rounds without the files. A report does not have the whole time of a round."""
    columns = {gain["metric"]: gain["rounds"]["before"] for gain in gains if gain["load"] == load}
    missing = dict.fromkeys(metric.field for metric in METRICS)
    return [
        Speed(**{**missing, **dict(zip(columns, row, strict=True))}, total_s=0.0)
        for row in zip(*columns.values(), strict=True)
    ]


if __name__ == "__main__":
    main()
