"""Check every entry of the config files that an engine ships for one vendor's GPUs.

Run from the repository's root:
    .venv/bin/python benchmarks/check_shipped.py sglang==0.5.23 --vendor AMD --out FILE.csv.gz
Each file is compiled for the card that its name says, by as many processes as there are cores. FILE
gets a row for each entry and gemm; the totals are printed. 100 rows take about ten core-seconds.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner.devices.table import find_device
from tuner.engines.engine import Engine, find_engine, supports
from tuner.errors import UnknownDevice, UnsupportedKernel
from tuner.families.dense_gemm import check as gemm_check
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.fused_moe import check as moe_check
from tuner.families.fused_moe.engine import moe_engine
from tuner.families.state_update import check as state_check
from tuner.families.state_update.engine import state_engine

# sglang's files of this name are for the MI300X: all of fused MoE equal the MI300X's.
CALLED = {"AMD_Radeon_Graphics": "AMD_Instinct_MI300X"}
# By family: the files that an engine ships, and what checks them.
FAMILIES: dict[str, tuple[Callable[[Engine], Iterator[Any]], ModuleType]] = {
    "fused_moe": (lambda engine: moe_engine(engine).shipped(nvidia_only=False), moe_check),
    "dense_gemm": (lambda engine: gemm_engine(engine).shipped(nvidia_only=False), gemm_check),
    "state_update": (lambda engine: state_engine(engine).shipped(nvidia_only=False), state_check),
}
FIELDS = (
    *("family", "card", "folder", "file", "gemm", "M", "config", "status"),
    *("shared_bytes", "limit_bytes", "n_regs", "n_spills", "detail"),
)
Row = dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", help="NAME==VERSION")
    parser.add_argument("--vendor", default="AMD", help="how the cards' names begin")
    parser.add_argument("--family", choices=list(FAMILIES), help="default: all of the engine's")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    engine = find_engine(asked.engine)
    rows: list[Row] = []
    for family in [asked.family] if asked.family else FAMILIES:
        if not supports(engine.name, family):
            continue
        for card, paths in shipped(family, engine, asked.vendor):
            print(f"{family}, {card}: {len(paths)} files", file=sys.stderr)
            rows += checked(family, card, paths, engine)
            write(asked.out, rows)
    print(summary(rows))


def shipped(family: str, engine: Engine, vendor: str) -> Iterator[tuple[str, list[Path]]]:
    """The files for each card."""
    ships, _ = FAMILIES[family]
    found = sorted(
        (file.key.device, file.path) for file in ships(engine) if file.key.device.startswith(vendor)
    )
    for card, files in groupby(found, key=lambda file: file[0]):
        yield card, [path for _, path in files]


def checked(family: str, card: str, paths: Sequence[Path], engine: Engine) -> Iterator[Row]:
    _, check = FAMILIES[family]
    try:
        device = find_device(CALLED.get(card, card))
        entries = check.check_files(paths, device, engine, {}).entries
    except (UnknownDevice, UnsupportedKernel) as error:
        if len(paths) > 1 and isinstance(error, UnsupportedKernel):  # perhaps one of them alone
            for path in paths:
                yield from checked(family, card, [path], engine)
            return
        for path in paths:
            yield {**_named(family, card, path), "status": "refused", "detail": str(error)}
        return
    for entry in entries:
        compiled = entry.compiled
        if compiled is None:  # the engine runs no Triton kernel here
            continue
        yield {
            **_named(family, card, Path(entry.file)),
            "gemm": entry.part.value if family == "fused_moe" else "gemm",
            "M": entry.size,
            "config": entry.config.key.replace(",", " "),
            "status": compiled.status.value,
            "shared_bytes": compiled.shared_bytes,
            "limit_bytes": device.shared_optin_bytes,
            "n_regs": compiled.n_regs,
            "n_spills": compiled.n_spills,
            "detail": compiled.detail,
        }


def _named(family: str, card: str, path: Path) -> Row:
    return {"family": family, "card": card, "folder": path.parent.name, "file": path.name}


def write(path: Path, rows: Iterable[Row]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def summary(rows: Iterable[Row]) -> str:
    lines = ["family, card: files, rows, rows by status, rows that spill"]
    cards: dict[str, list[Row]] = {}
    for row in rows:
        cards.setdefault(f"{row['family']}, {row['card']}", []).append(row)
    for card, mine in cards.items():
        files = len({(row["folder"], row["file"]) for row in mine})
        status = dict(Counter(row["status"] for row in mine))
        spilling = sum(bool(row.get("n_spills")) for row in mine)
        lines.append(f"{card}: {files}, {len(mine)}, {status}, {spilling}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
