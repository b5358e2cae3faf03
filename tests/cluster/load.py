"""Clients of every kind that go on whatever happens, each at one node, and write down what they were told.

    SQS        orders (standard, dead letters in another shard), line.fifo (one group for each sender); held (in several
               partitions), whose messages are deleted some seconds later, whatever happens meanwhile
    Python     work, moved to letters by units of work over two shards; once (consume_once)
    REST       notes
    NSQ        news

Every message has a body of its own. A send that failed is not repeated, except to line.fifo: there the same message is
sent again under its dedup id until it is confirmed, so that its group's order is known.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import penstock
from tests.cluster.books import DEAD, ONCE, Books, is_bad
from tests.protocols.nsq.clients import wire

LEASE_S = 8
HELD_S = 30
"""The lease of what is held: longer than it takes until another node has a shard whose owner was killed."""
HELD_TOGETHER = 30
HELD_BACKLOG = 200
WAIT_S = 1
ANSWER_S = 25.0
"""A router waits 15 s for a shard's owner."""
CREATE_S_MAX = 120.0
RECEIVES_MAX = 3
QUEUES = ("orders", DEAD, "line.fifo", "work", "letters", ONCE, "notes", "news", "held")
_CHANNEL = "readers"


class Refused(Exception):
    """SQS or REST said no."""


class Ports:
    """Where a node listens: always in the same places, also after it was started again."""

    def __init__(self, sqs: int, http: int, nsq: int) -> None:
        self.sqs, self.http, self.nsq = sqs, http, nsq


