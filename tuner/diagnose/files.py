"""Which command makes the config file that a server misses."""

from __future__ import annotations

import shlex
from typing import Any

from tuner.diagnose.added import Added, card_name
from tuner.diagnose.context import Context
from tuner.diagnose.findings import Finding
from tuner.engines.dispatch import engine_runs
from tuner.engines.engine import engine_names, supports
from tuner.errors import BadInput
from tuner.jobs.targets import reader_of
from tuner.models.serving import Resolved, Serving


def missing_file(finding: Finding, context: Context) -> Added:
    """The file, and the command that tunes it; the families' own parsers read the path."""
    path = finding.values.get("path", "")
    name = path.replace("\\", "/").rpartition("/")[2].rstrip("']")
    cause = (f"The missing file is {name}.",)
    details: dict[str, Any] = {"file": name}
    engine = context.engine_name(finding) or "sglang"
    family = reader_of(path)
    if family is None or engine not in engine_names() or not supports(engine, family.name):
        return Added(cause, details=details)
    serving = Serving(engine=engine, engine_version=context.version or None)
    try:
        resolved: Resolved = family.module("models").resolve(path, serving)
    except BadInput as error:
        device = context.device()
        log = shlex.quote(finding.where.rpartition(":")[0])
        command = f"$ tuner tune {log} --hidden-size SIZE --top-k NUMBER"
        steps = (f"Tell what the name leaves out: {error}.",)
        return Added(cause, (*steps, f"{command} --device {card_name(device)}"), details)
    device = context.device(resolved.device_name or "")
    details |= {"problem": resolved.problems[0].spec(), "device": device.name if device else None}
    runs = engine_runs(engine, context.version, resolved.problems, device) if device else []
    return Added(
        (
            *cause,
            *(f"Read from it: {note}." for note in resolved.notes),
            *(f"{kernel.line()}." for kernel in runs),
        ),
        tuple(_steps(resolved, context, engine, card_name(device))),
        details,
    )


def _steps(resolved: Resolved, context: Context, engine: str, card: str) -> list[str]:
    steps = []
    if resolved.device_name and card == "GPU":
        steps.append(
            f"This tuner has no figures for {resolved.device_name}: docs/operations.md says how to "
            "add a GPU."
        )
    if resolved.older_than and not context.version:
        steps.append(
            f"The path is of a release before {engine} {resolved.older_than}, and newer ones look "
            f"for another name: add --engine {engine}==VERSION of the server to both commands."
        )
    asked = f"--device {card}" + (f" --engine {engine}=={context.version}" * bool(context.version))
    return [
        *steps,
        f"$ tuner tune {shlex.quote(resolved.problems[0].spec())} {asked}",
        f"$ tuner export {asked}",
        "The second command prints the variable or the folder by which the server finds the file.",
    ]
