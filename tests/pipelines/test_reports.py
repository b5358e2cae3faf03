"""A pipeline tells its server how it goes; the server's console and anybody else can read it there."""

from __future__ import annotations

import json
from typing import Any

import penstock
from penstock.core.errors import QueueNotFound
from penstock.pipelines.reports import QUEUE, Reports
from penstock.pipelines.where import Where
from tests.compat.server import Server, until
from tests.pipelines.running import Bench
from tests.pipelines.test_run import ORDERS, send
from tests.spark.running import Queues


def reports(url: str, pipeline: str) -> list[Any]:
    with penstock.connect(url) as ps:
        try:
            found = ps.queue(QUEUE).browse(limit=10_000)
        except QueueNotFound:
            return []
    return [json.loads(each.body) for each in found if each.group == pipeline]


def test_a_run_tells_its_batches_and_rejects_by_reason_to_its_server(queues: Queues) -> None:
    name = f"told-{queues.prefix}"
    bench = Bench(queues, ORDERS.replace("name: orders", f"name: {name}"))
    send(queues, '{"id": 1, "amount": 1.5}', "no json")
    assert bench.run().state == "done"
    told = reports(queues.url, name)
    assert told[0]["version"] == 1 and told[-1] == {"version": 1, **(bench.state.read_status() or {})}
    (rejects,) = [each for each in told[-1]["queries"] if each["query"] == "parsed_rejects"]
    assert (rejects["batches"], rejects["rejects"]) == (1, {"parsed: the body is not JSON": 1})
    found = queues.rest("GET", f"/v1/queues/{QUEUE}")
    assert found["settings"]["retention_bytes"] == 16 * 1024 * 1024
    assert queues.rest("GET", f"/v1/queues/{QUEUE}/channels")["channels"] == [], "nobody has to take them"


def test_a_server_that_does_not_answer_keeps_nobody_waiting(server: Server) -> None:
    notes: list[str] = []
    nowhere = Reports(Where("http://127.0.0.1:9"), notes.append, every_s=0.01)
    nowhere.tell({"pipeline": "p", "state": "running"})
    until(lambda: notes, 10)
    nowhere.close()
    (note,) = notes
    assert note.startswith("no answer yet: http://127.0.0.1:9 cannot be reached: "), "not after minutes"
    url = f"http://127.0.0.1:{server.http_port}"
    some = Reports(Where(url), print, every_s=0.01)
    some.tell({"pipeline": "plain", "state": "running", "n": 1})
    until(lambda: len(reports(url, "plain")) == 1, 10)
    some.tell({"pipeline": "plain", "state": "running", "n": 1, "updated_at": 7})
    some.tell({"pipeline": "plain", "state": "done", "n": 1})
    some.close()
    assert [each["state"] for each in reports(url, "plain")] == ["running", "done"], (
        "what is the same is not told again"
    )
