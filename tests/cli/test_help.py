"""What `--help` shows: every command has a section and an example that its options take."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
import shellingham
import typer
from typer.testing import CliRunner

from tuner.cli import complete
from tuner.cli.commands import app
from tuner.cli.help import EXAMPLES, OPTION_NAMES, SECTIONS
from tuner.problems.registry import families, parse_problem

RUNNER = CliRunner()
GROUP = typer.main.get_command(app)


def commands(group, words: str = "") -> Iterator[str]:
    for name, one in group.commands.items():
        yield f"{words} {name}".strip()
        if hasattr(one, "commands"):
            yield from commands(one, f"{words} {name}".strip())


ALL = list(commands(GROUP))
KINDS = [kind for family in families() for kind in family.problems]


def run(*words: str) -> str:
    done = RUNNER.invoke(app, words, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


def test_each_command_has_one_section():
    listed = [name for section in SECTIONS.values() for name in section]
    assert sorted(listed) == sorted(GROUP.commands)
    assert len(listed) <= 18


def test_a_group_that_lists_needs_no_word_for_it(subtests):
    groups = [words.removesuffix(" list") for words in ALL if words.endswith(" list")]
    for words in (one for one in groups if one not in ("results", "admin keys")):
        with subtests.test(words):
            assert run(*words.split()) == run(*words.split(), "list")
            refused = RUNNER.invoke(app, [*words.split(), "--json", "list"])
            assert (refused.exit_code, "write options behind `list`" in refused.output) == (2, True)


def test_each_command_has_an_example_and_nothing_else_has():
    assert set(EXAMPLES) == {"", *ALL}
    assert all(EXAMPLES.values())


def test_help_shows_the_examples_in_80_columns(subtests):
    for words in ("", *ALL):
        with subtests.test(words):
            said = run(*words.split(), "--help")
            assert run(*words.split(), "-h") == said
            assert max(map(len, said.splitlines())) <= 80
            for example in EXAMPLES[words]:
                assert f"    {example}\n" in said


def test_an_example_is_a_command_line_that_is_read(subtests):
    for example in (line for some in EXAMPLES.values() for line in some):
        with subtests.test(example):
            program, *words = shlex.split(example.rpartition("| ")[2])
            assert program == "tuner"
            read(words)
            for word in words:
                if word.partition(":")[0] in KINDS:
                    parse_problem(word)


def read(words: list[str]) -> None:
    """Read a command line as the program does; raises click's UsageError for a wrong one."""
    group, context = GROUP, GROUP.make_context("tuner", list(words), resilient_parsing=False)
    while hasattr(group, "commands") and (left := [*context._protected_args, *context.args]):
        name, group, left = group.resolve_command(context, left)
        context = group.make_context(name, list(left), parent=context)


def test_the_list_of_commands_is_grouped_and_nothing_is_cut():
    said = run("--help")
    places = [said.index(f"\n{section}:\n") for section in SECTIONS]
    assert places == sorted(places)
    assert "..." not in said.partition("Tune:")[2]
    assert "attention" not in said.partition("Tune:")[2].partition("Examples")[0]


def test_the_lists_of_groups_are_whole_sentences(subtests):
    for words in (one for one in ALL if any(other.startswith(f"{one} ") for other in ALL)):
        with subtests.test(words):
            assert "..." not in run(*words.split(), "--help").partition("ARGS]...")[2]


def test_no_command_shows_the_help():
    assert run() == run("--help") == run("help")
    assert run("help", "tune") == run("tune", "--help")
    assert run("help", "admin", "keys") == run("admin", "keys", "--help")


def test_completion_can_be_installed(monkeypatch):
    # The tests' own parent may be no shell.
    monkeypatch.setattr(shellingham, "detect_shell", lambda: ("bash", "/bin/bash"))
    assert "--install-completion" in run("--help")
    assert "complete" in run("--show-completion")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("tuner tune deepseek-r", {"deepseek-r1"}),
        ("tuner plan qwen3-235b-a22b-f", {"qwen3-235b-a22b-fp8"}),
        ("tuner tune deepseek-r1 --device H20", {"H20", "H200"}),
        ("tuner tune deepseek-r1 --measure p", {"predict"}),
        ("tuner check deepseek-r1 --family chunk", {"chunk_scan"}),
        ("tuner jobs submit deepseek-r1 --effort q", {"quick"}),
        ("tuner export --engine vl", {"vllm"}),
        ("tuner jobs --state ru", {"running"}),
    ],
)
def test_names_and_values_are_completed(words, found):
    typed = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = RUNNER.invoke(
        app, [], env={"_TUNER_COMPLETE": "complete_bash", **typed}, prog_name="tuner"
    )
    assert found <= set(done.output.split()), done.output


