"""A second opinion on a cluster under faults: clients as users have them, and books apart from Penstock's code.

Each kind of client has queues of its own, one for each node that it begins at: boto3, pynsq, the Python client through
a node and straight to the owners, and a client over REST that fetches the map and hashes names by itself. Each sends
numbered messages one after the other, and another of the same kind receives and acknowledges them elsewhere. All have
the retries that they have by default, and nothing besides. Where a client takes several addresses, it has all nodes'.

What was confirmed has to be received in the end (`lost`), and nothing may be received that was never sent. Told
besides, by kind: duplicates, errors that callers saw; and by queue the longest time without a confirmation.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import boto3
import nsq
import nsq.sync

import penstock

PACE_S = 0.2
DRAIN_S = 60.0
LEASE_S = 20

Send = Callable[[str], object]
Received = Callable[[], Iterator[list[str]]]
"""Yields what has come, and acknowledges it afterwards: the answer to that may be lost, and the messages are not."""


Ports = dict[str, int]
"""Of one node: `sqs`, `http`, `nsq`."""


# -- a client with nothing of ours -------------------------------------------------------------------------------------


def murmur2(data: bytes) -> int:
    """As Kafka's Java client has it, written from its source: int arithmetic on four bytes at a time."""

    def mixed(word: int) -> int:
        word = word * 0x5BD1E995 & 0xFFFFFFFF
        return (word ^ word >> 24) * 0x5BD1E995 & 0xFFFFFFFF

    digest, tail = 0x9747B28C ^ len(data), data[len(data) & ~3 :]
    for at in range(0, len(data) - len(tail), 4):
        digest = digest * 0x5BD1E995 & 0xFFFFFFFF ^ mixed(int.from_bytes(data[at : at + 4], "little"))
    for at in reversed(range(len(tail))):
        digest ^= tail[at] << 8 * at
    if tail:
        digest = digest * 0x5BD1E995 & 0xFFFFFFFF
    digest = (digest ^ digest >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return digest ^ digest >> 15


class SelfRouting:
    """Asks a node for the map, and goes to the owner; after any trouble it asks the next node."""

    def __init__(self, nodes: list[str]) -> None:
        self._nodes = itertools.cycle(nodes)
        self._map: dict[str, Any] = {}

    def post(self, queue: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if not self._map:
                self._map = self._ask(next(self._nodes), "/get_partitions", {})
                assert all(self._map["nodes"].values()), f"a node without an address: {self._map['nodes']}"
            owners = self._map["owners"]
            owner = owners[(murmur2(queue.encode()) & 0x7FFFFFFF) % len(owners)]
            return self._ask(self._map["nodes"][owner].split("//")[1], f"/v1/queues/{queue}{path}", body)
        except Exception:
            self._map = {}
            raise

    @staticmethod
    def _ask(address: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection(address, timeout=10.0)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            if answer.status >= 300:
                raise OSError(f"HTTP {answer.status} {content[:80]!r}")
            return json.loads(content) if content else {}
        finally:
            connection.close()


# -- clients -----------------------------------------------------------------------------------------------------------


def _boto3(nodes: list[Ports], at: int, queue: str) -> tuple[Send, Received]:
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    url = f"http://127.0.0.1:{nodes[at]['sqs']}"
    client = boto3.client("sqs", endpoint_url=url, region_name="us-east-1", **keys)
    found: list[str] = []

    def known() -> str:
        if not found:
            attributes = {"VisibilityTimeout": str(LEASE_S)}
            found.append(client.create_queue(QueueName=queue, Attributes=attributes)["QueueUrl"])
        return found[0]

    def receive() -> Iterator[list[str]]:
        some = client.receive_message(QueueUrl=known(), MaxNumberOfMessages=10, WaitTimeSeconds=2).get("Messages", [])
        entries = [{"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]} for number, each in enumerate(some)]
        yield [each["Body"] for each in some]
        if entries:
            client.delete_message_batch(QueueUrl=known(), Entries=entries)

    return lambda body: client.send_message(QueueUrl=known(), MessageBody=body), receive


def _python(routing: str) -> Callable[[list[Ports], int, str], tuple[Send, Received]]:
    def made(nodes: list[Ports], at: int, queue: str) -> tuple[Send, Received]:
        turned = nodes[at:] + nodes[:at]
        url = "penstock://" + ",".join(f"127.0.0.1:{ports['http']}" for ports in turned)
        ps = penstock.connect(url, routing=routing)  # type: ignore[arg-type]
        ps.create_queue(queue, lease=LEASE_S)

        def receive() -> Iterator[list[str]]:
            some = ps.queue(queue).receive(10, wait=2)
            yield [message.text for message in some]
            for message in some:
                message.ack()

        return ps.queue(queue).send, receive

    return made


def _self_routing(nodes: list[Ports], at: int, queue: str) -> tuple[Send, Received]:
    turned = nodes[at:] + nodes[:at]
    client = SelfRouting([f"127.0.0.1:{ports['http']}" for ports in turned])
    penstock.connect(f"penstock://127.0.0.1:{nodes[at]['http']}").create_queue(queue, lease=LEASE_S)

    def receive() -> Iterator[list[str]]:
        some = client.post(queue, "/receive", {"max": 10, "wait": 2}).get("messages", [])
        yield [each["body"] for each in some]
        if some:
            client.post(queue, "/ack", {"receipts": [each["receipt"] for each in some]})

    return lambda body: client.post(queue, "/messages", {"body": body}), receive


def _pynsq(nodes: list[Ports], at: int, queue: str) -> tuple[Send, Received]:
    connections: dict[str, nsq.sync.SyncConn] = {}

    def connected(kind: str) -> nsq.sync.SyncConn:
        if kind not in connections:
            found = nsq.sync.SyncConn(timeout=30.0)
            found.connect("127.0.0.1", nodes[at]["nsq"])
            if kind == "sub":
                found.send(nsq.subscribe(queue, "witness"))
                found.send(nsq.ready(10))
            connections[kind] = found
        return connections[kind]

    def read(kind: str) -> tuple[int, Any]:
        while True:
            frame, data = nsq.unpack_response(connected(kind).read_response())
            if data != b"_heartbeat_":
                return frame, data
            connected(kind).send(nsq.nop())

    def send(body: str) -> None:
        try:
            connected("pub").send(nsq.pub(queue, body.encode()))
            frame, data = read("pub")
        except Exception:
            connections.pop("pub", None)
            raise
        if frame != nsq.FRAME_TYPE_RESPONSE:
            connections.pop("pub", None)
            raise OSError(data.decode())

    def receive() -> Iterator[list[str]]:
        try:
            frame, data = read("sub")
            if frame != nsq.FRAME_TYPE_MESSAGE:
                return
            message = nsq.decode_message(data)
            yield [message.body.decode()]
            connected("sub").send(nsq.finish(message.id))
        except Exception:
            connections.pop("sub", None)
            raise

    return send, receive


KINDS: dict[str, Callable[[list[Ports], int, str], tuple[Send, Received]]] = {
    "boto3": _boto3,
    "python": _python("forward"),
    "python-direct": _python("direct"),
    "own-murmur2": _self_routing,
    "pynsq": _pynsq,
}


# -- the books ---------------------------------------------------------------------------------------------------------


class _Pair:
    """One sender and one receiver of a queue."""

    def __init__(self, kind: str, nodes: list[Ports], at: int) -> None:
        self.kind, self.queue = kind, f"witness-{kind}-{at}"
        self.asked: set[str] = set()
        self.confirmed_s: dict[str, float] = {}
        self.received: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._made = KINDS[kind]
        self._nodes, self._at = nodes, at
        self.sending, self.receiving = threading.Event(), threading.Event()
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)]

    def _client(self, at: int, ending: threading.Event) -> tuple[Send, Received] | None:
        while not ending.is_set():
            try:
                return self._made(self._nodes, at % len(self._nodes), self.queue)
            except Exception as error:
                self._note("connect", error)
                time.sleep(0.5)
        return None

    def _send(self) -> None:
        client = self._client(self._at, self.sending)
        for number in itertools.count():
            if client is None or self.sending.wait(PACE_S):
                return
            body = f"{self.queue} {number}"
            self.asked.add(body)
            try:
                client[0](body)
            except Exception as error:
                self._note("send", error)
            else:
                self.confirmed_s[body] = time.monotonic()

    def _receive(self) -> None:
        client = self._client(self._at + 1, self.receiving)
        while client is not None and not self.receiving.is_set():
            try:
                for bodies in client[1]():
                    self.received.update(bodies)
            except Exception as error:
                self._note("receive", error)
                time.sleep(0.2)

    def _note(self, what: str, error: Exception) -> None:
        self.errors[f"{what}: {type(error).__name__}: {re.sub('[0-9]+', 'N', str(error))[:80]}"] += 1

    @property
    def lost(self) -> set[str]:
        return set(self.confirmed_s) - set(self.received)

    def gap_s(self, since_s: float, until_s: float) -> float:
        times = [since_s, *sorted(at_s for at_s in self.confirmed_s.values() if since_s < at_s < until_s), until_s]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


class Witness:
    """All clients. `start`, `stop`, then `lines` and `problems`."""

    def __init__(self, nodes: list[Ports]) -> None:
        self.pairs = [_Pair(kind, nodes, at) for kind in KINDS for at in range(len(nodes))]
        self._since_s = self._until_s = 0.0

    def start(self) -> None:
        self._since_s = time.monotonic()
        for thread in self._threads():
            thread.start()

    def stop(self) -> None:
        """Send no more, and wait until everything was received that can be."""
        self._until_s = time.monotonic()
        for pair in self.pairs:
            pair.sending.set()
        deadline_s = time.monotonic() + DRAIN_S
        for pair in self.pairs:
            pair.threads[0].join(max(0.1, deadline_s + 70.0 - time.monotonic()))
        while any(pair.lost for pair in self.pairs) and time.monotonic() < deadline_s + 70.0:
            time.sleep(0.2)
        for pair in self.pairs:
            pair.receiving.set()
        for pair in self.pairs:  # who subscribes may hear nothing for a while
            pair.threads[1].join(0.1 if pair.kind == "pynsq" else 15.0)

    def _threads(self) -> Iterator[threading.Thread]:
        return itertools.chain.from_iterable(pair.threads for pair in self.pairs)

    @property
    def problems(self) -> list[str]:
        """What must not be: messages lost, or never sent."""
        found = [f"lost: {body}" for pair in self.pairs for body in sorted(pair.lost)]
        return found + [
            f"never sent: {body}" for pair in self.pairs for body in pair.received if body not in pair.asked
        ]

    def _of(self, kind: str) -> tuple[list[_Pair], Counter[str], list[float]]:
        pairs = [pair for pair in self.pairs if pair.kind == kind]
        errors = sum((it.errors for it in pairs), Counter[str]())
        return pairs, errors, [it.gap_s(self._since_s, self._until_s) for it in pairs]

    def lines(self) -> list[str]:
        """A row for each kind of client."""
        rows = []
        for kind in KINDS:
            pairs, errors, gaps_s = self._of(kind)
            confirmed, received = sum(len(it.confirmed_s) for it in pairs), sum(len(it.received) for it in pairs)
            twice = sum(count - 1 for it in pairs for count in it.received.values())
            lost = sum(len(it.lost) for it in pairs)
            gaps = ", ".join(f"{gap_s:.1f}" for gap_s in gaps_s)
            rows.append(
                f"witness {kind}: confirmed {confirmed}, received {received}, lost {lost}, duplicates {twice}, "
                f"errors {errors.total()}, longest gap of each queue {gaps} s"
            )
            rows += [f"    {count} times: {error}" for error, count in errors.most_common(3)]
        return rows

    def cells(self) -> list[str]:
        """The same in short, by kind: errors, and the longest gap."""
        found = (self._of(kind) for kind in KINDS)
        return [f"{errors.total()}, {max(gaps_s):.1f} s" for _, errors, gaps_s in found]
