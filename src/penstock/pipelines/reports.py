"""How a pipeline goes, told to the server that it reads from: the console shows it, and who looks there needs no file.

A report is a message in the queue `penstock.pipelines`, with the pipeline's name as its group. The newest of a group
counts. The queue has no channels, and forgets what is older than a day. A server that refuses or does not answer is
left alone for a while: a pipeline never waits for its reports.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from penstock.pipelines.where import Where

QUEUE = "penstock.pipelines"
VERSION = 1
EVERY_S = 5.0
UNCHANGED_S = 30.0
AFTER_FAILURE_S = 60.0
LAST_S = 3.0
_SETTINGS = {"retention": 86_400, "retention_bytes": 16 * 1024 * 1024}


class Reports:
    """Sends the newest status from a thread of its own."""

    def __init__(self, where: Where, note: Callable[[str], None], every_s: float = EVERY_S) -> None:
        self._where = where
        self._note = note
        self._every_s = every_s
        self._next: dict[str, Any] | None = None
        self._wake = threading.Event()
        self._over = threading.Event()
        self._sent: tuple[float, str] = (0.0, "")
        self._thread = threading.Thread(target=self._run, name="penstock-reports", daemon=True)

    def tell(self, status: dict[str, Any]) -> None:
        """Report this, when it is time; a change of state at once."""
        if self._where.url is None:
            return
        self._next = {"version": VERSION, **status}
        if self._thread.ident is None:
            self._thread.start()
        if self._sent[1] != status["state"]:
            self._wake.set()

    def close(self) -> None:
        """Send the last one, if the server takes it within seconds."""
        self._over.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(LAST_S)

    def _run(self) -> None:
        from penstock.spark import options
        from penstock.spark.errors import ServerFailed
        from penstock.spark.server import Connection

        given = options.Where(self._where.url, token=self._where.token, ca_file=self._where.ca_file, timeout_s=1.0)
        told, is_made, is_noted = "", False, False
        while True:
            status, is_last = self._next, self._over.is_set()
            text = json.dumps({key: each for key, each in (status or {}).items() if key != "updated_at"})
            pause_s = self._every_s
            if status is not None and (text != told or time.monotonic() - self._sent[0] > UNCHANGED_S):
                connection = Connection(given)
                try:
                    if not is_made:
                        settings = {"name": QUEUE, "settings": _SETTINGS, "channels": []}
                        connection.ask("POST", "/v1/queues", settings)
                        is_made = True
                    message = {"body": json.dumps(status), "group": status["pipeline"]}
                    connection.ask("POST", f"/v1/queues/{QUEUE}/messages", [message])
                    told = text
                    self._sent = (time.monotonic(), status["state"])
                except ServerFailed as error:
                    if self._sent[0] == 0.0 and not is_noted:
                        refused = f"the status of this pipeline cannot be sent to the server ({QUEUE}): {error}"
                        self._note(refused if error.status else f"no answer yet: {error}")
                        is_noted = True
                    pause_s, is_made = AFTER_FAILURE_S, False
                    self._sent = (self._sent[0], status["state"])
                finally:
                    connection.close()
            if is_last:
                return
            self._wake.wait(pause_s)
            self._wake.clear()
