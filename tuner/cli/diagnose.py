"""Read a server's logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.app import command, show
from tuner.cli.options import Json, WritePatch
from tuner.cli.remedy import write_remedy

if TYPE_CHECKING:
    from tuner.diagnose import Diagnosis
    from tuner.families.attention.engine import Remedy


@command
def diagnose(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Logs, tracebacks or pasted lines of one server, all nodes together; - is stdin.",
        ),
    ],
    device: Annotated[
        str, typer.Option(help="The server's GPU, e.g. L40S; default: as the log says.")
    ] = "",
    engine: Annotated[
        str,
        typer.Option(help="sglang, vllm, or with ==VERSION; default: as the log says."),
    ] = "",
    model: Annotated[str, typer.Option(help="The model; default: as the log says.")] = "",
    tp: Annotated[int, typer.Option(help="Tensor-parallel size; default: as the log says.")] = 0,
    write_patch: WritePatch = None,
    as_json: Json = False,
) -> None:
    """Explain the messages in a server's log, and name the command, flag or file that helps.

    Exit 1 if no message is known.
    """
    from tuner.diagnose import Hints
    from tuner.diagnose import diagnose as diagnose_files
    from tuner.engines.engine import find_engine

    found = diagnose_files(files, Hints(engine, device, model, tp))
    show(as_json, found.as_json, found.as_text)
    if write_patch:
        remedy = _compiled_remedy(found)
        if remedy is None and engine:
            find_engine(engine)  # says so if the release that was named is not here
        write_remedy(remedy, write_patch)
    if not found.known:
        raise typer.Exit(1)


def _compiled_remedy(found: Diagnosis) -> Remedy | None:
    """Return the patch of a diagnosis, if the launches that it is for compile and fit with it."""
    from tuner.families.attention.check import fit_patched
    from tuner.families.attention.problem import parse_attention

    mends = next((answer.mends for answer in found.answers if answer.mends), None)
    if mends is None:
        return None
    shapes = (
        "4,kv_heads=1,Lq=576,Lv=512",
        "4,kv_heads=4,Lq=192,Lv=128",
        "12,kv_heads=4,Lq=128,Lv=128",
    )
    problems = [
        parse_attention(f"extend_attention:q_heads={shape},dtype=bfloat16") for shape in shapes
    ]
    fits = fit_patched(mends.engine, mends.device, mends.remedy, problems)
    return mends.remedy if fits else None
