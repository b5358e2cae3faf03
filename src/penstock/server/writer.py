"""A thread that writes one thing after the other.

An executor of the standard library would do as well, and takes half as long again to hand a job over: it makes a future
of each, with a lock and a condition, for who might wait for it. Here the job itself tells who has to hear of its end.
Not compiled with `server/tasks.py`, its only user: compiled classes have no weak references, and the finalizer needs
one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], None]


class Writer:
    """One thread. What it is given is done in that order; `close` waits for all of it, and so does the process's end.

    >>> writer, done = Writer("example"), []
    >>> writer.submit(lambda: done.append("first"))
    >>> writer.submit(lambda: done.append("second"))
    >>> writer.close()
    >>> done
    ['first', 'second']
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        thread.start()
        self._end = weakref.finalize(self, _end, self._jobs, thread)

    def submit(self, job: Job) -> None:
        """Have a job done. It must not raise."""
        self._jobs.put(job)

    def close(self) -> None:
        """Wait until everything is done, and end the thread. Once more does nothing."""
        self._end()


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # and what it holds on to


def _end(jobs: SimpleQueue[Job | None], thread: threading.Thread) -> None:
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join()
