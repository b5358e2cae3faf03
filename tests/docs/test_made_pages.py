"""What is made from the code, or from what was measured, is up to date; the site's navigation has every page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from bench import report, run
from docs import pictures, reference
from tests.docs.page import DOCS

ROOT = DOCS.parent


@pytest.mark.parametrize("file", pictures.PICTURES)
def test_a_picture_shows_what_the_code_does(file: str) -> None:
    assert (DOCS / file).read_text() == pictures.PICTURES[file](), "run: python -m docs.draw"


@pytest.mark.parametrize("file", reference.PAGES)
def test_a_page_of_the_reference_says_what_the_code_says(file: str) -> None:
    assert (DOCS / file).read_text() == reference.PAGES[file](), "run: python -m docs.draw"


def test_the_reference_has_every_metric_of_the_package() -> None:
    page = reference.PAGES["reference/metrics.md"]()
    sources = "\n".join(path.read_text() for path in (ROOT / "src" / "penstock").rglob("*.py"))
    written = set(re.findall(r'(?:MetricFamily|family_of)\(\s*"(penstock_\w+)"', sources))
    assert len(written) > 20
    assert not [name for name in written if f"`{name}" not in page]


def test_the_reference_explains_every_error_code_of_nsq() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "src" / "penstock" / "protocols" / "nsq").glob("*.py"))
    written = set(re.findall(r'"(E_[A-Z_]+)"', sources))
    assert len(written) > 8
    page = reference.PAGES["reference/errors.md"]()
    assert not [code for code in written if f"| `{code}` |" not in page]


def test_the_page_of_benchmarks_is_made_of_the_newest_run() -> None:
    history = report.HISTORY.read_text()
    assert report.PAGE.read_text() == report.page(history), "run: python -m bench.report"
    charts = report.charts(history)
    assert {path.name: path.read_text() for path in report.PICTURES.iterdir()} == charts
    assert set(report.QUESTIONS) == {run.label(script) for script in run.SCRIPTS}


def test_the_page_of_benchmarks_says_all_that_was_missed() -> None:
    _, sections = report.newest_run(report.HISTORY.read_text())
    missed = sum(section.count(report.MISSED) for section in sections.values())
    assert missed
    assert report.PAGE.read_text().count("The target was at ") == missed


def test_a_new_run_comes_before_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = tmp_path / "history.md"
    shutil.copy(report.HISTORY, history)
    monkeypatch.setattr(report, "HISTORY", history)
    facts, sections = report.newest_run(history.read_text())
    runs = history.read_text().count("\n## ")
    again = [re.sub(r"\n\*Measured .*\*\n", "", f"## {text}") for text in sections.values()]
    table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {fact} |" for name, fact in facts.items())])
    run.remember(table.replace("24 GiB", "48 GiB"), again)
    assert report.newest_run(history.read_text())[0]["memory"] == "48 GiB"
    assert history.read_text().count("\n## ") == runs + 1
    assert "48 GiB" in report.page(history.read_text())


def _pages_of(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    if isinstance(entry, dict):
        return [page for value in entry.values() for page in _pages_of(value)]
    assert isinstance(entry, list)
    return [page for each in entry for page in _pages_of(each)]


def test_the_navigation_of_the_site_has_every_page_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text().replace("!!python/object/apply:pymdownx.slugs.slugify", "")
    shown = _pages_of(yaml.safe_load(text)["nav"])
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if page.parent.name != "adr"]
    assert sorted(shown) == sorted(pages)
