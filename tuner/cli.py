"""The `tuner` command: reads options, calls the rooms, prints. Wiring only.

Data goes to stdout, progress and messages to stderr. Exit code 0: done; 1: the work failed;
2: bad input. Commands import what they need themselves: `tuner --help` must not pay for
SQLAlchemy, Optuna or NumPy.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import closing
from functools import wraps
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

import typer

from tuner.errors import TunerError

P = ParamSpec("P")
R = TypeVar("R")

app = typer.Typer(
    name="tuner",
    help="Find, prove, store and ship launch configurations for LLM engines' Triton kernels.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # importing rich would double the time that --help takes
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DeviceName = Annotated[str, typer.Option("--device", help="The GPU, e.g. L40S; see `devices`.")]
EngineSpec = Annotated[str, typer.Option("--engine", help="sglang, or sglang==VERSION.")]
HiddenSize = Annotated[
    int | None, typer.Option("--hidden-size", help="K, where the input does not say it.")
]
TopK = Annotated[
    int | None, typer.Option("--top-k", help="Experts a token, where the input does not say it.")
]


def main() -> None:
    """The console script."""
    app()


def _command(function: Callable[P, R]) -> Callable[P, R]:
    """Register a command that ends with one line and the right code on our own errors."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TunerError as error:
            _say(f"tuner: error: {error}")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            _say("tuner: interrupted; run the same command again to go on")
            raise typer.Exit(130) from None
        except BrokenPipeError:  # `tuner models | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None

    return app.command()(wrapper)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))


@_command
def devices(as_json: Json = False) -> None:
    """List the GPUs that can be tuned for."""
    from dataclasses import asdict

    from tuner import devices as table
    from tuner.render import table as render

    known = table.devices()
    if as_json:
        _print_json([asdict(device) for device in known])
        return
    headers = ("device", "arch", "shared bytes a block", "SMs", "memory GB", "GB/s", "aliases")
    rows = [
        (
            device.name,
            f"sm_{device.arch}",
            device.shared_optin_bytes,
            device.sm_count,
            round(device.memory_bytes / 1e9),
            device.bandwidth_gbs,
            ", ".join(device.aliases),
        )
        for device in known
    ]
    typer.echo(render(headers, rows))


@_command
def models(as_json: Json = False) -> None:
    """List the models known by name."""
    from dataclasses import asdict

    from tuner.checkpoints import presets
    from tuner.render import table

    known = presets()
    if as_json:
        _print_json([asdict(model) for model in known])
        return
    headers = ("model", "experts", "shared", "top-k", "intermediate", "hidden", "quantisation")
    rows = [
        (
            model.name,
            model.E,
            model.n_shared_experts,
            model.top_k,
            model.intermediate,
            model.hidden,
            model.quantization,
        )
        for model in known
    ]
    typer.echo(table(headers, rows))


