"""What can go wrong with a pipeline.

PipelineError
├── InvalidDefinition       the file cannot be followed: every problem, with its place and what to do
├── IncompatibleCheckpoint  the checkpoint is of another pipeline, or of this one before a change that it cannot follow
├── AlreadyRunning          another process runs this pipeline
├── PipelineFailed          a query failed, and trying again did not help
└── SparkMissing            Spark, or a library of a sink, is not installed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.errors import PenstockError


class PipelineError(PenstockError):
    """The base of them."""


@dataclass(frozen=True)
class Place:
    """Where in a definition something stands.

    >>> str(Place("orders.yaml", 12, "steps[1].sql")), str(Place("orders.yaml"))
    ('orders.yaml:12: steps[1].sql', 'orders.yaml')
    """

    file: str
    line: int | None = None
    key: str = ""

    def __str__(self) -> str:
        line = f":{self.line}" if self.line is not None else ""
        return f"{self.file}{line}" + (f": {self.key}" if self.key else "")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and what to do about it."""

    at: Place
    text: str

    def __str__(self) -> str:
        return f"{self.at}: {self.text}"


class InvalidDefinition(PipelineError, ValueError):
    """The definition cannot be followed. `problems` are all that were found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class IncompatibleCheckpoint(PipelineError):
    """What is in the checkpoint does not fit the pipeline."""


class AlreadyRunning(PipelineError):
    """Another process runs this pipeline."""


class PipelineFailed(PipelineError):
    """A query failed, and trying again did not help."""


class SparkMissing(PipelineError):
    """Something to be installed first."""
