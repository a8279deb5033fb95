"""The documentation: links, and what sources name of pages, lead somewhere."""

import pytest
from docs_pages import ROOT, main, mistakes


def test_pages_and_sources_name_what_is_there():
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0


def test_each_kind_of_mistake_is_told(tmp_path):
    files = {
        "zensical.toml": 'nav = [\n  { "Start" = "start.md" },\n  { "Gone" = "gone.md" },\n]',
        "README.md": "[a](docs/start.md#begin) [b](docs/start.md#end) [start.md](docs/words.md)",
        "docs/start.md": "# Start\n\n## Begin\n\n```\n# End\n```\n\n[words](words.md) [b](#begin)",
        "docs/words.md": "# Words\n\n![drawn](drawn.svg) [all](start.md) [none](none.md)",
        "docs/alone.md": "# Alone",
        "docs/drawn.svg": "",
        "docs/undrawn.svg": "",
        "tuner/one.py": '# docs/gone.md, "Begin"\n# docs/start.md#end\n# docs/start.md, "End"\n',
        "docker/two.yml": '# docs/start.md, "Begin". See "Start" in docs/words.md\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list(mistakes(tmp_path)) == [
        "zensical.toml: its nav and docs/ differ in alone.md, gone.md, words.md",
        "README.md: docs/start.md#end leads nowhere",
        "README.md: the link to docs/words.md is called start.md",
        "docs/words.md: none.md leads nowhere",
        "docs/alone.md: no chain of links leads to it from docs/start.md",
        "docs/undrawn.svg: no page shows it",
        "docker/two.yml: docs/words.md has no heading 'Start'",
        "tuner/one.py: docs/gone.md is not there",
        "tuner/one.py: docs/start.md has no #end",
        "tuner/one.py: docs/start.md has no heading 'End'",
    ]


def test_make_docs_asks_for_mistakes():
    rule = (ROOT / "Makefile").read_text().partition("\ndocs: ")[2].partition("\n\n")[0]
    assert "tests/docs_pages.py" in rule
