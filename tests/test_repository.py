"""The repository's promises to a newcomer: what README, Makefile and layout say is so."""

from __future__ import annotations

import ast
import gc
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()

# The design's rule: imports point inward. What each part of penstock may import of the others.
MAY_IMPORT = {
    "core": {"core"},
    "store": {"core", "store"},
    "server": {"core", "store", "server"},
    "cluster": {"core", "store", "server", "wire", "cluster"},
    "wire": {"core", "wire"},
    "client": {"core", "store", "server", "wire", "client"},
    "outbox": {"core", "client", "outbox"},
    "spark": {"core", "store", "wire", "client", "spark"},
    "pipelines": {"core", "store", "wire", "client", "spark", "pipelines", "testing"},
    "console": {"console"},
    "protocols": {"core", "server", "wire", "console", "protocols"},
}

# What the core must not have: a clock, randomness, files, sockets, threads.
IMPURE = {"asyncio", "os", "pathlib", "random", "secrets", "socket", "sqlite3", "threading", "time", "uuid", "uvloop"}

FUNCTION_LINES_MAX = 70


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module", autouse=True)
def no_garbage_of_others() -> None:
    """CPython 3.11 cannot parse while a finalizer formats a traceback: those of the tests before run now."""
    gc.collect()


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules_of(part: str) -> list[Path]:
    modules = sorted((ROOT / "src" / "penstock" / part).rglob("*.py"))
    assert modules, f"there is no penstock.{part}"
    return modules


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_every_link_of_the_other_pages_leads_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    assert links
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]


def test_every_command_of_contributing_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)\b", text)) - targets == set()
    modules = re.findall(r"python -m ((?:tools|docs)\.\w+)", text)
    assert modules
    assert not [name for name in modules if not (ROOT / f"{name.replace('.', '/')}.py").exists()]


def test_constraints_pin_every_dependency_and_name_no_host() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines[0].startswith("#")
    pinned = {re.sub("[-_.]+", "-", line.partition("==")[0]).lower() for line in lines[1:]}
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line) for line in lines[1:])
    wanted = [
        *project()["dependencies"],
        *(each for some in project()["optional-dependencies"].values() for each in some),
    ]
    names = {re.sub("[-_.]+", "-", re.split(r"[\[<>=;]", each)[0].strip()).lower() for each in wanted}
    assert names <= pinned


def test_every_command_of_the_readme_is_a_target_that_make_lists() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    targets = set(re.findall(r"^  make ([\w-]+) ", listed, re.MULTILINE))
    assert targets >= {"venv", "run", "test", "check", "bench", "soak"}
    assert targets >= set(re.findall(r"\bmake ([\w-]+) ", README))


def test_every_target_of_the_makefile_is_listed() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert phony
    assert set(phony[1].split()) == set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))


def test_ci_checks_and_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.findall(r"^make (\w+)$", script.read_text(), re.MULTILINE) == ["check", "test"]


def test_make_venv_installs_every_extra() -> None:
    extras = re.search(r"^EXTRAS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert extras
    assert set(extras[1].split(",")) == set(project()["optional-dependencies"])


def test_no_page_or_error_names_the_package_of_somebody_else() -> None:
    """`penstock` on PyPI is another project: ADR 32."""
    name = re.compile(r"install ['\"]?penstock(?!-mq)|\bpenstock\[(?:[a-z]+|\{)")
    written = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "Dockerfile", *ROOT.glob("docs/**/*.md")]
    written += [*ROOT.glob("src/**/*.py"), *ROOT.glob("deploy/**/*.*"), *ROOT.glob("examples/**/*.py")]
    found = {
        str(path.relative_to(ROOT)): line
        for path in written
        for line in path.read_text().splitlines()
        if name.search(line) and "0032" not in path.name
    }
    assert found == {}


def test_the_changelog_starts_with_the_version_of_the_package() -> None:
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest[1] == project()["version"]


def test_the_package_is_typed_for_its_users() -> None:
    assert (ROOT / "src" / "penstock" / "py.typed").exists()


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_imports_point_inward(part: str) -> None:
    parts = {path.name for path in (ROOT / "src" / "penstock").iterdir() if path.is_dir()}
    outward = [
        f"{path.name} imports {name}"
        for path in modules_of(part)
        for name in imports_of(path)
        if name.startswith("penstock.") and name.split(".")[1] in parts - MAY_IMPORT[part]
    ]
    assert not outward


def test_the_core_has_no_clock_no_randomness_and_no_io() -> None:
    impure = [
        f"{path.name} imports {name}"
        for path in modules_of("core")
        for name in imports_of(path)
        if name.split(".")[0] in IMPURE or name.startswith("numpy.random")
    ]
    assert not impure


def test_no_function_is_longer_than_seventy_lines() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert not found


def test_a_server_starts_without_loading_the_clients_library() -> None:
    code = "import sys; from penstock import assembly; sys.exit('penstock.api' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