class Sqs:
    """As little of a client as will do: boto3 would take more time than the cluster."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)

    def call(self, action: str, queue: str, **parameters: Any) -> dict[str, Any]:
        """One request. After an error the client is not used again."""
        parameters["QueueUrl"] = f"http://127.0.0.1:{self._port}/000000000000/{queue}"
        headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
        self._connection.request("POST", "/", json.dumps(parameters), headers)
        answer = self._connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise Refused(f"{action} {answer.status} {text}")
        found: dict[str, Any] = json.loads(text or "{}")
        return found


class Rest:
    """As little of a client as will do."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)

    def post(self, path: str, content: object) -> dict[str, Any]:
        """One request. After an error the client is not used again."""
        self._connection.request("POST", path, json.dumps(content), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read().decode()
        if answer.status not in (200, 201):
            raise Refused(f"POST {path} {answer.status} {text}")
        found: dict[str, Any] = json.loads(text)
        return found


def create_queues(port: int) -> None:
    """Whatever the clients use. A Kafka that has just started may need several attempts."""
    deadline_s = time.monotonic() + CREATE_S_MAX
    while True:
        try:
            return _create_queues(port)
        except penstock.PenstockError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(1.0)


def _create_queues(port: int) -> None:
    with penstock.connect(f"penstock://127.0.0.1:{port}") as ps:
        ps.create_queue("orders", max_receives=RECEIVES_MAX, dead_letter=DEAD, lease=LEASE_S)
        ps.create_queue("line.fifo", kind="fifo", max_receives=0, lease=LEASE_S)
        ps.create_queue(ONCE, policy="consume_once", lease=LEASE_S)
        for queue in (DEAD, "work", "letters", "notes", "news"):
            ps.create_queue(queue, max_receives=0, lease=LEASE_S)
        ps.create_queue("held", max_receives=0, lease=HELD_S, partitions=2)
        ps.queue("news").channel(_CHANNEL).stats()


def left_in_queues(port: int) -> list[str]:
    """What is still there, queue by queue."""
    found = []
    with penstock.connect(f"penstock://127.0.0.1:{port}", timeout=ANSWER_S) as ps:
        for queue in QUEUES:
            for name, channel in ps.queue(queue).stats().channels.items():
                counts = {"ready": channel.ready, "leased": channel.leased, "delayed": channel.delayed}
                if any(counts.values()) and (queue, name) != ("news", "main"):
                    found.append(f"{queue}/{name}: {', '.join(f'{n} {state}' for state, n in counts.items() if n)}")
    return found


class Load:
    """All clients of one node."""

    def __init__(self, name: str, ports: Ports, books: Books, seed: int, pace_s: float) -> None:
        self._name, self._ports, self._books, self._pace_s = name, ports, books, pace_s
        self._sent_all, self._over = threading.Event(), threading.Event()
        self._client: penstock.Penstock | None = None
        self._client_lock = threading.Lock()
        self._threads = []
        senders = [self._send_orders, self._send_in_line, self._send_work, self._send_once, self._send_notes]
        readers = [self._read_orders, self._read_line, self._read_dead, self._move, self._read_letters]
        for work in [*senders, self._publish, self._send_held]:
            self._threads.append(self._start(work, self._sent_all, seed))
        for work in [*readers, self._read_once, self._read_notes, self._subscribe, self._hold]:
            self._threads.append(self._start(work, self._over, seed))

    def stop_sending(self) -> None:
        """What is on its way arrives; nothing more is sent."""
        self._sent_all.set()

    def stop(self) -> None:
        """No more of anything, soon."""
        self._sent_all.set()
        self._over.set()

    def join(self) -> list[str]:
        """Wait; the clients that do not end."""
        deadline_s = time.monotonic() + 4 * ANSWER_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._client is not None:
            with suppress(penstock.PenstockError):
                self._client.close()
        return [f"{thread.name} does not end" for thread in self._threads if thread.is_alive()]

    def _start(self, work: Callable[[random.Random, threading.Event], None], ending: threading.Event, seed: int) -> Any:
        name = f"{work.__name__.strip('_')} at {self._name}"

        def run() -> None:
            chance = random.Random(f"{seed} {name}")
            while not ending.is_set():
                try:
                    work(chance, ending)
                except (penstock.PenstockError, Refused, OSError, http.client.HTTPException, AssertionError) as error:
                    self._books.failed(work.__name__.strip("_"), error)
                    ending.wait(0.2)

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def _pause(self, chance: random.Random, ending: threading.Event) -> None:
        ending.wait(self._pace_s * 2 * chance.random())

    def _bodies(self, chance: random.Random) -> str:
        return f"{self._name}-{chance.getrandbits(48):012x}"

    # -- SQS --

    def _send_orders(self, chance: random.Random, ending: threading.Event) -> None:
        client = Sqs(self._ports.sqs)
        while not ending.is_set():
            body = self._bodies(chance) + ("!" if chance.random() < 0.1 else "")
            client.call("SendMessage", "orders", MessageBody=body)
            self._books.sent("orders", body)
            self._pause(chance, ending)

    def _send_in_line(self, chance: random.Random, ending: threading.Event) -> None:
        number = 0
        client: Sqs | None = None
        while not ending.is_set():
            body = f"{self._name}-{number}"
            try:
                client = client or Sqs(self._ports.sqs)
                options = {"MessageGroupId": self._name, "MessageDeduplicationId": body}
                client.call("SendMessage", "line.fifo", MessageBody=body, **options)
            except (Refused, OSError, http.client.HTTPException) as error:
                self._books.failed("send_in_line", error)
                client = None
                ending.wait(0.2)
                continue
            self._books.sent("line.fifo", body)
            number += 1
            self._pause(chance, ending)

    def _read_orders(self, chance: random.Random, ending: threading.Event) -> None:
        self._read_sqs("orders", ending)

    def _read_line(self, chance: random.Random, ending: threading.Event) -> None:
        self._read_sqs("line.fifo", ending)

    def _read_dead(self, chance: random.Random, ending: threading.Event) -> None:
        self._read_sqs(DEAD, ending)

    def _read_sqs(self, queue: str, ending: threading.Event) -> None:
        client = Sqs(self._ports.sqs)
        while not ending.is_set():
            asked_s = time.monotonic()
            answer = client.call("ReceiveMessage", queue, MaxNumberOfMessages=10, WaitTimeSeconds=WAIT_S)
            messages = answer.get("Messages", [])
            for message in messages:
                self._books.received(queue, message["Body"], asked_s, message["MessageId"])
            for message in messages:
                receipt = message["ReceiptHandle"]
                if is_bad(message["Body"]) and queue == "orders":
                    client.call("ChangeMessageVisibility", queue, ReceiptHandle=receipt, VisibilityTimeout=0)
                    continue
                client.call("DeleteMessage", queue, ReceiptHandle=receipt)
                # SQS confirms a delete that came too late, too.
                if time.monotonic() - asked_s < LEASE_S:
                    self._books.acked(queue, message["Body"], message["MessageId"])

    def _send_held(self, chance: random.Random, ending: threading.Event) -> None:
        client = Sqs(self._ports.sqs)
        while not ending.is_set():
            count = 10 if self._books.backlog("held") < HELD_BACKLOG else 1  # on a busy machine they are slow to go
            bodies = [self._bodies(chance) for _ in range(count)]
            entries = [{"Id": str(number), "MessageBody": body} for number, body in enumerate(bodies)]
            answer = client.call("SendMessageBatch", "held", Entries=entries)
            for entry in answer["Successful"]:
                self._books.sent("held", bodies[int(entry["Id"])])
            ending.wait(1.2 * chance.random())

    def _hold(self, chance: random.Random, ending: threading.Event) -> None:
        """Receive one by one, wait, and delete with receipts that may be from before a node was killed."""
        held: list[tuple[float, dict[str, Any]]] = []
        with suppress(Refused, OSError, http.client.HTTPException):
            client = Sqs(self._ports.sqs)
            for _ in range(HELD_TOGETHER):
                asked_s = time.monotonic()
                for message in client.call("ReceiveMessage", "held").get("Messages", []):
                    self._books.received("held", message["Body"], asked_s, message["MessageId"])
                    held.append((asked_s, message))
                ending.wait(0.01)
            ending.wait(chance.choice([0.0, 0.5, 3.0]))
        for asked_s, message in held:
            self._delete_held(asked_s, message, ending)

    def _delete_held(self, asked_s: float, message: dict[str, Any], ending: threading.Event) -> None:
        """Try until it is confirmed; a lease that has run out binds nobody."""
        while not ending.is_set() and time.monotonic() - asked_s < HELD_S:
            try:
                Sqs(self._ports.sqs).call("DeleteMessage", "held", ReceiptHandle=message["ReceiptHandle"])
            except (Refused, OSError, http.client.HTTPException) as error:
                self._books.failed("delete_held", error)
                ending.wait(0.2)
                continue
            if time.monotonic() - asked_s < HELD_S:
                self._books.acked("held", message["Body"], message["MessageId"])
            return

    # -- Python --

    def _ps(self) -> penstock.Penstock:
        with self._client_lock:
            if self._client is None:
                url = f"penstock://127.0.0.1:{self._ports.http}"
                self._client = penstock.connect(url, name=self._name, heartbeat=2, connect_timeout=3, timeout=ANSWER_S)
            return self._client

    def _send_to(self, queue: str, chance: random.Random, ending: threading.Event) -> None:
        while not ending.is_set():
            body = self._bodies(chance)
            self._ps().queue(queue).send(body)
            self._books.sent(queue, body)
            self._pause(chance, ending)

    def _send_work(self, chance: random.Random, ending: threading.Event) -> None:
        self._send_to("work", chance, ending)

    def _send_once(self, chance: random.Random, ending: threading.Event) -> None:
        self._send_to(ONCE, chance, ending)

    def _move(self, chance: random.Random, ending: threading.Event) -> None:
        while not ending.is_set():
            with self._ps().unit_of_work() as work:
                asked_s = time.monotonic()
                taken = work.take_many("work", chance.choice([1, 5, 20]), wait=WAIT_S, lease=LEASE_S)
                for message in taken:
                    self._books.received("work", message.text, asked_s, message.id)
                    work.put("letters", message.body)
                if taken and chance.random() < 0.9:
                    work.commit()
                    for message in taken:
                        self._books.acked("work", message.text, message.id)

    def _read_letters(self, chance: random.Random, ending: threading.Event) -> None:
        while not ending.is_set():
            asked_s = time.monotonic()
            for message in self._ps().queue("letters").receive(max=10, wait=WAIT_S):
                self._books.received("letters", message.text, asked_s, message.id)
                message.ack()
                self._books.acked("letters", message.text, message.id)

    def _read_once(self, chance: random.Random, ending: threading.Event) -> None:
        while not ending.is_set():
            asked_s = time.monotonic()
            for message in self._ps().queue(ONCE).receive(max=10, wait=WAIT_S):
                self._books.received(ONCE, message.text, asked_s, message.id)

    # -- REST --

    def _send_notes(self, chance: random.Random, ending: threading.Event) -> None:
        client = Rest(self._ports.http)
        while not ending.is_set():
            body = self._bodies(chance)
            client.post("/v1/queues/notes/messages", [{"body": body}])
            self._books.sent("notes", body)
            self._pause(chance, ending)

    def _read_notes(self, chance: random.Random, ending: threading.Event) -> None:
        client = Rest(self._ports.http)
        while not ending.is_set():
            asked_s = time.monotonic()
            messages = client.post("/v1/queues/notes/receive", {"max": 10, "wait": WAIT_S})["messages"]
            for message in messages:
                self._books.received("notes", message["body"], asked_s, message["id"])
            if messages:
                receipts = [message["receipt"] for message in messages]
                answer = client.post("/v1/queues/notes/ack", {"receipts": receipts})
                late = {each["receipt"] for each in answer["refused"]}
                for message in messages:
                    if message["receipt"] not in late:
                        self._books.acked("notes", message["body"], message["id"])

    # -- NSQ --

    def _publish(self, chance: random.Random, ending: threading.Event) -> None:
        with wire.Connection(("127.0.0.1", self._ports.nsq)) as connection:
            while not ending.is_set():
                body = self._bodies(chance)
                connection.send(wire.pub("news", body.encode()))
                frame = connection.frame(ANSWER_S)
                assert frame == (wire.RESPONSE, b"OK"), f"PUB: {frame}"
                self._books.sent("news", body)
                self._pause(chance, ending)

    def _subscribe(self, chance: random.Random, ending: threading.Event) -> None:
        with wire.Connection(("127.0.0.1", self._ports.nsq)) as connection:
            connection.send(wire.identify(msg_timeout=LEASE_S * 1_000, heartbeat_interval=2_000))
            connection.send(wire.sub("news", _CHANNEL), b"RDY 10\n")
            heard_s = time.monotonic()
            while not ending.is_set():
                try:
                    frame = connection.raw_frame(WAIT_S)
                except TimeoutError:
                    assert time.monotonic() - heard_s < ANSWER_S, "no heartbeat"
                    continue
                assert frame is not None, "the server closed the connection"
                heard_s = time.monotonic()
                self._take(connection, frame)

    def _take(self, connection: wire.Connection, frame: wire.Frame) -> None:
        if frame.kind == wire.MESSAGE:
            # An NSQ client is not told whether its FIN was kept: nothing is said here of what comes after.
            self._books.received("news", frame.data[26:].decode(), 0.0)
            connection.send(b"FIN %s\n" % frame.data[10:26])
        elif frame.data == wire.HEARTBEAT:
            connection.send(b"NOP\n")
        else:
            assert frame.kind == wire.RESPONSE or b"E_FIN_FAILED" in frame.data, f"{frame}"
