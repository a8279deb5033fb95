"""What all commands share: groups and examples in `--help`, registering, errors, values."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from tuner.errors import BadInput, TunerError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tuner.store.remote import StoredResults
    from tuner.store.results import ResultStore


# The commands of each section, in the order to show, each in a few words: a line has 80 columns.
SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Tune": {
        "plan": "Say what servers run for a model, and what tuning brings",
        "tune": "Find the fastest configurations of a model's kernels",
        "export": "Write what was found as the files that the engine loads",
        "diff": "Say what changed between two exports or nights, and by how much",
        "results": "List, show, forget, give and take stored results",
        "report": "Draw the stored results: engine's time, tuned, roofline",
    },
    "Check": {
        "check": "Compile config files, or an engine's default constants",
        "diagnose": "Say what a server's log means, and what helps",
        "models": "List the models that can be named",
        "devices": "List the GPUs that can be tuned for",
        "engines": "List, add and remove engines and their Tritons",
    },
    "Deploy": {
        "bundle": "Pack tuned files, launch scripts and checks for a cluster",
        "preflight": "Check nodes before an engine is launched on them",
        "load-proof": "Show which config files a server loaded",
        "bench-report": "Compare benchmark results, or show one run",
    },
    "Jobs": {
        "submit": "Queue tuning jobs for a worker",
        "jobs": "List jobs, newest first",
        "job": "Show a job, or follow it",
        "cancel": "Cancel a job",
        "retry": "Queue a dead, failed or cancelled job again",
    },
    "Kept tuned": {
        "watches": "List, add and remove what is kept tuned every night",
        "coverage": "Show what is tuned, and what is stale or missing",
        "nightly": "Queue what is outdated or missing, at most once a day",
    },
    "Service": {
        "serve": "Serve the HTTP API, and run its jobs",
        "worker": "Run queued jobs on this machine",
        "workers": "List workers, drain and resume them",
        "keys": "Manage API keys",
        "migrate": "Create the store, or upgrade its schema",
        "prune": "Delete old jobs, nights and trials that no result needs",
    },
}

# By the words of a command, what stands below "Examples:" in its --help.
EXAMPLES: Mapping[str, Sequence[str]] = {
    "": (
        "tuner tune deepseek-r1 --tp 8 --device H200",
        "tuner export --device H200",
        "tuner diagnose server.log",
    ),
    "plan": (
        "tuner plan deepseek-r1 --tp 8 --device H200",
        "tuner plan --cluster cluster.toml --device H20",
    ),
    "tune": (
        "tuner tune deepseek-r1 --tp 8 --device H200",
        "tuner tune ./config.json --tp 4 --device L40S --measure predict",
        "tuner tune server.log --device L40S --engine sglang==0.4.4",
        "tuner tune qwen3-235b-a22b --tp 8 --attention --workload chat",
        "tuner tune --cluster cluster.toml --device H20",
    ),
    "export": (
        "tuner export glm-4.6 --tp 8 --device H200",
        "tuner export --device L40S --allow-predicted --out configs",
        "tuner export --device H20 --model deepseek-r1 --tp 16 --engine vllm",
        "tuner export --device H20 --server http://tuner:8765",
    ),
    "diff": (
        "tuner diff configs-2026-11-24 configs-2026-11-25",
        "tuner diff 2026-11-24 2026-11-25",
    ),
    "results": (
        "tuner results list --device H200",
        "tuner results import results_out/NVIDIA_H200/*.jsonl.gz",
    ),
    "results list": ("tuner results list --server http://tuner:8765",),
    "results show": ("tuner results show block_gemm:N=3072,K=1536 --device H100",),
    "results forget": ("tuner results forget block_gemm:N=3072,K=1536 --device H100",),
    "results export": ("tuner results export --device H200 --engine vllm==0.33.0",),
    "results import": ("tuner results import results_out/NVIDIA_H200/*.jsonl.gz",),
    "report": (
        "tuner report --device L40S",
        "tuner report --device H200 --model deepseek-r1 --tp 8 --out pictures",
    ),
    "check": (
        "tuner check configs/*.json --device L40S",
        "tuner check --attention deepseek-r1 --tp 8 --engine sglang==0.4.4",
    ),
    "diagnose": (
        "tuner diagnose node*.log",
        "docker logs sglang 2>&1 | tuner diagnose -",
        "tuner diagnose crash.log --device L40S --write-patch fix.patch",
    ),
    "models": ("tuner models", "tuner models --json"),
    "devices": ("tuner devices",),
    "engines": ("tuner engines list", "tuner engines add sglang==0.5.16"),
    "engines list": ("tuner engines list",),
    "engines add": ("tuner engines add vllm==0.10.2",),
    "engines remove": ("tuner engines remove vllm==0.10.2",),
    "bundle": (
        "tuner bundle --device L40S --cluster cluster.toml",
        "tuner bundle --device L40S --cluster cluster.toml --node n1=captures/n1",
    ),
    "preflight": (
        "tuner preflight",
        "tuner preflight --node node01=captures/node01 --cluster cluster.toml",
    ),
    "load-proof": ("tuner load-proof l40s-4x8-NVIDIA_L40S.tar.gz server.log",),
    "bench-report": (
        "tuner bench-report after.txt",
        "tuner bench-report before after",
    ),
    "submit": (
        "tuner submit deepseek-r1 --tp 8 --device H200",
        "tuner submit mixtral-8x7b --tp 2 --device A100 --server http://tuner:8765",
    ),
    "jobs": ("tuner jobs --state running", "tuner jobs --device H200 --json"),
    "job": ("tuner job 01k5x8j3a1qf7s9d2m4n6p8r0t --follow",),
    "cancel": ("tuner cancel 01k5x8j3a1qf7s9d2m4n6p8r0t",),
    "retry": ("tuner retry 01k5x8j3a1qf7s9d2m4n6p8r0t",),
    "watches": ("tuner watches", "tuner watches add deepseek-r1 --device H200 --tp 8"),
    "watches add": ("tuner watches add deepseek-r1 kimi-k2 --device H200 --tp 8 --tp 16",),
    "watches remove": ("tuner watches remove 3",),
    "coverage": ("tuner coverage --device H200", "tuner coverage --watched"),
    "nightly": ("tuner nightly --dry-run", "tuner nightly --last"),
    "serve": ("tuner serve", "tuner serve --host 0.0.0.0 --port 8765"),
    "worker": ("tuner worker", "tuner worker --processes 4 --device L40S"),
    "workers": ("tuner workers", "tuner workers drain gpu-0@node01 --wait"),
    "workers drain": ("tuner workers drain gpu-0@node01 --wait",),
    "workers resume": ("tuner workers resume gpu-0@node01",),
    "keys": ("tuner keys add alice", "tuner keys list"),
    "keys add": ("tuner keys add ci --scope submit --token-file token",),
    "keys ensure": ("tuner keys ensure web --token-file token --scope read",),
    "keys list": ("tuner keys list",),
    "keys revoke": ("tuner keys revoke alice",),
    "migrate": ("tuner migrate",),
    "prune": ("tuner prune --days 180",),
}

# What the engines call our options. The words of an option's help name them.
OPTION_NAMES: Mapping[str, str] = {
    "tp-size": "tp",
    "tensor-parallel-size": "tp",
    "ep-size": "ep",
    "expert-parallel-size": "ep",
    "dp-size": "dp",
    "data-parallel-size": "dp",
    "tensor_parallel_size": "tp",
    "tp_size": "tp",
    "moe-dense-tp-size": "moe-dense-tp",
}


OF_FAMILIES = "of_families"  # a command's attribute: the names of its options that families list


def option_name(name: str) -> str:
    """Our name of an option, by an engine's."""
    return OPTION_NAMES.get(name, name)


