"""Define how `--help` shows commands: sections, examples, groups, and options of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

import typer
from typer.core import TyperGroup

# The commands of each section, in the order to show, each in a few words: a line has 80 columns.
SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Tune": {
        "plan": "Show which kernels servers run, and the gain of tuning",
        "tune": "Find the fastest configurations of a model's kernels",
        "check": "Compile config files, or an engine's default constants",
        "export": "Write the results as the files that the engine loads",
        "diff": "Compare two exports or two nights",
        "report": "Draw the results: engine's time, tuned time, roofline",
    },
    "Deploy": {
        "bundle": "Pack tuned files, launch scripts and checks for a cluster",
        "preflight": "Check nodes before an engine is launched on them",
        "load-proof": "Show which config files a server loaded",
        "bench-report": "Compare benchmark results, or show one run",
        "diagnose": "Explain the messages in a server's log",
    },
    "Service": {
        "serve": "Serve the HTTP API, and run its jobs",
        "worker": "Run queued jobs on this machine",
        "jobs": "Submit, list, show, follow, cancel and retry jobs",
        "nightly": "Keep models tuned: run a night, watches, coverage",
        "results": "List, show, forget, export and import results",
        "admin": "Manage keys, workers and the store",
    },
    "Know": {
        "list": "List models, devices, or engines on this machine",
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
        "tuner tune qwen3-235b-a22b --tp 8 --family attention --workload chat",
        "tuner tune --cluster cluster.toml --device H20",
    ),
    "export": (
        "tuner export glm-4.6 --tp 8 --device H200",
        "tuner export --device L40S --allow-predicted --out configs",
        "tuner export deepseek-r1 --tp 16 --device H20 --engine vllm",
        "tuner export --device H20 --server http://tuner:8765",
    ),
    "diff": (
        "tuner diff configs-2026-11-24 configs-2026-11-25",
        "tuner diff 2026-11-24 2026-11-25 --server http://tuner:8765",
    ),
    "report": (
        "tuner report --device L40S",
        "tuner report deepseek-r1 --tp 8 --device H200 --out pictures",
    ),
    "check": (
        "tuner check configs/*.json --device L40S",
        "tuner check deepseek-r1 --tp 8 --engine sglang==0.4.4",
    ),
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
    "diagnose": (
        "tuner diagnose node*.log",
        "docker logs sglang 2>&1 | tuner diagnose -",
        "tuner diagnose crash.log --device L40S --write-patch fix.patch",
    ),
    "serve": ("tuner serve", "tuner serve --host 0.0.0.0 --port 8765"),
    "worker": ("tuner worker", "tuner worker --processes 4 --device L40S"),
    "jobs": (
        "tuner jobs",
        "tuner jobs submit deepseek-r1 --tp 8 --device H200",
    ),
    "jobs list": ("tuner jobs --state running", "tuner jobs --device H200 --json"),
    "jobs submit": (
        "tuner jobs submit deepseek-r1 --tp 8 --device H200",
        "tuner jobs submit mixtral-8x7b --device A100 --server http://tuner:8765",
    ),
    "jobs show": ("tuner jobs show 01k5x8j3a1qf",),
    "jobs follow": ("tuner jobs follow 01k5x8j3a1qf",),
    "jobs cancel": ("tuner jobs cancel 01k5x8j3a1qf 01k5x8j3a1qg",),
    "jobs retry": ("tuner jobs retry 01k5x8j3a1qf",),
    "nightly": (
        "tuner nightly watches add deepseek-r1 --device H200 --tp 8",
        "tuner nightly run",
        "tuner nightly coverage --watched",
    ),
    "nightly run": ("tuner nightly run --dry-run", "tuner nightly run --last"),
    "nightly watches": ("tuner nightly watches",),
    "nightly watches list": ("tuner nightly watches --json",),
    "nightly watches add": (
        "tuner nightly watches add deepseek-r1 kimi-k2 --device H200 --tp 8 --tp 16",
    ),
    "nightly watches remove": ("tuner nightly watches remove 3",),
    "nightly coverage": (
        "tuner nightly coverage --device H200",
        "tuner nightly coverage --watched",
    ),
    "results": (
        "tuner results list --device H200",
        "tuner results import results_out/NVIDIA_H200/*.jsonl.gz",
    ),
    "results list": ("tuner results list --server http://tuner:8765",),
    "results show": ("tuner results show channel_gemm:N=3072,K=1536,dtype=fp8_w8a8 --device H100",),
    "results forget": (
        "tuner results forget channel_gemm:N=512,K=1536,dtype=fp8_w8a8 --device H100",
    ),
    "results export": ("tuner results export --device H200 --engine vllm==0.33.0",),
    "results import": ("tuner results import results_out/NVIDIA_H200/*.jsonl.gz",),
    "admin": ("tuner admin keys create alice", "tuner admin workers"),
    "admin keys": ("tuner admin keys create alice", "tuner admin keys list"),
    "admin keys create": ("tuner admin keys create ci --scope submit --token-file token",),
    "admin keys ensure": ("tuner admin keys ensure web --token-file token --scope read",),
    "admin keys list": ("tuner admin keys list",),
    "admin keys revoke": ("tuner admin keys revoke alice",),
    "admin workers": ("tuner admin workers", "tuner admin workers drain gpu-0@node01 --wait"),
    "admin workers list": ("tuner admin workers --json",),
    "admin workers drain": ("tuner admin workers drain gpu-0@node01 --wait",),
    "admin workers resume": ("tuner admin workers resume gpu-0@node01",),
    "admin migrate": ("tuner admin migrate",),
    "admin prune": ("tuner admin prune --days 180",),
    "list": ("tuner list models", "tuner list engines --add sglang==0.5.16"),
    "list models": ("tuner list models", "tuner list models --json"),
    "list devices": ("tuner list devices",),
    "list engines": (
        "tuner list engines",
        "tuner list engines --add vllm==0.10.2",
        "tuner list engines --remove vllm==0.10.2",
    ),
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


def option_name(name: str) -> str:
    """Return our name of an option, by an engine's."""
    return OPTION_NAMES.get(name, name)


