"""The commands that read what a server wrote: its logs, and its profiler's traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.app import command, open_store, say, show
from tuner.cli.family_options import FamilyChoice, with_model_options
from tuner.cli.options import EngineSpec, Json, Tp, WritePatch
from tuner.cli.targets import TargetOptions, problems_to_ship
from tuner.devices.table import Device, find_device
from tuner.errors import BadInput, UnknownDevice, UnknownEngine, UnwritableOutput, did_you_mean
from tuner.problems.registry import families, family_named
from tuner.render import folded
from tuner.shell import command_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tuner.diagnose import Diagnosis
    from tuner.families.attention.engine import Remedy
    from tuner.problems.options import Option
    from tuner.problems.results import Winner
    from tuner.profile import Profile
    from tuner.profile.estimate import Estimate


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
    """Say what the messages in a server's log mean, and which command, flag or file helps.

    Exit 1 if no message is known.
    """
    from tuner.diagnose import Hints
    from tuner.diagnose import diagnose as diagnose_files
    from tuner.engines.engine import find_engine

    found = diagnose_files(files, Hints(engine, device, model, tp))
    show(as_json, found.as_json, lambda: _for_terminal(found.as_text()))
    if write_patch:
        remedy = _compiled_remedy(found)
        if remedy is None and engine:
            find_engine(engine)  # says so if the release that was named is not here
        write_remedy(remedy, write_patch)
    if not found.known:
        raise typer.Exit(1)


def _for_terminal(text: str) -> str:
    """Fold sentences to the width of a terminal: no commands, and nothing for a pipe or a file."""
    import sys

    if not sys.stdout.isatty():
        return text
    lines = text.split("\n")
    return "\n".join(line if line.startswith("     ") else folded(line) for line in lines)


def write_remedy(remedy: Remedy | None, path: Path) -> None:
    """Write a remedy's patch, and say how to apply it. Raises BadInput where there is none."""
    patch = remedy.patch() if remedy else ""
    if remedy is None or not patch:
        raise BadInput(
            "there is no patch to write: no launch of this engine's attention is known to be too "
            "large for this GPU; name both with --engine sglang==VERSION and --device"
        )
    try:
        path.write_text(patch, encoding="utf-8", newline="")
    except OSError as error:
        raise UnwritableOutput(f"{path} cannot be written: {error.strerror}") from None
    apply = command_line("patch", "-p1", "-d", str(remedy.root), "-i", str(path.resolve()))
    say(f"written: {path}; apply it with: {apply}")


def _compiled_remedy(found: Diagnosis) -> Remedy | None:
    """The patch of a diagnosis, if the launches that it is for compile and fit with it."""
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


@command
@with_model_options
def profile(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE...", help="Traces of torch's profiler, or a folder of them."),
    ],
    choice: FamilyChoice,
    model: Annotated[
        str, typer.Option(help="The served model; default: gains of other models are shown.")
    ] = "",
    device: Annotated[str, typer.Option(help="The GPU; default: as the trace says.")] = "",
    tp: Tp = 1,
    engine: EngineSpec = "",
    log: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="LOG", help="The server's log, which says whether tuned files are in use."
        ),
    ] = None,
    problems: Annotated[
        bool,
        typer.Option(
            "--problems", help="Print the tune commands that are worth running, best first."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Say where a server's GPU time goes, and what tuning can gain at most.

    E.g. `tuner profile traces/ --model qwen3-30b-a3b`.
    """
    from tuner.profile import read
    from tuner.profile.estimate import estimate
    from tuner.profile.render import render_estimate

    if problems and not model:
        raise BadInput("--problems prints commands for a model: add --model NAME")
    found = read(traces)
    name, _, version = (engine or found.engine or "sglang").partition("==")
    card = _device(device, found, required=bool(model))
    winners: Sequence[Winner] = ()
    if model and card:
        winners = _winners(TargetOptions(model, card, name, version or None, tp), choice)
    worth = estimate(found, winners, _in_use(log or ()), _tunable(name))
    if problems and card:
        spec = engine or (name if name != "sglang" else "")
        begin = ["tuner", "tune", model, "--device", card.name]
        begin += ["--tp", str(tp)] if tp != 1 else []
        begin += ["--engine", spec] if spec else []
        commands = _commands(worth, [*begin, *_workload(log or ())], choice)
        show(as_json, lambda: {"commands": commands}, lambda: "\n".join(commands))
        return
    show(as_json, worth.as_json, lambda: render_estimate(worth))


def _device(name: str, found: Profile, *, required: bool) -> Device | None:
    """The GPU of the command line, else the trace's. Raises UnknownDevice where it is needed."""
    try:
        return find_device(name or found.device)
    except UnknownDevice:
        if not name and not required:
            return None
        if name:
            raise
        raise UnknownDevice(
            f"the trace's GPU is {found.device or 'not named'}: add --device; `tuner devices` "
            "lists them"
        ) from None


def _winners(asked: TargetOptions, choice: FamilyChoice) -> list[Winner]:
    """What the store has for the model's problems, in any version of the engine."""
    wanted = set(problems_to_ship((), asked, choice))
    with open_store() as store:
        found = store.winners(device=asked.device.name, engine=asked.engine)
    return [winner for winner in found if winner.problem in wanted]


def _tunable(engine: str) -> list[str]:
    """The kinds of problems that are tuned for an engine."""
    from tuner.engines.engine import engine_names, supports

    if engine not in engine_names():
        raise UnknownEngine(f"unknown engine {engine!r}{did_you_mean(engine, engine_names())}")
    return [kind for one in families() if supports(engine, one.name) for kind in one.problems]


def _in_use(logs: Iterable[Path]) -> list[str]:
    """The kinds of problems whose tuned files a server's log names."""
    from tuner.deploy.load_proof import prove_loads

    read = [load for load in prove_loads(logs).loads if load.used and load.origin == "tuned"]
    kinds = {"moe": "fused_moe", "gemm": "block_gemm", "fp8_block": "block_gemm"}
    kinds |= {"int8_block": "block_gemm", "fp8_channel": "channel_gemm"}
    return [
        load.key.partition(",")[0] if load.family == "attention" else kinds[load.family]
        for load in read
    ]


def _workload(logs: Sequence[Path]) -> list[str]:
    """The option that tunes for the batches of a log, if one shows any."""
    from tuner.profile.workload import batches_of_log

    for log in logs:
        with log.open(encoding="utf-8", errors="replace") as lines:
            if batches_of_log(lines):
                return ["--workload", str(log)]
    return []


def _commands(worth: Estimate, begin: Sequence[str], choice: FamilyChoice) -> list[str]:
    """The commands that tune what is worth it, the most valuable first, each family once."""
    found: dict[str, None] = {}
    for kind in worth.worth():
        family = family_named(kind)
        words = [*begin, *([family.flag] if family.flag else [])]
        for option in family.shaping:
            if option.name in choice.values:
                words += _given(option, choice.values[option.name])
        found[command_line(*words)] = None
    return list(found)


def _given(option: Option, value: object) -> list[str]:
    """An option as it was given."""
    if isinstance(value, bool):
        yes, _, no = option.flag.partition("/")
        return [yes if value else no]
    return [option.flag, str(value)]