class Commands(TyperGroup):
    """The commands of `tuner`, listed by section. `tuner help tune` is `tuner tune --help`."""

    def resolve_command(self, ctx, args):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  # typer's own types
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"] if args[1:] else ["--help"]
            if args == ["--help"]:
                typer.echo(ctx.get_help())
                raise typer.Exit
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx, formatter) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        widest = max(map(len, self.commands))
        for section, commands in SECTIONS.items():
            known = {name: text for name, text in commands.items() if name in self.commands}
            with formatter.section(section):
                formatter.write_dl([(name.ljust(widest), text) for name, text in known.items()])


class Command(TyperCommand):
    """A command whose help lists its own options first, and below them those of families."""

    def format_options(self, ctx, formatter) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        of_families = getattr(self.callback, OF_FAMILIES, ())
        sections: dict[str, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            record = one.get_help_record(ctx)
            if record is None:
                continue
            if one.param_type_name == "argument":
                title = "Arguments"
            else:
                title = "Options of kernels" if one.name in of_families else "Options"
            sections.setdefault(title, []).append(record)
        for title, records in sorted(sections.items()):
            with formatter.section(title):
                formatter.write_dl(records)


def add_examples(group: typer.Typer, words: str = "") -> None:
    """Write the examples of all commands into their help."""
    group.info.epilog = _epilog(words)
    for one in group.registered_commands:
        name = one.name or one.callback.__name__.replace("_", "-")  # type: ignore[union-attr]
        one.epilog = _epilog(f"{words} {name}".strip())
    for sub in group.registered_groups:
        assert sub.typer_instance is not None
        name = sub.name if isinstance(sub.name, str) else sub.typer_instance.info.name
        sub.epilog = _epilog(f"{words} {name}".strip())
        add_examples(sub.typer_instance, f"{words} {name}".strip())


def _epilog(words: str) -> str:
    lines = [f"  {line}" for line in EXAMPLES.get(words, ())]
    return "\b\n" + "\n".join(["Examples:", *lines]) if lines else ""


P = ParamSpec("P")
R = TypeVar("R")

app = typer.Typer(
    name="tuner",
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": option_name},
    rich_markup_mode=None,  # importing rich would double the time that --help takes
    pretty_exceptions_enable=False,
)


@app.callback()
def tuner(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Tune, check, store and ship launch configurations for LLM engines' Triton kernels."""
    if version:
        typer.echo(f"tuner {metadata.version('engine-tuner')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Register a top-level command; see `guarded`."""
    return app.command(cls=Command)(guarded(function))


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command so that a TunerError prints one line and sets the exit code."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TunerError as error:
            say(f"tuner: error: {error}")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            say("tuner: interrupted; run the same command again to go on")
            raise typer.Exit(130) from None
        except BrokenPipeError:  # `tuner models | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None

    return wrapper


def refuse_foreign(package: str) -> None:
    """Raises BadInput if `import {package}` would not find the package installed with this one.

    The wheel installs `workers` and `api` as top-level packages, and others may use these names.
    """
    found, ours = find_spec(package), Path(__file__).resolve().parents[2] / package
    places = [Path(one).resolve() for one in (found and found.submodule_search_locations) or []]
    if places != [ours]:
        place = places[0] if places else found and found.origin
        raise BadInput(
            f"the package {package!r} of engine-tuner should be in {ours}, but Python finds "
            f"{place or 'none'}: remove that folder from the path, or install in an empty "
            "environment"
        )


def open_store() -> AbstractContextManager[ResultStore]:
    """Open this machine's store, for what was measured and chosen."""
    from tuner.store.connect import database_url
    from tuner.store.results import ResultStore

    return ResultStore.open(database_url(os.environ))


@contextmanager
def open_results(server: str | None) -> Iterator[StoredResults]:
    """Open the results of this machine's store, or of a server."""
    if server is None:
        with open_store() as store:
            yield store
        return
    from tuner.jobs.client import RemoteQueue, api_key
    from tuner.store.remote import RemoteResults

    yield RemoteResults(RemoteQueue(server, api_key(os.environ)))


def say(text: str) -> None:
    """Print a message to stderr: folded for a terminal, and whole for what reads it elsewhere."""
    if sys.stderr.isatty():
        from tuner.render import folded

        text = folded(text)
    typer.echo(text, err=True)


def show(as_json: bool, value: Callable[[], object], text: Callable[[], str]) -> None:
    """Print a result, as JSON or as text."""
    if as_json:
        print_json(value())
    else:
        lines = text()
        typer.echo(lines, nl=not lines.endswith("\n"))


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))
