"""Explain a server's OutOfResources if an attention kernel of sglang caused it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.bindings.sglang.attention.remedy import (
    backend_flags,
    backends_row,
    find_remedy,
    launches_table,
)
from tuner.devices.table import Device
from tuner.engines.engine import UNVERSIONED
from tuner.engines.sglang.package import SGLang
from tuner.families.attention.engine import Remedy

_EXTEND = "extend_attention.py"
_OTHERS = ("decode_attention.py", "prefill_attention.py")


@dataclass(frozen=True)
class Explained:
    """The cause and the fix in sentences, "$ " before commands, and the remedy for this machine's
    file.
    """

    cause: tuple[str, ...]
    fix: tuple[str, ...]
    details: Mapping[str, Any] = field(default_factory=dict)
    engine: SGLang | None = None
    remedy: Remedy | None = None


def explain(
    required: int,
    limit: int,
    place: tuple[str, int] | None,
    version: str,
    cards: Sequence[Device | None],
) -> Explained | None:
    """Return why a launch needed `required` bytes of shared memory; None if it was no attention.

    `place` is the file and line of the launch in the traceback, None without a traceback. `version`
    is the server's, "" if unknown. `cards` are the GPUs that it may be.
    """
    if place and place[0].endswith(_OTHERS):
        flags = backend_flags(version or "0.5.2", latent=False)
        return Explained(
            ("The kernel belongs to sglang's Triton attention.",),
            (f"Start the server with {' or '.join(flags)}.",),
        )
    if place and not place[0].endswith(_EXTEND):
        return None
    known = [row for row in launches_table()["recorded"] if row["bytes"] == required]
    if place is None and (not known or limit >= required):
        return None
    release = version or (launches_table()["lines"].get(str(place[1]), "") if place else "")
    devices = [card for card in cards if card]
    since = _fits_since(devices)
    cause = [*_whose(place, release, version), *_which_launch(required, known, release)]
    engine, remedy = _remedy(place, release, devices)
    return Explained(
        tuple(cause),
        tuple(_steps(since, release, devices)),
        {"release": release or None, "fits_since": since or None},
        engine,
        remedy,
    )


def _whose(place: tuple[str, int] | None, release: str, version: str) -> list[str]:
    if place is None:
        return []
    words = "The kernel is extend of sglang's Triton attention: new tokens attend to a cache."
    if release and not version:
        words += f" Line {place[1]} of {_EXTEND} is the launch of sglang {release}."
    return [words]


def _which_launch(required: int, known: Sequence[Mapping[str, Any]], release: str) -> list[str]:
    """Return which launch needs exactly these bytes, and why a check computes other bytes."""
    matching = [row for row in known if not release or release in row["releases"]] or list(known)
    if not matching:
        return []
    row = matching[0]
    tile = "x".join(map(str, row["tile"]))
    found = [
        f"In sglang {' and '.join(row['releases'])}, {row['launch']} needs exactly "
        f"{required:,} bytes with Triton {row['triton']} (tile {tile})."
    ]
    others = [
        other
        for other in launches_table()["recorded"]
        if set(other["releases"]) & set(row["releases"])
        and other["launch"] != row["launch"]
        and other["pinned"]
    ]
    for other in others:
        found.append(
            "`tuner check MODEL` names another number because it compiles another launch: "
            f"{other['launch']}, {other['bytes']:,} bytes with Triton {other['triton']}. Both are "
            "too large for the same reason, and the steps below mend both."
        )
    return found


def _fits_since(devices: Sequence[Device]) -> str:
    """Return the first release that fits all of these GPUs; empty if it is not known."""
    rows = launches_table()["fits"]
    found = {row["since"] for d in devices for row in rows if d.target.name in row["on"]}
    return found.pop() if len(found) == 1 else ""


def _flashinfer(release: str) -> str:
    """Return the flags of FlashInfer's kernels; for each range of releases if the release is
    unknown.
    """
    if release:
        return _flags(backends_row(release))
    newest, oldest = launches_table()["backends"]
    since = newest["since"]
    return f"from {since} on {_flags(newest)}; before {since} {_flags(oldest)}"


def _flags(row: Mapping[str, Any]) -> str:
    latent, others = " ".join(row["latent"]), " ".join(row["others"])
    rest = f", {others} for others" if latent != others else " and others"
    return f"{latent} for models with latent attention (DeepSeek){rest}"


def _steps(since: str, release: str, devices: Sequence[Device]) -> list[str]:
    targets = {device.target.name for device in devices}
    steps = []
    if since:
        steps.append(
            f"Upgrade to sglang {since} or later, which launches smaller tiles on this GPU."
        )
    elif targets:
        rows = launches_table()["fits"]
        fits = [
            f"{row['since']} for {' and '.join(row['on'])}"
            for row in rows
            if targets & {*row["on"]}
        ]
        steps.append(
            f"Upgrade to the first known sglang release whose tiles fit: {'; '.join(fits)}."
        )
    steps.append(f"Or run FlashInfer's kernels: {_flashinfer(release)}.")
    one = len(devices) == 1 and devices[0].aliases
    card = f"--device {devices[0].aliases[0]}" if one else "--device and the server's GPU"
    engine = f"--engine sglang=={release}" if release else "--engine and the server's version"
    steps.append(
        "Or patch the file: on the server's machine, or on a machine with that release, give this "
        f"log to `tuner diagnose` again with {card}, {engine} and --write-patch extend.patch. It "
        "prints how to apply the patch."
    )
    return steps


def _remedy(
    place: tuple[str, int] | None, release: str, devices: Sequence[Device]
) -> tuple[SGLang | None, Remedy | None]:
    """Return the remedy for the traceback's own file, if the file lies on this machine."""
    file = Path(place[0]) if place else None
    root = next((p for p in file.parents if p.name == "sglang"), None) if file else None
    if root is None or len(devices) != 1 or not (root / "__init__.py").is_file():
        return None, None
    engine = SGLang(release or UNVERSIONED, root)
    return engine, find_remedy(engine, devices[0])