class Commands(TyperGroup):
    """The commands of `tuner`, listed by section. `tuner help tune` is `tuner tune --help`."""

    def resolve_command(self, ctx, args):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  # typer's own types
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"] if args[1:] else ["--help"]
            if args == ["--help"]:
                typer.echo(ctx.get_help())
                raise typer.Exit
        if args and args[0] not in self.commands and (inner := _inside_groups(args[0])):
            ctx.fail(f"No such command '{args[0]}'. Did you mean {' or '.join(inner)}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        try:
            return super().invoke(ctx)
        except Exception as error:  # the class of an unknown option depends on typer's release
            word, near = getattr(error, "option_name", ""), getattr(error, "possibilities", None)
            if word and near:  # with their dashes, any two short options are near each other
                bare = word.lstrip("-")
                error.possibilities = [one for one in near if get_close_matches(bare, [one[2:]])]  # type: ignore[attr-defined]
            raise

    def format_commands(self, ctx, formatter) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        widest = max(map(len, self.commands))
        for section, commands in SECTIONS.items():
            known = {name: text for name, text in commands.items() if name in self.commands}
            with formatter.section(section):
                formatter.write_dl([(name.ljust(widest), text) for name, text in known.items()])


def _inside_groups(word: str) -> list[str]:
    """Return the commands of groups with this name, such as `tuner jobs submit`."""
    return [f"`tuner {words}`" for words in EXAMPLES if words.endswith(f" {word}")]


class Listing(TyperGroup):
    """A group whose command `list` may be left out."""

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            if named := next((word for word in args if word in self.commands), ""):
                typer.echo(f"tuner: error: write options behind `{named}`", err=True)
                raise typer.Exit(2)
            args = ["list", *args]
        return super().parse_args(ctx, args)


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
