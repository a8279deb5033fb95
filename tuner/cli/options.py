"""The options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DeviceName = Annotated[str, typer.Option("--device", help="The GPU, e.g. L40S; see `devices`.")]
EngineSpec = Annotated[str, typer.Option("--engine", help="sglang, or sglang==VERSION.")]
HiddenSize = Annotated[
    int | None, typer.Option("--hidden-size", help="K, where the input does not say it.")
]
TopK = Annotated[
    int | None, typer.Option("--top-k", help="Experts a token, where the input does not say it.")
]
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
Ep = Annotated[int, typer.Option(help="Expert-parallel size.")]
DtypeName = Annotated[
    str | None, typer.Option("--dtype", help="e.g. int8_w8a8; default: the model's.")
]
BlockShape = Annotated[
    str | None, typer.Option(help="Quantisation block, e.g. 128x128; default: the model's.")
]
FuseShared = Annotated[
    bool | None,
    typer.Option(
        "--fuse-shared/--no-fuse-shared",
        help="Count shared experts among the routed ones; default: as the engine does.",
    ),
]
BatchSizes = Annotated[str | None, typer.Option(help="e.g. 1,2,4; default: the engine's 18.")]
Gemms = Annotated[str, typer.Option("--gemm", help="up, down, or both.")]
Measure = Annotated[str, typer.Option(help="gpu, predict, or replay:FILE.")]
EffortName = Annotated[str, typer.Option("--effort", help="quick, standard or exhaustive.")]
Wide = Annotated[
    bool | None,
    typer.Option(
        "--wide/--grid",
        help="Search beyond the engine's own tuning grid; default: where times are measured.",
    ),
]
Attention = Annotated[
    bool, typer.Option("--attention", help="Tune the model's attention, not its fused-MoE layer.")
]
WorkloadName = Annotated[
    str | None,
    typer.Option(
        "--workload", help="Attention: chat, long-context, offline, or a TOML file of points."
    ),
]
PageSize = Annotated[int, typer.Option(help="Attention: tokens a page of the KV cache.")]
KvSplits = Annotated[
    int | None,
    typer.Option(help="Attention, decode: most parts of a cache; default: as the engine runs."),
]
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
