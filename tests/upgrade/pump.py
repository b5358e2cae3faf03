"""A client of whatever build this runs with, that goes on while the servers are replaced: it sends and takes.

    python pump.py URL QUEUE UNTIL

It says `begun` when the first message has passed. It ends when the file UNTIL is there and the queue is empty, and says
what it sent and what it got. Uses only what every build has had since the first.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import penstock


def pump(ps: Any, name: str, until: Path) -> dict[str, list[str]]:
    """What was sent, what was received and acknowledged, and what failed."""
    told: dict[str, list[str]] = {"sent": [], "received": [], "errors": []}
    queue, is_empty, number = ps.queue(name), False, 0
    while not (until.exists() and is_empty):
        try:
            if not until.exists():
                number += 1
                queue.send(f"{name}-{number}")
                told["sent"].append(f"{name}-{number}")
            batch = queue.receive(max=10, wait=0.2)
            is_empty = not batch
            for message in batch:
                message.ack()
                told["received"].append(message.text)
                if len(told["received"]) == 1:
                    print("begun", flush=True)
        except penstock.PenstockError as error:
            told["errors"].append(f"{type(error).__name__}: {error}")
            time.sleep(0.2)
    return told


if __name__ == "__main__":
    with penstock.connect(sys.argv[1], timeout=60) as connected:
        print(json.dumps(pump(connected, sys.argv[2], Path(sys.argv[3]))), flush=True)
