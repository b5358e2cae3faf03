"""The documentation says what the code does: drawn tables are current, and every name leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import draw
from penstock.core.storage.keys import Kind, LaneKind

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PLACES = (ROOT, ROOT / "src", ROOT / "src" / "penstock", DOCS)


def test_there_is_documentation() -> None:
    assert {"architecture.md", "life-of-a-message.md", "delivery.md", "README.md"} <= {page.name for page in PAGES}


@pytest.mark.parametrize("page", draw.PAGES)
def test_drawn_tables_show_what_the_code_has(page: str) -> None:
    assert (DOCS / page).read_text() == draw.drawn(page), "run: python -m docs.draw"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if not _leads_somewhere(page, link)]
    assert not broken


def _leads_somewhere(page: Path, link: str) -> bool:
    if "://" in link:
        return True
    path, _, heading = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not heading or heading in _headings(target))


def _headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    names = re.findall(r"`([\w./-]+(?:\.py|\.md|/))`", page.read_text())
    missing = [name for name in names if not any((place / name).exists() for place in PLACES)]
    assert not missing


@pytest.mark.parametrize("room", ["core", "store", "server", "cluster"])
def test_every_module_has_its_line_in_the_architecture(room: str) -> None:
    text = (DOCS / "architecture.md").read_text()
    package = ROOT / "src" / "penstock"
    modules = [path.relative_to(package).as_posix() for path in sorted((package / room).rglob("*.py"))]
    assert modules
    unnamed = [name for name in modules if not name.endswith("__init__.py") and f"`{name}`" not in text]
    assert not unnamed, "give each a line in docs/architecture.md, under 'Every module'"


def test_the_architecture_explains_every_kind_of_record_and_lane() -> None:
    text = (DOCS / "architecture.md").read_text()
    assert not [kind.name for kind in (*Kind, *LaneKind) if f"`{kind.name}`" not in text]


def test_decisions_are_numbered_without_a_hole() -> None:
    numbers = sorted(int(path.name[:4]) for path in (DOCS / "adr").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))
