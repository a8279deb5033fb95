"""Find broken references to pages, headings and pictures: `python tests/docs_pages.py`.

`make docs` runs it with the standard library alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
START = "start.md"
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
PICTURES = (".svg", ".webp", ".png")
# Files whose comments and messages name pages.
SOURCES = ("*.py", "*.toml", "*.yml", "*.cfg", "*.sh", "*.html", "Makefile", "*.md")
FOLDERS = ("api", "benchmarks", "docker", "examples", "migrations", "tests", "tuner", "workers")

_LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")
_TITLED = re.compile(r"\[`?([\w-]+\.md)`?\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_TITLE = r"\\?\"(?P<title>[^\"\\]+)"
_NAMED = re.compile(rf"(?<!\()docs/(?P<page>[\w-]+\.md)(?P<anchor>#[\w-]+)?(?:,? \(?{_TITLE})?")
_BEFORE = re.compile(rf"{_TITLE}\\?\" (?:in|of) docs/(?P<page>[\w-]+\.md)")
_MADE_UP = ("docs_pages.py", "test_docs_links.py")  # the pages that they name


def mistakes(root: Path = ROOT) -> Iterator[str]:
    """Yield a line for each broken reference."""
    docs = root / "docs"
    pages = sorted(docs.glob("*.md"))
    yield from _navigation(root, pages)
    texts = [*(root / name for name in TOP if (root / name).exists()), *pages]
    linked: set[Path] = set()
    for text in texts:
        links = _LINK.findall(text.read_text(encoding="utf-8"))
        for link in links:
            linked.add((text.parent / link.partition("#")[0]).resolve())
            if not _leads_somewhere(text, link):
                yield f"{text.relative_to(root)}: {link} leads nowhere"
        for title, link in _TITLED.findall(text.read_text(encoding="utf-8")):
            if Path(link.partition("#")[0]).name != title:
                yield f"{text.relative_to(root)}: the link to {link} is called {title}"
    reached = _reached(docs)
    for page in pages:
        if page not in reached:
            yield f"docs/{page.name}: no chain of links leads to it from docs/{START}"
    for picture in sorted(docs.rglob("*")):
        if picture.suffix in PICTURES and picture.resolve() not in linked:
            yield f"{picture.relative_to(root)}: no page shows it"
    yield from _named_in_sources(root)


def _navigation(root: Path, pages: list[Path]) -> Iterator[str]:
    text = (root / "zensical.toml").read_text(encoding="utf-8")
    nav = text.partition("nav = [")[2].partition("\n]")[0]
    listed, there = sorted(re.findall(r"[\w-]+\.md", nav)), [page.name for page in pages]
    if listed != there:
        differ = sorted({*listed} ^ {*there})
        yield f"zensical.toml: its nav and docs/ differ in {', '.join(differ) or 'repeated pages'}"


def _leads_somewhere(text: Path, link: str) -> bool:
    if re.match(r"\w+:", link):
        return True
    name, _, anchor = link.partition("#")
    target = text.parent / name if name else text
    return target.exists() and (not anchor or anchor in _anchors(target))


def _headings(page: Path) -> list[str]:
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    return [re.sub(r"[`*]", "", heading).strip() for heading in _HEADING.findall(text)]


def _anchors(page: Path) -> set[str]:
    plain = [re.sub(r"[^\w\- ]", "", one.lower()) for one in _headings(page)]
    return {one.strip().replace(" ", "-") for one in plain}


def _reached(docs: Path) -> set[Path]:
    """Return the pages to which a chain of links leads from the start page."""
    found: set[Path] = set()
    left = [docs / START]
    while left:
        page = left.pop()
        if page in found or not page.exists():
            continue
        found.add(page)
        names = (link.partition("#")[0] for link in _LINK.findall(page.read_text(encoding="utf-8")))
        left += [docs / name for name in names if re.fullmatch(r"[\w-]+\.md", name)]
    return found


def _named_in_sources(root: Path) -> Iterator[str]:
    folders = [root / name for name in FOLDERS]
    files = [path for glob in SOURCES for path in root.glob(glob)]
    files += [path for one in folders for glob in SOURCES for path in one.rglob(glob)]
    for file in sorted(one for one in {*files} if one.name not in _MADE_UP):
        text = file.read_text(encoding="utf-8", errors="replace")
        for match in (*_NAMED.finditer(text), *_BEFORE.finditer(text)):
            found = match.groupdict()
            page, title = root / "docs" / found["page"], found["title"]
            where = f"{file.relative_to(root)}: docs/{found['page']}"
            if not page.exists():
                yield f"{where} is not there"
            elif (anchor := found.get("anchor")) and anchor[1:] not in _anchors(page):
                yield f"{where} has no {anchor}"
            elif title and title.rstrip(",.") not in _headings(page):
                yield f"{where} has no heading {title!r}"


def main() -> None:
    sys.exit("\n".join(mistakes()) or 0)


if __name__ == "__main__":
    main()
