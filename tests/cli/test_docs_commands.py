"""The commands that the documentation names, and their options, are those of the program."""

import re
from collections.abc import Iterator

import typer
from benchmark_scripts import load_script
from cases import ROOT

from tuner.cli.commands import app
from tuner.cli.help import OPTION_NAMES

GROUP = typer.main.get_command(app)
WRITTEN = [page for page in (ROOT / "docs").glob("*.md") if page.name != "commands.md"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(WRITTEN)]
_CODE = re.compile(r"^```.*?\n(.*?)^```|^    (.+?)$|`([^`]+)`", re.DOTALL | re.MULTILINE)
# The user and the database of PostgreSQL are called `tuner` as well.
_LINE = re.compile(r"(?:^|(?<!name)[\s$(/])tuner (?!tuner)([^\n|#>;&]*)", re.MULTILINE)
_QUOTED = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*)")


def test_the_reference_is_what_help_says():
    """If this fails: python benchmarks/commands_page.py"""
    script = load_script("commands_page.py")
    assert script.OUT.read_text(encoding="utf-8") == script.page()


def test_pages_name_commands_and_options_that_are_there(subtests):
    for page in PAGES:
        with subtests.test(page.name):
            assert [line for line in _lines(page.read_text(encoding="utf-8")) if _wrong(line)] == []


def test_a_wrong_name_is_found():
    lines = list(
        _lines("`tuner tun X` and\n\n    tuner plan M --no-such\n\n```\n$ tuner plan M\n```")
    )
    assert lines == ["tun X", "plan M --no-such", "plan M"]
    assert [_wrong(line) for line in lines] == ["tun", "--no-such", ""]


def _lines(text: str) -> Iterator[str]:
    """Yield the words behind each `tuner` in code; a log's line has a colon behind its first."""
    for match in _CODE.finditer(text):
        code = next(filter(None, match.groups()), "").replace("\\\n", " ")
        for line in _LINE.findall(code):
            if not re.match(r"[\w ]+:", line):
                yield line.strip()


def _wrong(line: str) -> str:
    """Return a word that the program does not know, "" if there is none."""
    command, words = GROUP, _QUOTED.sub("", line).split()
    while hasattr(command, "commands") and words and re.fullmatch(r"[a-z-]+,?", words[0]):
        word = words.pop(0).rstrip(",")
        if word.startswith("-"):
            break
        if word not in command.commands:
            return word
        command = command.commands[word]
    command = getattr(command, "commands", {}).get("list", command)
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    known |= {"--help", *(f"--{name}" for name in OPTION_NAMES)}
    asked = (f"--{name}" for name in _OPTION.findall(" ".join(words)))
    return next((name for name in asked if name not in known), "")
