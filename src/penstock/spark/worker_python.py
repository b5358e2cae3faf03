"""The program `penstock-python`: this Python, for Spark's workers, started in a third of the time.

Spark puts an archive of its own, `pyspark.zip`, first on its workers' path. Modules in an archive are never kept
compiled, so every Python that Spark starts (one for each stream, one for each kind of work) compiles pyspark anew.
Where the archive is part of the very pyspark that is installed, the installed modules are the same ones, and compiled.
So this takes the archive from the path, and becomes the Python that Spark asked for. Its planners get one thread for
numerical libraries, as Spark gives its workers: starting more of them takes longer than all that they do. (What is
imported here is little, for the same reason.)

    PYSPARK_PYTHON=penstock-python spark-submit job.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

PROGRAM = "penstock-python"


def worker_python() -> str:
    """What to name in `PYSPARK_PYTHON`: the program beside this Python; this Python where it is not installed."""
    import sysconfig

    program = os.path.join(sysconfig.get_path("scripts"), PROGRAM)
    return program if os.path.exists(program) else sys.executable


def without_archives(entries: Sequence[str], installed: Sequence[str]) -> list[str]:
    """The entries of a path without Spark's archives of modules that are also installed, beside them.

    >>> without_archives(["/opt/spark/python/lib/pyspark.zip", "/home/me"], ["/usr/lib/python3/dist-packages"])
    ['/opt/spark/python/lib/pyspark.zip', '/home/me']
    """
    return [entry for entry in entries if not any(_is_installed(entry, each) for each in installed)]


def _is_installed(entry: str, installed: str) -> bool:
    directory, name = os.path.split(entry)
    module = name.partition(".")[0].partition("-")[0]  # pyspark.zip, py4j-0.10.9.9-src.zip
    is_archive = name.endswith(".zip") and directory == os.path.join(installed, "pyspark", "python", "lib")
    return is_archive and os.path.exists(os.path.join(installed, module, "__init__.py"))


def main() -> None:
    """Become this Python, with a better path."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(without_archives(entries, sys.path))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
