"""A Spark session that is quiet: its log goes to a file, and it listens on loopback unless it runs on a cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.pipelines.errors import SparkMissing
from penstock.pipelines.locations import spark_settings
from penstock.spark.worker_python import worker_python

# Several streams in one Spark session, started at the same moment.
#
# All streams of a session share one map, the environment of the connector's Python processes, and Spark 4 writes into
# it from each stream's thread without a lock. Two that add the same name at the same moment can leave the map with a
# wrong size, and then no task of any stream can be sent to its executor any more until the session ends: "Illegal size
# 5 of collection, expected 6", "Task not serializable". Names that are there already are only given new values, which
# is safe.


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


# Sending Penstock to executors whose Python lacks it: a zip file that goes with the job.
#
# The libraries that it needs there (pyarrow, numpy, msgspec, xxhash) are compiled, and cannot go that way: they have to
# be in the executors' Python, or in an archive of a whole environment (`spark.archives`, see docs/spark.md).


_PACKAGES = ("penstock", "pyspark_penstock", "pyspark_penstock_lake")


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


_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""


def start_session(
    name: str, directory: Path, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> Any:
    """Start Spark; what it has to say goes to `spark.log` in the directory.

    Under `spark-submit`, the session is the one that was submitted, with its master. `sc://host:15002` is a server of
    Spark Connect, whose Python and executors have Penstock themselves.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise SparkMissing("this needs Spark: pip install 'penstock-mq[spark]'") from None
    directory.mkdir(parents=True, exist_ok=True)
    given = dict(conf or {})
    chosen = master or given.pop("spark.master", None) or _submitted_master() or "local[*]"
    if chosen.startswith("sc://"):
        return _connected(SparkSession.builder.remote(chosen), given)
    os.environ.setdefault("PYSPARK_PYTHON", worker_python() if chosen.startswith("local[") else sys.executable)
    settings = {**_settings(directory, chosen), **spark_settings(), **given}
    if chosen.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for noisy in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(noisy).disabled = True
    builder = SparkSession.builder.master(chosen).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise SparkMissing(f"Spark does not start: {str(error).splitlines()[0]} (it needs Java 17 or 21)") from error
    if not chosen.startswith("local["):
        ship(spark)
    ready_for_several(spark)
    return spark


def _submitted_master() -> str | None:
    """The master that `spark-submit` was told, if it has started this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark import SparkConf

    return SparkConf().get("spark.master")


def _connected(builder: Any, conf: Mapping[str, str]) -> Any:
    """A session of a Spark Connect server. Settings that a session cannot change are the server's."""
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise SparkMissing(f"no Spark Connect server: {str(error).splitlines()[0]}") from error
    for key, value in {"spark.sql.session.timeZone": "UTC", **conf}.items():
        spark.conf.set(key, value)
    return spark


def _settings(directory: Path, master: str) -> dict[str, str]:
    log4j = directory / "log4j2.properties"
    log4j.write_text(_LOG4J.format(level="warn", file=directory / "spark.log"))
    own = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j}",
    }
    if master.startswith("local"):
        loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        own |= loopback | {"spark.sql.shuffle.partitions": "4", "spark.python.unix.domain.socket.enabled": "true"}
    return own


def by_value(modules: list[str]) -> None:
    """Functions of these modules travel to the executors as they are: nobody can import them there."""
    from pyspark import cloudpickle

    for name in modules:
        if name in sys.modules:
            cloudpickle.register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]