@_command
def tune(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|PROBLEM",
            help="A preset, a config.json or its folder, an engine's warning line, "
            "or fused_moe:E=..,N=..,K=..,top_k=..,dtype=..",
        ),
    ],
    device: DeviceName,
    tp: Annotated[int, typer.Option(help="Tensor-parallel size.")] = 1,
    ep: Annotated[int, typer.Option(help="Expert-parallel size.")] = 1,
    dtype: Annotated[str | None, typer.Option(help="e.g. int8_w8a8; default: the model's.")] = None,
    block_shape: Annotated[
        str | None, typer.Option(help="Quantisation block, e.g. 128x128; default: the model's.")
    ] = None,
    fuse_shared: Annotated[
        bool | None,
        typer.Option(
            "--fuse-shared/--no-fuse-shared",
            help="Count shared experts among the routed ones; default: as the engine does.",
        ),
    ] = None,
    hidden_size: HiddenSize = None,
    top_k: TopK = None,
    batch_sizes: Annotated[
        str | None, typer.Option(help="e.g. 1,2,4; default: the engine's 18.")
    ] = None,
    gemm: Annotated[str, typer.Option(help="up, down, or both.")] = "up,down",
    measure: Annotated[str, typer.Option(help="gpu, predict, or replay:FILE.")] = "gpu",
    effort: Annotated[str, typer.Option(help="quick, standard or exhaustive.")] = "standard",
    wide: Annotated[
        bool | None,
        typer.Option(
            "--wide/--grid",
            help="Search beyond the engine's own tuning grid; default: where times are measured.",
        ),
    ] = None,
    engine: EngineSpec = "sglang",
    gpus: Annotated[
        str, typer.Option(help="GPUs that share the points, as CUDA numbers them: 0,1.")
    ] = "0",
    routing: Annotated[
        Path | None, typer.Option(help="Captured top-k ids to route by: a .pt tensor file.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write all that was measured as a recording.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the search's random numbers.")] = 0,
    as_json: Json = False,
) -> None:
    """Find the fastest configuration for every batch size, and store it."""
    from tuner.checkpoints import resolve
    from tuner.devices import find_device
    from tuner.engines import find_engine
    from tuner.problems import parse_block_shape, parse_dtype
    from tuner.progress import Progress
    from tuner.session import Request, Session
    from tuner.store import Store, database_url
    from tuner.ways import parse_batch_sizes, parse_effort, parse_gemms, parse_source

    card = find_device(device)
    found = find_engine(engine)
    resolved = resolve(
        target,
        tp=tp,
        ep=ep,
        dtype=parse_dtype(dtype) if dtype else None,
        block_shape=parse_block_shape(block_shape) if block_shape else None,
        engine_version=found.version,
        device=card,
        hidden_size=hidden_size,
        top_k=top_k,
        fuse_shared=fuse_shared,
    )
    request = Request(
        problem=resolved.problem,
        device=card,
        engine=found,
        batch_sizes=parse_batch_sizes(batch_sizes) if batch_sizes else None,
        gemms=parse_gemms(gemm),
        source=parse_source(measure, gpus=gpus, routing=routing),
        effort=parse_effort(effort),
        wide=wide,
        seed=seed,
    )
    for note in resolved.notes:
        _say(note)
    with Session(request) as session:
        for kind, name in session.file_names.items():
            _say(f"{kind.value}: {name}")
        with (
            Store.open(database_url(os.environ)) as store,
            closing(Progress(sys.stderr)) as progress,
        ):
            report = session.run(store, progress, record=record)
    if as_json:
        _print_json(report.as_json())
    else:
        typer.echo(report.as_text())


@_command
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Engine config files.")],
    device: DeviceName,
    hidden_size: HiddenSize = None,
    top_k: TopK = None,
    engine: EngineSpec = "sglang",
    as_json: Json = False,
) -> None:
    """Compile every entry of config files; exit 1 if one cannot run on the device."""
    from tuner.check import check_files
    from tuner.devices import find_device
    from tuner.engines import find_engine

    report = check_files(
        files, find_device(device), find_engine(engine), hidden_size=hidden_size, top_k=top_k
    )
    if as_json:
        _print_json(report.as_json())
    else:
        typer.echo(report.as_text())
    if not report.fits:
        raise typer.Exit(1)


@_command
def export(
    device: DeviceName,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write; default: configs_out.")
    ] = None,
    into_engine: Annotated[
        bool, typer.Option("--into-engine", help="Write into the engine's own folder.")
    ] = False,
    allow_predicted: Annotated[
        bool, typer.Option("--allow-predicted", help="Export what was predicted, not measured.")
    ] = False,
    engine: EngineSpec = "sglang",
    as_json: Json = False,
) -> None:
    """Write the stored winners as the files that the engine loads."""
    from tuner.devices import find_device
    from tuner.engines import find_engine
    from tuner.errors import BadInput
    from tuner.export import export_device
    from tuner.store import Store, database_url

    if out is not None and into_engine:
        raise BadInput("--out and --into-engine exclude each other: choose one")
    with Store.open(database_url(os.environ)) as store:
        report = export_device(
            store,
            find_device(device),
            find_engine(engine),
            None if into_engine else out or Path("configs_out"),
            allow_predicted=allow_predicted,
        )
    if as_json:
        _print_json(report.as_json())
    else:
        typer.echo(report.as_text())
