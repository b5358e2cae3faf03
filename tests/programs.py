"""Other people's programs that tests need: skipped loudly where they cannot be had, and failed in CI."""

from __future__ import annotations

import os

import pytest

from tools.debian import DebianError, Program, program


def needed(package: str, name: str | None = None) -> Program:
    """The program; without it the test is skipped, or fails when CI is set."""
    try:
        return program(package, name)
    except DebianError as error:
        reason = f"THIS TEST DID NOT RUN: it needs {name or package}, which cannot be had: {error}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
