"""Kafka's share groups, the peer that does queues, for `bench/cluster.py`: its Java client, for there is no other.

`ShareGroup.java` is compiled with the jars that `tools.kafka` fetches, and runs for as long as the benchmark does, so
that its code is warm.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tools.kafka import jars
from tools.servers import ServerError

SOURCE = Path(__file__).with_name("ShareGroup.java")
HEAP_MB = 256

Committed = Literal["later", "poll", "each"]
"""When acknowledgements are committed: with the next poll and without waiting, when all messages of a poll are
acknowledged, or after each message."""

_SILENT = """
rootLogger.level = off
"""


class ShareGroup:
    """A consumer that does what it is told, a turn at a time."""

    def __init__(self, process: subprocess.Popen[str], printed: Path) -> None:
        self._process = process
        self._printed = printed
        self.pid = process.pid

    def consume_s(self, topic: str, count: int, held_max: int, committed: Committed) -> float:
        """Consume and acknowledge so many messages of a topic; how many seconds it took.

        It holds `held_max` messages at a time; 0: what is the default.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{topic} {count} {held_max} {committed}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise ServerError(f"the share group's consumer ended: {self._printed.read_text()[-2_000:]}")
        return float(answer)


@contextmanager
def share_group(bootstrap: str, directory: Path) -> Iterator[ShareGroup]:
    """A consumer, started and stopped."""
    if shutil.which("javac") is None:
        raise ServerError("`javac` is not installed: the share groups' consumer needs a Java development kit")
    classes = str(jars() / "*")
    compiled = subprocess.run(
        ["javac", "-cp", classes, "-d", str(directory), str(SOURCE)], capture_output=True, text=True
    )
    if compiled.returncode:
        raise ServerError(f"javac does not compile {SOURCE.name}: {compiled.stderr}")
    logging = directory / "log4j2.properties"
    logging.write_text(_SILENT)
    printed = directory / "printed"
    command = ["java", f"-Xmx{HEAP_MB}m", f"-Dlog4j2.configurationFile={logging}", "-cp", f"{directory}:{classes}"]
    with printed.open("wb") as errors:
        process = subprocess.Popen(
            [*command, "ShareGroup", bootstrap],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield ShareGroup(process, printed)
    finally:
        process.kill()
        process.communicate()
