"""The documentation's site builds, a broken link stops that, and pages load no other host."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("**/*.md"))


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def sources(tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    return tmp_path


class Loads(HTMLParser):
    """What a page makes the browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        names = {"script": "src", "img": "src", "link": "href", "iframe": "src", "object": "data"}
        if tag == "link" and given.get("rel") in ("canonical", "next", "prev"):
            return
        if value := given.get(names.get(tag, "")):
            self.found.append(value)


def test_the_site_builds_and_loads_no_other_host(sources):
    done = build(sources)
    assert done.returncode == 0, done.stdout + done.stderr
    site = sources / "build" / "site"
    built = sorted(site.glob("*.html"))
    assert {path.stem for path in built} == {page.stem for page in PAGES} | {"404"}
    for page in built:
        text = page.read_text(encoding="utf-8")
        loads = Loads()
        loads.feed(text)
        assert loads.found
        assert not [one for one in loads.found if re.match(r"(https?:)?//", one)], page.name
        local = [one.partition("?")[0] for one in loads.found if page.stem != "404"]
        assert not [one for one in local if not (site / one).exists()], page.name
        titles = re.findall('href="([^"]*)" title="Engine tuner"', text)
        assert {title.lstrip("./") for title in titles} == {"start.html"}
