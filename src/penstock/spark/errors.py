"""What can go wrong in the connector.

SparkError
├── InvalidOption      an option is unknown, missing or wrong
├── DataLoss           messages that a stream has to read are gone
├── InvalidRow         a row cannot be sent: which one, which column, why
└── ServerFailed       the server cannot be reached, or refused
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from penstock.core.errors import PenstockError


class SparkError(PenstockError):
    """The base of them."""


class InvalidOption(SparkError, ValueError):
    """An option is unknown, missing or wrong."""


class DataLoss(SparkError):
    """Messages that a stream has to read are gone."""


class InvalidRow(SparkError, ValueError):
    """A row cannot be sent."""


class ServerFailed(SparkError):
    """The server cannot be reached, or refused. `code` is the error's name there; empty if there was no answer."""

    def __init__(self, message: str, code: str = "", status: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.status = status

    def __reduce__(self) -> tuple[type[ServerFailed], tuple[str, str, int]]:
        return type(self), (str(self), self.code, self.status)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """What we say ourselves is told in one line: Spark leaves the traceback out of what this process reports.

    For the processes that Spark starts: each ends when something has failed.
    """
    try:
        yield
    except PenstockError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
