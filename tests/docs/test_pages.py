"""Every block of the guides works as it is pasted, beside `make run`, and prints what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.page import DOCS, blocks, follow
from tests.docs.terminal import beside_make_run

FOLDERS = ("start", "concepts", "coming-from", "how-to")
PAGES = sorted(page for folder in FOLDERS for page in (DOCS / folder).glob("*.md"))
ELSEWHERE = {"how-to/postgresql.md", "how-to/spark.md", "how-to/cluster.md", "how-to/upgrade.md"}
"""Pages whose programs need more than a server, or a port of their own: see test_pages_with_more.py."""
OWN_SERVER = {"how-to/cluster.md", "how-to/upgrade.md"}


def name_of(page: Path) -> str:
    return page.relative_to(DOCS.parent if page.parent == DOCS.parent else DOCS).as_posix()


def test_there_are_guides() -> None:
    assert {page.parent.name for page in PAGES} == set(FOLDERS)
    assert {name_of(page) for page in PAGES} >= ELSEWHERE


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_of_a_kind_that_is_tested(page: Path) -> None:
    kinds = {"sh", "python", "text"}
    assert not [block for block in blocks(page) if block.language not in kinds and not block.title]
    assert page.read_text().count("```") == 2 * len(blocks(page)), "a block that the test does not see"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page in PAGES if name_of(page) not in ELSEWHERE], ids=name_of)
def test_a_guide_works_as_pasted(page: Path, tmp_path: Path) -> None:
    if not any(block.is_run for block in blocks(page)):
        return
    with beside_make_run(tmp_path) as terminal:
        follow(page, terminal)
        follow(page, terminal)  # somebody pastes it again


QUEUES = re.compile(
    r"""\b(?:queue|listen|listener)\("([\w.-]+)"|QueueName="([\w.-]+)"|[?]topic=(\w+)"""
    r"""|penstock (?:send|queue create) ([\w.-]+)"""
)


def test_no_page_meets_the_messages_of_another() -> None:
    pages: dict[str, set[str]] = {}
    for page in [*PAGES, DOCS.parent / "README.md"]:
        texts = [block.text for block in blocks(page) if not block.note.startswith("not run: ")]
        names = {name for text in texts for found in QUEUES.findall(text) for name in found if name}
        if name_of(page) not in OWN_SERVER:
            for name in names:
                pages.setdefault(name, set()).add(page.name)
    assert len(pages) > 20
    assert not {name: found for name, found in pages.items() if len(found) > 1}
