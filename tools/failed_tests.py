"""A plugin of pytest that writes down which tests fail, and what is said of them, the moment they do.

    python -m pytest -p tools.failed_tests --failed-tests FILE

Each line of the file is one `Failure` as JSON. A test that fails in its set-up or tear-down is in it, too. The last
line is `null`: without it, the process has died before all tests were run.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

OPTION = "--failed-tests"


class Failure(msgspec.Struct):
    """What pytest calls the test, and its log: the traceback, and what it had printed."""

    test: str
    text: str


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that names the file."""
    parser.addoption(OPTION, metavar="FILE", required=True, help="where to write down which tests fail")


def pytest_configure(config: pytest.Config) -> None:
    """Write from now on."""
    config.pluginmanager.register(_Writer(config.getoption(OPTION)))


class _Writer:
    def __init__(self, path: str) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            failure = Failure(report.nodeid, f"{report.when}: {report.longreprtext}\n" + _printed(report))
            self._write(failure)

    def pytest_sessionfinish(self) -> None:
        self._write(None)

    def _write(self, line: Failure | None) -> None:
        with open(self.path, "ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")


def _printed(report: Any) -> str:
    return "".join(f"-- {name}\n{text}\n" for name, text in report.sections)
