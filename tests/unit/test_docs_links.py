"""The documentation: every page is in the navigation, and links lead somewhere."""

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("**/*.md"))
TEXTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + PAGES
_LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")
_NAMED = re.compile(r"\[`?([\w-]+\.md)`?\]\(([^)\s]+)\)")


def test_every_page_is_in_the_navigation():
    settings = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    listed = re.findall(r"[\w-]+\.md", str(settings["nav"]))
    assert sorted(listed) == [page.name for page in PAGES]


def test_links_lead_to_files_and_headings(subtests):
    for text in TEXTS:
        with subtests.test(text.name):
            links = _LINK.findall(text.read_text(encoding="utf-8"))
            assert [link for link in links if not _leads_somewhere(text, link)] == []


def test_a_link_that_is_called_as_a_page_leads_there():
    named = [link for text in TEXTS for link in _NAMED.findall(text.read_text(encoding="utf-8"))]
    assert [link for link in named if link[1].partition("#")[0].rpartition("/")[2] != link[0]] == []


def _leads_somewhere(text: Path, link: str) -> bool:
    if re.match(r"\w+:", link):
        return True
    name, _, anchor = link.partition("#")
    target = text.parent / name if name else text
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", one.lower()) for one in headings]
    return {one.strip().replace(" ", "-") for one in plain}
