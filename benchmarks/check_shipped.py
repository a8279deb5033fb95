"""Check every entry of the config files that an engine ships for one vendor's GPUs.

    python benchmarks/check_shipped.py sglang==0.5.23 --vendor AMD --out FILE.json

Each file is compiled for the card that its name says, by as many processes as there are cores. FILE
gets a row for each entry; the totals are printed. It takes about two core-minutes for 100 entries.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from tuner.devices.table import Device, find_device
from tuner.engines.engine import find_engine, supports
from tuner.errors import UnknownDevice
from tuner.families.dense_gemm import check as gemm_check
from tuner.families.dense_gemm.engine import gemm_engine
from tuner.families.fused_moe import check as moe_check
from tuner.families.fused_moe.engine import moe_engine

# sglang's files of this name are for the MI300X: six of seven for fused MoE equal its files.
CALLED = {"AMD_Radeon_Graphics": "AMD_Instinct_MI300X"}
FAMILIES = {"fused_moe": (moe_engine, moe_check), "dense_gemm": (gemm_engine, gemm_check)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", help="NAME==VERSION")
    parser.add_argument("--vendor", default="AMD", help="the first word of the cards' names")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    engine = find_engine(asked.engine)
    rows: list[dict[str, Any]] = []
    for family, (open_family, check) in FAMILIES.items():
        if not supports(engine.name, family):
            continue
        shipped = open_family(engine).shipped(nvidia_only=False)
        wanted = sorted(
            (file for file in shipped if file.key.device.startswith(asked.vendor)),
            key=lambda file: file.key.device,
        )
        for name, files in groupby(wanted, key=lambda file: file.key.device):
            paths = [file.path for file in files]
            print(f"{family}, {name}: {len(paths)} files", file=sys.stderr)
            rows += _checked(family, name, paths, check, engine)
            asked.out.write_text(_text(asked.engine, rows), encoding="utf-8")
    print(_summary(rows))


def _checked(
    family: str, name: str, paths: list[Path], check: Any, engine: Any
) -> Iterable[dict[str, Any]]:
    try:
        device: Device = find_device(CALLED.get(name, name))
    except UnknownDevice as error:
        return [_refused(family, name, path, str(error)) for path in paths]
    found = check.check_files(paths, device, engine, {})
    return [
        {
            "family": family,
            "card": name,
            "file": Path(entry.file).name,
            "folder": Path(entry.file).parent.name,
            "gemm": entry.gemm.value if family == "fused_moe" else "gemm",
            "M": entry.batch_size,
            "config": dict(entry.config),
            "status": entry.compiled.status.value,
            "shared_bytes": entry.compiled.shared_bytes,
            "limit_bytes": device.shared_optin_bytes,
            "n_regs": entry.compiled.n_regs,
            "n_spills": entry.compiled.n_spills,
            "detail": entry.compiled.detail,
        }
        for entry in found.entries
    ]


def _refused(family: str, name: str, path: Path, why: str) -> dict[str, Any]:
    return {"family": family, "card": name, "file": path.name, "status": "refused", "detail": why}


def _summary(rows: Iterable[dict[str, Any]]) -> str:
    lines = ["family, card: files, compiled entries, status counts, entries that spill"]
    by_card: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        by_card.setdefault((row["family"], row["card"]), []).append(row)
    for (family, card), mine in by_card.items():
        files = len({(row.get("folder"), row["file"]) for row in mine})
        status = dict(Counter(row["status"] for row in mine))
        spilling = sum(bool(row.get("n_spills")) for row in mine)
        lines.append(f"{family}, {card}: {files}, {len(mine)}, {status}, {spilling}")
    return "\n".join(lines)


def _text(engine: str, rows: list[dict[str, Any]]) -> str:
    """One row a line, so that the file can be compared and searched."""
    body = ",\n".join(json.dumps(row, sort_keys=True) for row in rows)
    return f'{{"engine": {json.dumps(engine)}, "entries": [\n{body}\n]}}\n'


if __name__ == "__main__":
    main()
