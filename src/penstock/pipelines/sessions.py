"""A Spark session that is quiet: its log goes to a file, and it listens on loopback unless it runs on a cluster."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.pipelines.errors import SparkMissing
from penstock.spark.together import ready_for_several
from penstock.spark.worker_python import worker_python

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
    """Start Spark; what it has to say goes to `spark.log` in the directory."""
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise SparkMissing("this needs Spark: pip install 'penstock[spark]'") from None
    directory.mkdir(parents=True, exist_ok=True)
    given = dict(conf or {})
    chosen = master or given.pop("spark.master", None) or "local[*]"
    os.environ.setdefault("PYSPARK_PYTHON", worker_python() if chosen.startswith("local[") else sys.executable)
    settings = {**_settings(directory, chosen), **given}
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
        from penstock.spark.shipping import ship

        ship(spark)
    ready_for_several(spark)
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
