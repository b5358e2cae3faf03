"""The documentation says what the code does: drawn tables are current, and every name leads somewhere."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import penstock
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


PACKAGE = ROOT / "src" / "penstock"
GENERATED = PACKAGE / "client" / "sync"
MODULES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if GENERATED not in path.parents and (path.name != "__init__.py" or path.parent == PACKAGE)
)


def test_every_module_has_its_row_in_the_architecture() -> None:
    """The message of a failure is the rows that are missing, with the first line of each module's docstring."""
    listed = _listed_modules()
    assert f"`{GENERATED.relative_to(PACKAGE).as_posix()}/`" in _module_tables()
    rows = [
        f"| `{name}` | {_first_line(path)} |"
        for path in MODULES
        if (name := path.relative_to(PACKAGE).as_posix()) not in listed
    ]
    assert not rows, "\n".join(["give each a row in docs/architecture.md, under 'Every module':", *rows])


def test_no_module_has_two_rows_in_the_architecture() -> None:
    listed = _listed_modules()
    assert not {name for name in listed if listed.count(name) > 1}


def _module_tables() -> str:
    text = (DOCS / "architecture.md").read_text()
    return text[text.index("## Every module") : text.index("## Where to change what")]


def _listed_modules() -> list[str]:
    """The modules in the first column of the tables."""
    cells = re.findall(r"^\| (`[^|]+`) \|", _module_tables(), re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([\w/]+\.py)`", cell)]


def _first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


PUBLIC = [name for name in penstock.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_says_what_it_is(name: str) -> None:
    """Ruff does not ask for docstrings: private functions may do without. What users see in `help()` may not."""
    public = getattr(penstock, name)
    own = vars(public).get("__doc__") if inspect.isclass(public) else public.__doc__
    assert own and own.strip()
    assert not [
        member for member in _public_members(public) if not (inspect.getdoc(getattr(public, member)) or "").strip()
    ]


def _public_members(public: object) -> list[str]:
    """Methods and properties that penstock itself defines."""
    return [
        member
        for kind in (public.__mro__ if inspect.isclass(public) else ())
        if kind.__module__.partition(".")[0] == "penstock"
        for member, value in vars(kind).items()
        if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property))
    ]


def test_public_members_are_looked_at() -> None:
    assert {"send", "receive"} <= set(_public_members(penstock.Queue))


def test_the_architecture_explains_every_kind_of_record_and_lane() -> None:
    text = (DOCS / "architecture.md").read_text()
    assert not [kind.name for kind in (*Kind, *LaneKind) if f"`{kind.name}`" not in text]


def test_decisions_are_numbered_without_a_hole() -> None:
    numbers = sorted(int(path.name[:4]) for path in (DOCS / "adr").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))
