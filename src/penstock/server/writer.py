"""A thread that writes one thing after the other.

An executor of the standard library would do as well, and takes half as long again to hand a job over: it makes a future
of each, with a lock and a condition, for who might wait for it. Here the job itself tells who has to hear of its end.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], None]


class Writer:
    """One thread. What it is given is done in that order; `close` waits for all of it.

    >>> writer, done = Writer("example"), []
    >>> writer.submit(lambda: done.append("first"))
    >>> writer.submit(lambda: done.append("second"))
    >>> writer.close()
    >>> done
    ['first', 'second']
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        atexit.register(self.close)  # who never closes it, and ends the process, has what it was given all the same

    def submit(self, job: Job) -> None:
        """Have a job done. It must not raise."""
        self._jobs.put(job)

    def close(self) -> None:
        """Wait until everything is done, and end the thread. Once more does nothing."""
        self._jobs.put(None)
        self._thread.join()
        atexit.unregister(self.close)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
