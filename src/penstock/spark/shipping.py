"""Sending Penstock to executors whose Python lacks it: a zip file that goes with the job.

The libraries that it needs there (pyarrow, numpy, msgspec, xxhash) are compiled, and cannot go that way: they have to
be in the executors' Python, or in an archive of a whole environment (`spark.archives`, see docs/spark.md).
"""

from __future__ import annotations

import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_PACKAGES = ("penstock", "pyspark_penstock")


def ship(spark: Any) -> Path:
    """Give every executor of this session the `penstock` that runs here. Returns the file that was sent."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-ship-"))
    archive = write_zip(directory / "penstock-for-executors.zip")
    spark.sparkContext.addPyFile(str(archive))
    return archive


def write_zip(path: Path) -> Path:
    """The sources of the packages as one zip file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _PACKAGES:
            spec = find_spec(package)
            assert spec is not None and spec.origin is not None
            root = Path(spec.origin).parent
            for source in sorted(root.rglob("*.py")):
                archive.write(source, source.relative_to(root.parent))
    return path
