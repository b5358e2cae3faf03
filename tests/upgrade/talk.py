"""Talk to a server as a client of whatever build this runs with: every kind of command that settles or changes.

    python talk.py URL TRANSPORT

Uses only what every build has had since the first.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import penstock


def talk(ps: Any) -> dict[str, Any]:
    """What came of it, as another build must see it, too."""
    told: dict[str, Any] = {"transport": ps.transport}
    tea = ps.create_queue(
        "tea", lease=60, max_receives=2, backoff=penstock.Backoff("fixed", base_ms=0), tags={"a": "b"}
    )
    told["sent"] = len(tea.send_many([f"{n}".encode() for n in range(100)], attributes=[{"n": 1}] * 100))
    told["duplicates"] = [tea.send(b"once", dedup_id="x").duplicate for _ in range(2)]
    tea.receive_batch(max=50).ack()
    with tea.receive(wait=5) as message:
        told["attributes"] = message.attributes
    by_receipt = tea.receive(wait=5)
    tea.extend(by_receipt.receipt, 120)
    tea.ack(by_receipt.receipt)
    failing = tea.receive(wait=5)
    failing.release(error="spilt")
    told["history"] = [failure.error for failure in tea.search(failing.text)[0].history]
    with ps.unit_of_work() as work:
        taken = work.take("tea", wait=5)
        work.put("cups", b"of " + taken.body)
        work.commit()
    told["cups"] = [message.text for message in ps.queue("cups").peek(10)]
    audit = tea.channel("audit", start="head")
    audit.pause()
    audit.unpause()
    told["audited"] = len(audit.receive_batch(max=10))
    reader = tea.consumer("reader")
    reader.ack(reader.read(max=10).next_offset)
    told["offset"] = reader.offset
    with ps.session("worker", ttl=60) as session:
        told["in_session"] = session.queue("tea").receive(wait=5) is not None
        session.heartbeat()
    handled: list[str] = []
    with ps.listen("cups", lambda message: handled.append(message.text)):
        _wait_for(handled)
    told["handled"] = handled
    tea.configure(lease=61)
    told["lease_ms"] = tea.info().config.lease_ms
    try:
        ps.create_queue("wrong", lease=-1)
    except penstock.PenstockError as error:
        told["refused"] = isinstance(error, penstock.InvalidRequest)
    tea.purge()
    tea.delete()
    told["queues"] = sorted(queue if isinstance(queue, str) else queue.name for queue in ps.queues())
    return told


def _wait_for(handled: list[str]) -> None:
    deadline = time.monotonic() + 20
    while not handled and time.monotonic() < deadline:
        time.sleep(0.01)


if __name__ == "__main__":
    with penstock.connect(sys.argv[1], transport=sys.argv[2], timeout=20) as connected:
        print(json.dumps(talk(connected)), flush=True)
