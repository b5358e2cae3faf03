"""What `penstock pipeline status` says of a queue with several partitions, on a server with several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from penstock.core.queues.partition import PARTITION_SHIFT
from tests.pipelines.running import Bench
from tests.spark.running import PATIENCE_S
from tests.spark.test_partitions import PARTITIONS, WideQueues, wide, wide_server

__all__ = ["wide", "wide_server"]

DEFINITION = 'name: copy\nsource: {queue: "{q}-q"}\nsinks:\n  - {name: files, from: source, parquet: out}\n'
WIDE_TERMINAL = os.environ | {"COLUMNS": "200"}


def status(bench: Bench, *words: str) -> str:
    command = [sys.executable, "-m", "penstock", "pipeline", "status", bench.file.name, *words]
    done = subprocess.run(
        command, cwd=bench.file.parent, capture_output=True, text=True, timeout=PATIENCE_S, env=WIDE_TERMINAL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_partitions_are_told_of(wide: WideQueues) -> None:
    wide.create()
    wide.send(700)
    bench = Bench(wide, DEFINITION)
    assert bench.run().state == "done"
    read = {str(part.partition): at.end for part, at in wide.ends().items()}
    wide.send(70, start=700)
    lags = {str(part.partition): at.end - read[str(part.partition)] for part, at in wide.ends().items()}

    found: dict[str, Any] = json.loads(status(bench, "--json", "--url", wide.url))
    source = found["queries"][0]["sources"][0]
    assert (source["offset"], source["offsets"]) == (None, read)
    assert (source["lag"], source["lags"]) == (70, lags)

    counted = [end - (int(partition) << PARTITION_SHIFT) for partition, end in read.items()]
    behind = max(lags, key=lambda partition: lags[partition])
    shown = f"{PARTITIONS} {min(counted)} to {max(counted)} 70 {behind}: {lags[behind]}"
    assert shown in " ".join(status(bench, "--url", wide.url).split())


def test_what_no_server_tells_is_left_out(wide: WideQueues) -> None:
    wide.create()
    wide.send(70)
    bench = Bench(wide, DEFINITION)
    assert bench.run().state == "done"
    nowhere = ("--url", "http://127.0.0.1:1")
    source = json.loads(status(bench, "--json", *nowhere))["queries"][0]["sources"][0]
    assert (source["lag"], source["lags"], len(source["offsets"])) == (None, None, PARTITIONS)
    assert "most behind" not in status(bench, *nowhere)
