"""Tune, check and export on this machine."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.app import command, print_json, say
from tuner.cli.options import (
    Attention,
    BatchSizes,
    BlockShape,
    DeviceName,
    DtypeName,
    EffortName,
    EngineSpec,
    Ep,
    FuseShared,
    Gemms,
    HiddenSize,
    Json,
    KvSplits,
    Measure,
    ModelName,
    PageSize,
    ProblemSpecs,
    Seed,
    Target,
    TopK,
    Tp,
    Wide,
    WorkloadName,
)
from tuner.cli.targets import (
    BOTH_GEMMS,
    Given,
    attention_to_check,
    attention_work,
    moe_work,
    problems_to_ship,
    refuse_attention_options,
    refuse_layer_options,
    refuse_tp,
)

if TYPE_CHECKING:
    from tuner.families.attention.check import AttentionCheck
    from tuner.families.fused_moe.check import CheckReport
    from tuner.tuning.report import Report
    from tuner.tuning.run import Request


@command
def tune(
    target: Target,
    device: DeviceName,
    tp: Tp = 1,
    ep: Ep = 1,
    dtype: DtypeName = None,
    block_shape: BlockShape = None,
    fuse_shared: FuseShared = None,
    hidden_size: HiddenSize = None,
    top_k: TopK = None,
    batch_sizes: BatchSizes = None,
    gemm: Gemms = BOTH_GEMMS,
    measure: Measure = "gpu",
    effort: EffortName = "standard",
    wide: Wide = None,
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
    attention: Attention = False,
    workload: WorkloadName = None,
    page_size: PageSize = 1,
    kv_splits: KvSplits = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Find the fastest configurations of a fused-MoE layer, or of attention, and store them."""
    from tuner.devices.table import find_device
    from tuner.engines.engine import find_engine
    from tuner.families.fused_moe.problem import parse_dtype
    from tuner.problems.text import names_attention, parse_block_shape
    from tuner.tuning.request import parse_batch_sizes, parse_effort, parse_gemms, parse_source
    from tuner.tuning.run import Request

    card, found_engine = find_device(device), find_engine(engine)
    kind = parse_dtype(dtype) if dtype else None
    given = Given(target, card, found_engine.version, tp, kind)
    if attention or names_attention(target):
        refuse_layer_options(
            ep, block_shape, fuse_shared, hidden_size, top_k, batch_sizes, gemm, wide
        )
        found = attention_work(given, workload, page_size, kv_splits)
    else:
        refuse_attention_options(workload, page_size, kv_splits)
        block = parse_block_shape(block_shape) if block_shape else None
        found = moe_work(given, ep, block, hidden_size, top_k, fuse_shared)
    requests = [
        Request(
            problem=problem,
            device=given.device,
            engine=found_engine,
            batch_sizes=parse_batch_sizes(batch_sizes) if batch_sizes else None,
            gemms=parse_gemms(gemm),
            workload=points,
            source=parse_source(measure, gpus=gpus, routing=routing),
            effort=parse_effort(effort),
            wide=wide,
            seed=seed,
        )
        for problem, points in found.work
    ]
    for note in found.notes:
        say(note)
    # The first problem's run begins the recording; the others add to it.
    reports = [_run(request, record, add=at > 0) for at, request in enumerate(requests)]
    if as_json:
        objects = [report.as_json() for report in reports]
        print_json(objects[0] if len(objects) == 1 else {"reports": objects})
    else:
        typer.echo("\n\n".join(report.as_text() for report in reports))


def _run(request: Request, record: Path | None, add: bool) -> Report:
    from tuner.store import Store, database_url
    from tuner.tuning.open_run import open_session
    from tuner.tuning.progress import Progress

    with open_session(request) as session:
        for part, name in session.file_names.items():
            say(f"{part.value}: {name}")
        with (
            Store.open(database_url(os.environ)) as store,
            closing(Progress(sys.stderr, session.tries)) as progress,
        ):
            return session.run(store, progress, record=record, add_to_record=add)


@command
def check(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...|MODEL", help="Engine config files; with --attention, a model."
        ),
    ],
    device: DeviceName,
    attention: Annotated[
        bool,
        typer.Option("--attention", help="Check what the engine launches for a model's attention."),
    ] = False,
    tp: Tp = 1,
    hidden_size: HiddenSize = None,
    top_k: TopK = None,
    engine: EngineSpec = "sglang",
    as_json: Json = False,
) -> None:
    """Compile every entry of config files, or the engine's own constants for a model's attention.

    Exit 1 if one cannot run on the device.
    """
    from tuner.devices.table import find_device
    from tuner.engines.engine import find_engine
    from tuner.families.attention.check import check_attention
    from tuner.families.fused_moe.check import check_files

    card, found = find_device(device), find_engine(engine)
    report: AttentionCheck | CheckReport
    if attention:
        given = Given(targets[0], card, found.version, tp, None)
        resolved = attention_to_check(given, targets[1:], hidden_size, top_k)
        for note in resolved.notes:
            say(note)
        report = check_attention(resolved.problems, card, found)
    else:
        refuse_tp(tp)
        files = [Path(target) for target in targets]
        report = check_files(files, card, found, hidden_size=hidden_size, top_k=top_k)
    if as_json:
        print_json(report.as_json())
    else:
        typer.echo(report.as_text())
    if not report.fits:
        raise typer.Exit(1)


@command
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
    problem: ProblemSpecs = None,
    model: ModelName = None,
    tp: Tp = 1,
    ep: Ep = 1,
    dtype: DtypeName = None,
    fuse_shared: FuseShared = None,
    as_json: Json = False,
) -> None:
    """Write the stored winners as the files that the engine loads."""
    from tuner.devices.table import find_device
    from tuner.engines.engine import find_engine
    from tuner.errors import BadInput
    from tuner.export import export_device
    from tuner.families.fused_moe.problem import parse_dtype
    from tuner.store import Store, database_url

    if out is not None and into_engine:
        raise BadInput("--out and --into-engine exclude each other: choose one")
    if model is None and (tp, ep, dtype, fuse_shared) != (1, 1, None, None):
        raise BadInput("--tp, --ep, --dtype and --fuse-shared are for a model: add --model NAME")
    card, found = find_device(device), find_engine(engine)
    kind = parse_dtype(dtype) if dtype else None
    given = Given(model, card, found.version, tp, kind) if model else None
    with Store.open(database_url(os.environ)) as store:
        report = export_device(
            store,
            card,
            found,
            None if into_engine else out or Path("configs_out"),
            allow_predicted=allow_predicted,
            wanted=problems_to_ship(problem or (), given, ep, fuse_shared),
        )
    if as_json:
        print_json(report.as_json())
    else:
        typer.echo(report.as_text())


@command
def prove(
    device: DeviceName,
    out: Annotated[
        Path, typer.Option("--out", help="What `export` wrote; default: configs_out.")
    ] = Path("configs_out"),
    as_json: Json = False,
) -> None:
    """Run exported files through the engine's own loader and layer, on the GPU.

    Exit 1 where an output is wrong, or a layer slower than without the files. The engine must be
    importable here.
    """
    from tuner.devices.table import find_device
    from tuner.families.fused_moe.prove import prove as prove_root

    proof = prove_root(out, find_device(device).name)
    if as_json:
        print_json(proof.as_json())
    else:
        typer.echo(proof.as_text())
    if not proof.proven:
        raise typer.Exit(1)
