"""The Celery application of the tests: settings and the record's path come from the environment."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery
from kombu.common import Broadcast

SETTINGS = "COMPAT_CELERY_SETTINGS"
RECORD = "COMPAT_CELERY_RECORD"
BROADCASTS = "COMPAT_CELERY_BROADCASTS"

app = Celery("compat")
app.conf.update(
    {
        "worker_enable_remote_control": False,
        "worker_prefetch_multiplier": 4,
        "worker_hijack_root_logger": False,
        "task_ignore_result": True,
        "broker_connection_retry_on_startup": True,
        "task_queues": [Broadcast(name) for name in os.environ.get(BROADCASTS, "").split()] or None,
        **json.loads(os.environ.get(SETTINGS, "{}")),
    }
)


def record(*words: Any) -> None:
    """Append a line to what the tests read. One write: lines of several workers do not mix."""
    with open(os.environ[RECORD], "ab", buffering=0) as file:
        file.write((" ".join(map(str, (*words, os.getpid(), time.time()))) + "\n").encode())


@app.task
def note(number: int) -> None:
    """Say that it ran."""
    record("note", number)
    time.sleep(0.005)


@app.task(bind=True, max_retries=3)
def flaky(self: Any, number: int) -> None:
    """Succeed at the third try."""
    tries = self.request.retries
    record("flaky", number, tries)
    if tries < 2:
        raise self.retry(countdown=1)


@app.task(acks_late=True, reject_on_worker_lost=True)
def stubborn() -> None:
    """The first worker never comes to an end with it."""
    with open(os.environ[RECORD]) as file:
        is_first = "begun" not in file.read()
    record("begun")
    if is_first:
        time.sleep(600)
    record("ended")
