"""Check every entry of the fused-MoE files that vLLM ships, each for the card in its name.

    python benchmarks/check_shipped_vllm.py OUT.json [--engine vllm==0.33.0] [--vendor NVIDIA]

It compiles with as many processes as there are cores. Entries with the same machine code are
compiled once, and results stay in the compile cache, so a run that was stopped goes on. OUT.json
has a row for each entry that cannot run, and for each file that was not checked with the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

from tuner.devices.table import find_device
from tuner.engines.engine import Engine, find_engine
from tuner.errors import BadInput, UnknownDevice
from tuner.families.fused_moe.check import CheckedEntry, check_files
from tuner.families.fused_moe.engine import ShippedFile, moe_engine
from tuner.problems.dtypes import Dtype

GROUPED = "vLLM runs a compiled kernel, or one that needs SPLIT_K in the entry"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--engine", default="vllm==0.33.0")
    parser.add_argument("--vendor", default="NVIDIA", help="the start of the cards' names")
    args = parser.parse_args()
    engine = find_engine(args.engine)
    started = time.perf_counter()
    shipped = moe_engine(engine).shipped(nvidia_only=False)
    files = sorted(
        (file for file in shipped if file.key.device.startswith(args.vendor)),
        key=lambda file: file.key.device,
    )
    found: dict[str, Any] = {"engine": args.engine, "files": len(files), "entries": 0}
    found |= {"statuses": {}, "cannot_run": [], "not_checked": []}
    statuses: Counter[str] = Counter()
    for card, group in groupby(files, key=lambda file: file.key.device):
        for entry in checked(card, list(group), engine, found["not_checked"]):
            statuses[entry.compiled.status.value] += 1
            if not entry.compiled.ok:
                found["cannot_run"].append(row(card, entry))
        found["statuses"], found["entries"] = dict(statuses), sum(statuses.values())
        found["seconds"] = time.perf_counter() - started
        args.out.write_text(json.dumps(found, indent=1) + "\n")  # what is done is kept
    print({name: found[name] for name in ("files", "entries", "statuses", "seconds")})


def checked(
    card: str, files: list[ShippedFile], engine: Engine, left: list[dict[str, str]]
) -> list[CheckedEntry]:
    """The entries of a card's files. Adds the files that cannot be checked to `left`."""
    print(f"{card}: {len(files)} files", file=sys.stderr, flush=True)
    readable = []
    for file in files:
        why = "; ".join(file.oddities[:1])
        if file.key.dtype == Dtype.INT4_W4A16.value:
            why = GROUPED
        if why:
            left.append({"file": file.path.name, "why": why})
        else:
            readable.append(file.path)
    try:
        return list(check_files(readable, find_device(card), engine, {}).entries)
    except UnknownDevice as error:
        left += [{"file": path.name, "why": str(error)} for path in readable]
        return []
    except BadInput:  # a name whose problem does not exist: check the files one by one
        return [entry for path in readable for entry in one(path, card, engine, left)]


def one(path: Path, card: str, engine: Engine, left: list[dict[str, str]]) -> list[CheckedEntry]:
    try:
        return list(check_files([path], find_device(card), engine, {}).entries)
    except BadInput as error:
        left.append({"file": path.name, "why": str(error)})
        return []


def row(card: str, entry: CheckedEntry) -> dict[str, Any]:
    return {
        "device": card,
        "file": entry.file.name,
        "gemm": entry.gemm.value,
        "M": entry.batch_size,
        "config": dict(entry.config),
        "status": entry.compiled.status.value,
        "detail": entry.compiled.detail,
    }


if __name__ == "__main__":
    main()
