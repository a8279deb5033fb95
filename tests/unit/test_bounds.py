"""What is refused before it is parsed, because a parser would take too long."""

import pytest

from api.bodies import _parse_form
from tuner import files
from tuner.deploy.cluster import parse_cluster
from tuner.errors import BadInput, MalformedCluster
from tuner.families.attention.workloads import read_workload
from tuner.files import KEY_PARTS, TOML_DEPTH, parse_toml
from workers.watches import read_watch_list

MANY = 20_000
LONG_KEYS = {
    "bare": "a." * MANY + "b = 1",
    "spaced": "a . " * MANY + "b = 1",
    "quoted": '"a."."=".' * MANY + "b = 1",
    "literal": "'a'.\t" * MANY + "b = 1",
    "a table": "[" + "a." * MANY + "b]",
    "a list of tables": "[[" + "a." * MANY + "b]]",
    "an inline table": "x = {" + "a." * MANY + "b = 1}",
    "a list": "x = [\n{" + "a." * MANY + "b = 1}]",
    "behind a comment": '# """\n' + "a." * MANY + "b = 1",
    "behind a string": 'x = ["""a"""", {' + "a." * MANY + "b = 1}]",
    "behind a literal": "x = ['''a''''', {" + "a." * MANY + "b = 1}]",
    "behind an escaped quote": 'x = ["\\\\", {' + "a." * MANY + "b = 1}]",
    "behind a line's end": "x = 1\r\n" + "a." * MANY + "b = 1",
    "one too many": "a." * KEY_PARTS + "b = 1",
}
DEEP = {
    "lists": "x = " + "[" * MANY,
    "tables": "x = " + "{a = " * MANY,
    "both": "x = " + "[{a = " * MANY,
    "one too many": "x = " + "[" * (TOML_DEPTH + 1) + "]" * (TOML_DEPTH + 1),
}


def test_toml_that_takes_too_long_is_refused_unparsed(subtests, monkeypatch):
    def parsed(text: str) -> object:
        raise AssertionError(text[:100])

    monkeypatch.setattr(files, "_loads", parsed)
    for bombs, said in ((LONG_KEYS, "a key has at most 16 parts"), (DEEP, "at most 32 deep")):
        for name, text in bombs.items():
            with subtests.test(name), pytest.raises(MalformedCluster, match=said):
                parse_cluster(text)


def test_other_files_are_refused_alike(tmp_path):
    file = tmp_path / "file.toml"
    file.write_text(LONG_KEYS["bare"])
    for read in (read_workload, read_watch_list):
        with pytest.raises(BadInput, match="a key has at most 16 parts"):
            read(file)


def test_dots_and_brackets_elsewhere_are_no_keys():
    text = "\n".join(
        [
            "a." * (KEY_PARTS - 1) + "b = 1",
            f'dots = "{"a." * MANY}" # {"a." * MANY}',
            f"brackets = '{'[' * MANY}'",
            f'lines = """{"a." * MANY}\n"" {"[" * MANY}"""',
            "hosts = [" + '"10.0.0.1", ' * 100 + "]",
            "numbers = [" + "1.5, " * 100 + "]",
            *(f"[[many]]\nx = [{n}]" for n in range(100)),
        ]
    )
    found = parse_toml(text, "it", BadInput)
    assert len(found["hosts"]) == len(found["numbers"]) == len(found["many"]) == 100


def test_the_lines_of_a_browser_s_form_end_with_one_character():
    """A browser sends CR and LF; TOML and its readers take LF."""
    assert _parse_form(b"cluster=a%20%3D%201%0D%0Ab%20%3D%202%0D") == {"cluster": "a = 1\nb = 2\n"}
