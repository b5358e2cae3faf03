"""`make cluster-soak`: nodes are killed, stopped in mid-air and restarted under load, and every message is counted.

    python -m tests.cluster.soak --rounds 20 --seed 7 --session 6

Three nodes, as processes, on a real Kafka. Clients send and receive through all of them by SQS, without a rest. Each
round picks a fault by the seed: a node is killed, stands still past its session, or is restarted; or the broker stands
still. What is reported, and what must be so:

    lost            sent and confirmed, and never received         0
    after ack       received by a request that began after the     0
                    confirmation of the message's ack
    duplicates      received more than once                        any number: leases run out
    errors          requests that failed                           any number
    service         a fault to an answer for every queue           for kill -9: at most twice the session timeout

The model of the fencing protocol is searched first, with one more assignment than in `make test`.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.cluster.fencing import Rules, search
from tests.cluster.nodes import ProcessNode, until
from tools.kafka import KafkaCluster, kafka_cluster

QUEUES = [f"q{number}" for number in range(8)]
LEASE_S = 10
FAULTS = ("kill", "pause", "restart", "broker")
ANSWER_S = 60.0


class Books:
    """What happened to each message."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent: set[str] = set()
        self.received: dict[str, int] = {}
        self.acked_s: dict[str, float] = {}
        self.after_ack: list[str] = []
        self.errors = 0

    def note_sent(self, body: str) -> None:
        with self._lock:
            self.sent.add(body)

    def note_received(self, body: str, asked_s: float) -> None:
        with self._lock:
            self.received[body] = self.received.get(body, 0) + 1
            if self.acked_s.get(body, asked_s) < asked_s:
                self.after_ack.append(body)

    def note_acked(self, body: str) -> None:
        with self._lock:
            self.acked_s.setdefault(body, time.monotonic())

    def note_error(self) -> None:
        with self._lock:
            self.errors += 1

    @property
    def missing(self) -> set[str]:
        """Sent, and not received."""
        with self._lock:
            return self.sent - set(self.received)


def client_of(node: ProcessNode) -> Any:
    options = Config(retries={"total_max_attempts": 1}, read_timeout=ANSWER_S, connect_timeout=5)
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
    return boto3.client("sqs", endpoint_url=node.sqs_url, config=options, **keys)


class Load(threading.Thread):
    """Sends and receives through one node, whatever happens to it."""

    def __init__(self, node: ProcessNode, books: Books) -> None:
        super().__init__(daemon=True)
        self._node = node
        self._books = books
        self.ending = threading.Event()
        self.start()

    def run(self) -> None:
        number = 0
        while not self.ending.is_set():
            try:
                client = client_of(self._node)
                while not self.ending.is_set():
                    for queue in QUEUES:
                        number += 1
                        turn(client, queue, f"{self._node.name}-{number}", self._books)
            except (BotoCoreError, ClientError):
                self._books.note_error()
                self.ending.wait(0.2)


def turn(client: Any, queue: str, body: str | None, books: Books) -> None:
    """Send one message, if there is one, and take what is there."""
    url = client.get_queue_url(QueueName=queue)["QueueUrl"]
    if body is not None:
        client.send_message(QueueUrl=url, MessageBody=body)
        books.note_sent(body)
    asked_s = time.monotonic()
    for message in client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
        books.note_received(message["Body"], asked_s)
        client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        books.note_acked(message["Body"])


def served_again_s(node: ProcessNode, since_s: float) -> float:
    """How long it took until every queue answers through this node."""
    client = client_of(node)
    for queue in QUEUES:
        until(lambda queue=queue: _answers(client, queue), f"an answer for {queue}")
    return time.monotonic() - since_s


def _answers(client: Any, queue: str) -> bool:
    try:
        url = client.get_queue_url(QueueName=queue)["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="probe")
        return True
    except (BotoCoreError, ClientError):
        return False


def make_fault(fault: str, victim: ProcessNode, witness: ProcessNode, session_s: float, kafka: KafkaCluster) -> float:
    """Do something to a node, or to a broker. Returns how long some queue had no answer, at most.

    For a broker that stands still, it is the time after it went on.
    """
    until(lambda: victim.served, f"shards at {victim.name}")
    if fault == "broker":
        kafka.pause(0)
        time.sleep(3 * session_s)
        kafka.resume(0)
        return served_again_s(witness, time.monotonic())
    began_s = time.monotonic()
    if fault == "kill":
        victim.kill()
        took_s = served_again_s(witness, began_s)
        victim.start()
    elif fault == "pause":
        victim.signal(signal.SIGSTOP)
        try:
            took_s = served_again_s(witness, began_s)
            time.sleep(max(0.0, 2 * session_s - took_s))
        finally:
            victim.signal(signal.SIGCONT)
    else:
        victim.stop()
        took_s = served_again_s(witness, began_s)
        victim.start()
    return took_s


def model() -> bool:
    """Search the larger model."""
    found = search(Rules(), nodes=2, assignments_max=3)
    print(f"model: {found.states} states, violation: {found.violation or 'none'}", flush=True)
    return not found.violation


def faults(rounds: int, seed: int, session_s: float, brokers: int) -> bool:
    """Run the rounds. Whether all is as it must be."""
    chance, books = random.Random(seed), Books()
    good = True
    with kafka_cluster(brokers) as kafka, tempfile.TemporaryDirectory() as directory:
        nodes = [ProcessNode(kafka, f"soak-{seed}", name, Path(directory), session_s=session_s) for name in "abc"]
        loads: list[Load] = []
        try:
            for node in nodes:
                node.start()
            client = client_of(nodes[0])
            for queue in QUEUES:
                client.create_queue(QueueName=queue, Attributes={"VisibilityTimeout": str(LEASE_S)})
            loads = [Load(node, books) for node in nodes]
            for number in range(rounds):
                fault = chance.choice(FAULTS)
                victim, witness = chance.sample(nodes, 2)
                took_s = make_fault(fault, victim, witness, session_s, kafka)
                late = fault == "kill" and took_s > 2 * session_s
                good = good and not late
                ratio = took_s / session_s
                print(f"round {number}: {fault} {victim.name}: served again after {ratio:.2f} sessions", flush=True)
            for load in loads:
                load.ending.set()
            for load in loads:
                load.join(2 * ANSWER_S)
            client = client_of(nodes[0])
            deadline_s = time.monotonic() + 3 * LEASE_S + ANSWER_S
            while books.missing and time.monotonic() < deadline_s:
                for queue in QUEUES:
                    turn(client, queue, None, books)
        finally:
            for load in loads:
                load.ending.set()
            for node in nodes:
                node.kill()
    again = sum(count - 1 for body, count in books.received.items() if body != "probe")
    print(
        f"seed {seed}: sent {len(books.sent)}, received {len(books.received)}, acknowledged {len(books.acked_s)}, "
        f"lost {len(books.missing)}, after ack {len([b for b in books.after_ack if b != 'probe'])}, "
        f"duplicates {again}, errors {books.errors}",
        flush=True,
    )
    return good and not books.missing and not [body for body in books.after_ack if body != "probe"]


def main() -> None:
    """Run it all; the exit status says whether everything is as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--session", type=float, default=6.0)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--no-model", action="store_true")
    chosen = parser.parse_args()
    good = chosen.no_model or model()
    good = faults(chosen.rounds, chosen.seed, chosen.session, chosen.brokers) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