@pytest.mark.parametrize("words", ["export", "check", "report", "tune", "plan", "jobs submit"])
def test_the_sizes_of_a_family_have_a_help_of_their_own(words):
    common = run(*words.split(), "--help")
    assert all(option in common for option in ("  --device", "  --json", "  --family", "  --ep"))
    sizes = run(*words.split(), "--help-family", "attention")
    assert "A problem: decode_attention:q_heads=" in sizes
    assert "  --page-size" in sizes and "--page-size" not in common
    assert ("  --workload" in sizes) is (words in ("tune", "plan", "jobs submit"))
    assert "--block-shape" not in sizes
    every = [run(*words.split(), "--help-family", family.name) for family in families()]
    assert max(len(line) for text in every for line in text.splitlines()) <= 80
    wrong = RUNNER.invoke(app, [*words.split(), "--help-family", "attentoin"])
    assert wrong.exit_code == 2
    assert "did you mean 'attention'" in wrong.output


def test_the_version_names_engines_tritons_and_the_store_without_its_secrets(monkeypatch):
    store = "postgresql://me:secret@db/tuner?sslpassword=hidden"
    monkeypatch.setenv("TUNER_DATABASE_URL", store)
    code = "import sys; sys.argv = ['tuner', '--version']; from tuner.cli import main\n"
    code += "try: main()\nfinally: print({'torch', 'triton', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, *engines, place, loaded = done.stdout.splitlines()
    assert re.fullmatch(r"tuner \d+\.\d+\.\d+\S*", first)
    assert [line.split()[0].rstrip(":") for line in engines] == ["sglang", "vllm"]
    assert (place, loaded) == ("store: postgresql://me:***@db/tuner", "set()")
    monkeypatch.setenv("TUNER_DATABASE_URL", "mysql://me:secret@db/tuner")
    assert "store: no store is kept in 'mysql'" in run("--version")


def test_the_help_of_tune_fits_a_page():
    assert len(run("tune", "--help").splitlines()) <= 50


def test_families_are_completed_behind_a_comma():
    assert complete.families("attention,dense") == ["attention,dense_gemm"]


@pytest.mark.parametrize(("typed", "near"), [("tunne", "'tune'"), ("bundel", "'bundle'")])
def test_a_mistyped_command_is_told_the_near_one(typed, near):
    done = RUNNER.invoke(app, [typed])
    assert done.exit_code == 2
    assert f"Did you mean {near}" in done.output


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("tune m --attention", ""),
        ("plan m --dense-gemm", ""),
        ("export --dir out", ""),
        ("export --output out", "--out"),
        ("tune m --gpus 1", "--gpu"),
        ("jobs submit m --divice H200", "--device"),
        ("admin keys create ci --scopes read", "--scope"),
    ],
)
def test_an_unknown_option_is_told_a_near_one_or_none(words, near):
    """An option is not near because of its dashes."""
    done = RUNNER.invoke(app, words.split())
    assert done.exit_code == 2
    option = next(word for word in words.split() if word.startswith("--"))
    assert set(re.findall(r"--[a-z-]+", done.output)) - {"--help"} == {option, near} - {""}


def test_the_engines_names_of_options_are_understood(subtests):
    for name, ours in OPTION_NAMES.items():
        with subtests.test(name):
            done = RUNNER.invoke(app, ["tune", "deepseek-r1", f"--{name}", "x", "--device", "H200"])
            assert done.exit_code == 2
            assert f"Invalid value for '--{ours}'" in done.output


def test_the_lists_have_the_other_names():
    models, devices = run("list", "models").splitlines(), run("list", "devices").splitlines()
    assert models[models.index(next(m for m in models if m.startswith("glm-5-fp8 "))) + 1] == (
        "  or glm-5.1-fp8"
    )
    assert "  or L40S" in devices


def test_a_model_by_name_needs_no_reader_of_messages():
    """To import them takes longer than to read the model."""
    code = (
        "import sys; from tuner.cli.targets import read_command_target; "
        "assert read_command_target('deepseek-r1').model; "
        "sys.exit('tuner.diagnose' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("submit", "`tuner jobs submit`"),
        ("watches", "`tuner nightly watches`"),
        ("models", "`tuner list models`"),
        ("show", "`tuner jobs show` or `tuner results show`"),
    ],
)
def test_a_command_of_a_group_is_found_without_its_group(word, meant):
    done = CliRunner().invoke(app, [word])
    assert done.exit_code == 2
    assert f"Did you mean {meant}?" in " ".join(done.output.split())
