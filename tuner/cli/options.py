"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tuner.cli import complete
from tuner.problems.registry import families

Json = Annotated[bool, typer.Option("--json", help="Print JSON; default: text.")]
DeviceName = Annotated[
    str,
    typer.Option(
        autocompletion=complete.devices, help="The GPU, e.g. L40S; `tuner list devices` lists them."
    ),
]
DeviceOrHere = Annotated[
    str,
    typer.Option(
        "--device",
        autocompletion=complete.devices,
        help="The GPU, e.g. L40S; default: this machine's.",
    ),
]
OneDevice = Annotated[
    str | None,
    typer.Option(autocompletion=complete.devices, help="Only for this GPU; default: all."),
]
EngineSpec = Annotated[
    str,
    typer.Option(
        autocompletion=complete.engines,
        help="NAME or NAME==VERSION, e.g. vllm==0.33.0; default version: the installed one.",
    ),
]
EngineOfTarget = Annotated[
    str,
    typer.Option(
        "--engine",
        autocompletion=complete.engines,
        help="NAME or NAME==VERSION, e.g. vllm==0.33.0; default: as a server, log or line says, or "
        "sglang.",
    ),
]
AllFamilies = Annotated[
    bool,
    typer.Option("--all", help="Tune all families of the model for which servers read files."),
]
Families = Annotated[
    str,
    typer.Option(
        metavar="NAME,...|all",
        autocompletion=complete.families,
        help=f"Families of kernels: {', '.join(one.name for one in families())}.",
    ),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|PROBLEM",
        autocompletion=complete.models,
        help="A model: a name that `tuner list models` lists, a config.json or its folder, the URL "
        "of a running server, an engine's warning line. Or a problem: see --help-family.",
    ),
]
Tp = Annotated[int, typer.Option(help="Tensor-parallel size.")]
DtypeName = Annotated[
    str | None,
    typer.Option(help="Dtype of weights, e.g. int8_w8a8; default: the model's."),
]
Measure = Annotated[
    str,
    typer.Option(
        autocompletion=complete.measures,
        help="Times: gpu (measured), predict (by a model), or replay:FILE.",
    ),
]
EffortName = Annotated[
    str,
    typer.Option(
        autocompletion=complete.efforts,
        help="How many configurations to try: quick, standard or exhaustive.",
    ),
]
ProblemSpecs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PROBLEM", help="Only this problem's results; may be given again; default: all."
    ),
]
ServerArgs = Annotated[
    str,
    typer.Option(
        help="Flags and variables that servers are started with, as one word; default: none."
    ),
]
ClusterFile = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        metavar="FILE",
        help="A cluster.toml, which names engine, model, ranks and flags; default: none.",
    ),
]
OneModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        autocompletion=complete.models,
        help="Only the results of this model's problems, as for `tuner tune`; default: all.",
    ),
]
Seed = Annotated[int, typer.Option(help="Random seed of the search.")]
Server = Annotated[
    str | None,
    typer.Option(envvar="TUNER_SERVER", help="URL of a tuner service; default: the local store."),
]
# TUNER_SERVER is not read here: what `tune` just stored on this machine is to be exported next.
ResultsServer = Annotated[
    str | None,
    typer.Option("--server", help="URL of a tuner service; default: the local store."),
]
WritePatch = Annotated[
    Path | None,
    typer.Option(
        help="Write a patch for the engine's own file, with constants that fit, to this file."
    ),
]
Captures = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        metavar="NAME=DIR",
        help="A node's captured outputs; may be given again; default: none.",
    ),
]
