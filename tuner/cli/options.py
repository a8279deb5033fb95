"""The options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DeviceName = Annotated[str, typer.Option("--device", help="The GPU, e.g. L40S; see `devices`.")]
EngineSpec = Annotated[str, typer.Option("--engine", help="sglang, or sglang==VERSION.")]
Target = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|PROBLEM",
        help="A preset, a config.json or its folder, an engine's warning line, "
        "fused_moe:E=..,N=..,K=..,top_k=..,dtype=.. or decode_attention:q_heads=..,kv_heads=..,"
        "Lq=..,Lv=..,dtype=..",
    ),
]
Tp = Annotated[int, typer.Option(help="Tensor-parallel size.")]
DtypeName = Annotated[
    str | None, typer.Option("--dtype", help="e.g. int8_w8a8; default: the model's.")
]
Measure = Annotated[str, typer.Option(help="gpu, predict, or replay:FILE.")]
EffortName = Annotated[str, typer.Option("--effort", help="quick, standard or exhaustive.")]
ProblemSpecs = Annotated[
    list[str] | None,
    typer.Option(
        "--problem", metavar="PROBLEM", help="Only this problem's winners; may be given again."
    ),
]
ModelName = Annotated[
    str | None, typer.Option("--model", help="Only the winners of this model's problems.")
]
Seed = Annotated[int, typer.Option(help="Of the search's random numbers.")]
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="TUNER_SERVER",
        help="The service's URL; default: the local store.",
    ),
]
