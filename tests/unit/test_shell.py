"""Lines to paste are made by the functions that quote them, and are never broken."""

import ast
import re
from pathlib import Path

import pytest

from tuner.cli.help import SECTIONS
from tuner.render import folded
from tuner.shell import command_line, export_line, unset_line

ROOT = Path(__file__).parents[2]
FAR = "/a folder/" + "with a long name/" * 6


@pytest.mark.parametrize(
    "line",
    [
        export_line("SGLANG_MOE_CONFIG_DIR", FAR),
        f"  {export_line('NCCL_IB_HCA', FAR)}",
        unset_line(["A" * 50, "B" * 50]),
        command_line("tuner", "tune", FAR, "--device", "L40S"),
        f"next, on a machine with this GPU: {command_line('tuner', 'tune', FAR)}",
        f"written: x; apply it with: {command_line('patch', '-p1', '-d', FAR)}",
    ],
)
def test_a_line_to_paste_is_never_folded(line):
    assert folded(f"a word\n{line}\nanother", 40) == f"a word\n{line}\nanother"


def test_a_command_in_a_sentence_stays_in_one_line():
    command = command_line("tuner", "tune", "a model", "--device", "L40S")
    text = folded(f"the store has no winners for this GPU: run `{command}` first, or wait", 30)
    assert f"`{command}`" in text.splitlines()
    prose = "tuners differ: exported files are unset, and tunes of a tuner are long enough to fold"
    assert len(folded(prose, 40).splitlines()) == 3


# In an f-string, a command or a variable with a value behind it.
_COMMANDS = "|".join(name for section in SECTIONS.values() for name in section)
UNQUOTED = re.compile(
    rf"(?:^|[`$(\s])(?:tuner (?:{_COMMANDS})\b|(?:docker|kubectl|hf|patch|chmod|export|unset) |"
    r"pip (?:install|show) )[^`:;|{]*\{"
)
# They have functions of their own, because arrays of a shell need more quotes.
SCRIPTS = ROOT / "tuner/deploy/bundle/scripts.py"


def test_values_get_into_commands_by_these_functions_alone(subtests):
    paths = [path for name in ("tuner", "api", "workers") for path in (ROOT / name).rglob("*.py")]
    for path in {*paths} - {SCRIPTS, ROOT / "tuner/shell.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.JoinedStr):
                continue
            text = "".join(n.value if isinstance(n, ast.Constant) else "{" for n in node.values)
            if UNQUOTED.search(text):
                with subtests.test(f"{path.relative_to(ROOT)}:{node.lineno}"):
                    pytest.fail(f"{text!r}: use tuner.shell")
