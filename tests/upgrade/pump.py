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

import penstock

url, queue_name, until = sys.argv[1], sys.argv[2], Path(sys.argv[3])
sent: list[str] = []
received: list[str] = []
errors: list[str] = []
with penstock.connect(url, timeout=60) as ps:
    queue = ps.queue(queue_name)
    is_empty = False
    while not (until.exists() and is_empty):
        try:
            if not until.exists():
                body = f"{queue_name}-{len(sent) + len(errors)}"
                queue.send(body)
                sent.append(body)
            batch = queue.receive(max=10, wait=0.2)
            is_empty = not batch
            for message in batch:
                message.ack()
                received.append(message.text)
                if len(received) == 1:
                    print("begun", flush=True)
        except penstock.PenstockError as error:
            errors.append(f"{type(error).__name__}: {error}")
            time.sleep(0.2)
print(json.dumps({"sent": sent, "received": received, "errors": errors}), flush=True)
