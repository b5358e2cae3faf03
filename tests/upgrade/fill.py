"""Fill a directory with all that a store can hold, say what is in it, and die without closing.

    python fill.py DIRECTORY

Uses only what every build has had since the first, whose directories this is for.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import penstock


def fill(ps: Any) -> dict[str, Any]:
    """All kinds of content. What is returned says what a reader must find."""
    told: dict[str, Any] = {}
    orders = ps.queue("orders")
    sent = orders.send_many([f"order {n}".encode() for n in range(2_000)])
    orders.send(b"urgent", priority=9, attributes={"table": 7, "name": "anna", "raw": b"\x00\xff", "price": 1.5})
    orders.send(b"in five minutes", delay=300)
    orders.send(b"in a year", delay=365 * 86_400)
    told["ids"] = [sent[0].id, sent[1_999].id]
    orders.receive_batch(max=500).ack()
    leased = orders.receive(max=3, lease=3_600)
    told["receipts"] = [message.receipt for message in leased]
    told["leased"] = [message.text for message in leased]
    again = orders.receive(max=2, lease=3_600)
    for message in again:
        message.release(error="the kettle is cold")
    for message in orders.receive(max=2, lease=3_600):
        message.release(delay=3_000, error="still cold")
    told["retrying"] = [message.text for message in again]

    audit = orders.channel("audit", start="head")
    audit.receive_batch(max=700).ack()
    audit.pause()
    report = orders.consumer("report")
    report.ack(report.read(max=100).next_offset)

    ledger = ps.create_queue("ledger.fifo", kind="fifo", content_dedup=True)
    for n in range(6):
        ledger.send(f"entry {n}".encode(), group=f"account {n % 2}")
    entry = ledger.receive(lease=3_600)
    told["entry"], told["entry_receipt"] = entry.text, entry.receipt

    jobs = ps.create_queue("jobs", max_receives=2, backoff=penstock.Backoff("fixed", base_ms=0))
    jobs.send(b"hopeless")
    for _ in range(2):
        jobs.receive().release(error="no such table")
    deadline = time.monotonic() + 10
    while not ps.queue("jobs.dead").peek(1) and time.monotonic() < deadline:
        time.sleep(0.01)

    once = ps.create_queue("once", policy="consume_once")
    once.send_many([b"first", b"second"])
    told["consumed"] = once.receive().text

    ps.create_queue(
        "settled", lease=77, retention=3_600, delay=1, message_bytes_max=1_000, receive_wait=2, max_receives=3,
        dead_letter="jobs.dead", backoff=penstock.Backoff("linear", base_ms=200), in_flight_max=10,
        tags={"team": "tea"},
    )  # fmt: skip
    quick = ps.create_queue("quick", deliver_unsynced=True)
    quick.send(b"soon")

    session = ps.session("worker-1", ttl=3_600)
    held = session.__enter__().queue("held")
    held.send(b"mine")
    told["held"] = held.receive(lease=3_600).text
    return told


if __name__ == "__main__":
    store = penstock.open(sys.argv[1])
    expected = fill(store)
    time.sleep(0.5)  # leases are written a moment later
    print(json.dumps(expected), flush=True)
    os._exit(0)
