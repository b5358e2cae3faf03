"""The server of `penstock.testing`, as a process: `python -m penstock.testing PLACE serve ...`.

It ends with the process that has started it, however that ends: killed, by a timeout, or in a crash. The other end of
its standard input is open as long as that one lives. A server that is left alone ends in order, and removes `PLACE`.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time

from penstock.cli import main
from penstock.testing import STOP_SECONDS_MAX

_left_alone = threading.Event()


def _end_with_the_parent() -> None:
    while os.read(0, 1_024):
        pass
    _left_alone.set()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS_MAX)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    place = sys.argv.pop(1)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    try:
        main()
    finally:
        if _left_alone.is_set():
            shutil.rmtree(place, ignore_errors=True)
