"""What can go wrong with a pipeline.

PipelineError
├── InvalidDefinition       the file cannot be followed: every problem, with its place and what to do
├── IncompatibleCheckpoint  the checkpoint is of another pipeline, or of this one before a change that it cannot follow
├── AlreadyRunning          another process runs this pipeline
├── PipelineFailed          a query failed, and trying again did not help
└── SparkMissing            Spark, or a library of a sink, is not installed
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


# -- errors of Spark ---------------------------------------------------------------------------------------------------

PERMANENT_ERRORS = ("InvalidOption", "DataLoss", "InvalidRow", "InvalidName", "AnalysisException", "SparkMissing")
"""What trying again does not help."""
_ERROR_LINE = re.compile(
    r"^\s*(?:[\w.]*\.)?(\w+(?:Error|Exception)|InvalidOption|DataLoss|InvalidRow|ServerFailed): (.+)$"
)
_OURS = re.compile(r"\bpenstock\.[\w.]+\.(\w+): (.+)$")
"""One of ours, without its traceback, has Spark's words before it."""
_WRAPPERS = ("PythonException", "SparkException", "StreamingQueryException", "ForeachBatchUserFuncException")
"""Errors that only say that there was another one."""


_NO_CONNECTOR = re.compile(r'Class org\.apache\.hadoop\.fs\.(s3a)\.\w+ not found|No FileSystem for scheme "?(\w+)')


def missing_connector(text: str) -> str | None:
    """What to install, if Spark says that it cannot read and write paths with some scheme.

    >>> missing_connector('UnsupportedFileSystemException: No FileSystem for scheme "gs"')
    'SparkMissing: Spark has no connector for gs:// paths: name its jar in the setting spark.jars.packages.'
    """
    match = _NO_CONNECTOR.search(text)
    if match is None:
        return None
    scheme = match[1] or match[2]
    what = f" (for this Spark org.apache.hadoop:hadoop-aws:{_hadoop_version()})" if scheme in ("s3a", "s3") else ""
    named = " Write s3a:// instead of s3://." if scheme == "s3" else ""
    told = (
        f"Spark has no connector for {scheme}:// paths: name its jar in the setting spark.jars.packages{what}.{named}"
    )
    return f"SparkMissing: {told}"


def _hadoop_version() -> str:
    """Of the Hadoop that the installed Spark has."""
    import pyspark

    jars = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    return next((each.stem.removeprefix("hadoop-client-api-") for each in jars), "VERSION")


def first_line(error: BaseException) -> str:
    """The first line that says something."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def reason_of(error: BaseException) -> str:
    """What went wrong, as one line: the error that began it, found in Spark's long text.

    >>> reason_of(Exception("[STREAM_FAILED] Query ..." + chr(10) + "  penstock.spark.errors.DataLoss: 3 are gone"))
    'DataLoss: 3 are gone'
    >>> reason_of(Exception("[STREAM_FAILED] perform latestOffset: penstock.spark.errors.DataLoss: 3 are gone"))
    'DataLoss: 3 are gone'
    >>> reason_of(ValueError("no such thing"))
    'ValueError: no such thing'
    """
    if (missing := missing_connector(str(error))) is not None:
        return missing
    lines = str(error).splitlines() or [""]
    said = [match for line in lines if (match := _OURS.search(line) or _ERROR_LINE.match(line))]
    found = [match for match in said if "Py4J" not in match[1]]
    ours = [match for match in found if match[1] in PERMANENT_ERRORS or match[1] == "ServerFailed"]
    users = [match for match in found if match[1] not in _WRAPPERS]
    for match in ours[:1] or users[-1:] or found[:1]:
        return f"{match[1]}: {match[2]}"[:1_000]
    return f"{type(error).__name__}: {lines[0]}"[:1_000]
