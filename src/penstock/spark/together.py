"""Several streams in one Spark session, started at the same moment.

All streams of a session share one map, the environment of the connector's Python processes, and Spark 4 writes into it
from each stream's thread without a lock. Two that add the same name at the same moment can leave the map with a wrong
size, and then no task of any stream can be sent to its executor any more until the session ends: "Illegal size 5 of
collection, expected 6", "Task not serializable". Names that are there already are only given new values, which is safe.
"""

from __future__ import annotations

import contextlib
from typing import Any

NAMES = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")
"""What Spark's `PythonStreamingSourceRunner` adds. Whoever reads them writes them before."""


def ready_for_several(spark: Any) -> None:
    """Make streams of this session safe to start together: all names that Spark would add are there before.

    `penstock pipeline` does it by itself. A session of Spark Connect is left as it is: its map is on another machine.
    """
    if not hasattr(spark, "_jsparkSession"):
        return
    with contextlib.suppress(Exception):  # Spark's own parts: another version may have others, and no such fault
        environment = environment_of(spark)
        for name in NAMES:
            environment.putIfAbsent(name, "")


def environment_of(spark: Any) -> Any:
    """The map, in Java."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    return sources.lookupDataSource("penstock").dataSourceCls().envVars()
