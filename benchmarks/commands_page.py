"""Write docs/commands.md, the reference of commands, from what `--help` says.

python benchmarks/commands_page.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer
from typer.testing import CliRunner

from tuner.cli.commands import app
from tuner.cli.help import SECTIONS
from tuner.problems.registry import families

OUT = Path(__file__).parents[1] / "docs" / "commands.md"
HEAD = """# Commands

This page is made from `--help`. Every command that prints data takes `--json`. Data goes to
stdout, and messages go to stderr. Exit code 0 means done, 1 that the work failed, 2 that the input
was wrong.
"""


def page() -> str:
    """Return the page's text: a heading and the help of each command."""
    commands = typer.main.get_command(app)
    parts = [HEAD, *(_part(words) for words in ([], *_names(commands)))]
    asked = (["tune", "--help-family", family.name] for family in families())
    parts += [f"### tuner {' '.join(words)}\n\n{_fenced(_said(words))}" for words in asked]
    return "\n".join(parts)


def _names(command: object, before: Sequence[str] = ()) -> Iterator[list[str]]:
    """Yield the words of each command in the order of `tuner --help`, with those of groups."""
    known = getattr(command, "commands", {})
    names = known if before else [name for some in SECTIONS.values() for name in some]
    for name in names:
        yield [*before, name]
        yield from _names(known[name], [*before, name])


def _part(words: Sequence[str]) -> str:
    level = "###" if len(words) > 1 else "##"
    return f"{level} {' '.join(['tuner', *words])}\n\n{_fenced(_said([*words, '--help']))}"


def _said(words: Sequence[str]) -> str:
    done = CliRunner().invoke(app, [*words], env={"COLUMNS": "80"}, prog_name="tuner")
    assert done.exit_code == 0, done.output
    return done.stdout


def _fenced(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return f"```\n{lines}\n```\n"


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    OUT.write_text(page(), encoding="utf-8")
    print(OUT)


if __name__ == "__main__":
    main()
