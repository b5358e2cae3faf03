"""How long do sends stop when one of three brokers is killed, against a native transactional producer in the same run?

Three brokers with Kafka's own default settings, three nodes with Penstock's. boto3 and the Python client send at every
node and through HAProxy, with the retries that they have by default, and native producers commit transactions beside
them. Each is asked for its longest pause, and for the errors that reached its caller. `/healthz` is asked all the time.
In the end every message that was confirmed has to be received. Part of `make cluster-soak`.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import re
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import boto3
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

import penstock
from bench.measure import at_most, report, table
from tests.cluster.nodes import ProcessNode, bare_settings
from tools.debian import program
from tools.kafka import DEFAULT_SETTINGS, KafkaCluster
from tools.servers import free_ports

NODES = ("a", "b", "c")
SHARDS = 16
QUEUES_EACH = 8
"""Of boto3, of the Python client, and of the native producers: each its own."""
PACE_S = 0.2
QUIET_S = 10.0
FAULT_S = 60.0
HEALTH_S_MAX = 2.0
TARGET = 1.2
NATIVE, BOTO3, BALANCED, PYTHON = "native producer", "boto3", "boto3 through HAProxy", "Python client"
KINDS = (NATIVE, BOTO3, BALANCED, PYTHON)


class Sender(threading.Thread):
    """Sends one message after the other, and writes down when each was confirmed."""

    def __init__(self, kind: str, send: Callable[[str], object], name: str) -> None:
        super().__init__(daemon=True, name=name)
        self.kind = kind
        self.confirmed: list[tuple[float, str]] = []
        self.errors: list[str] = []
        self.stopping = threading.Event()
        self._send = send

    def run(self) -> None:
        for number in itertools.count():
            if self.stopping.wait(PACE_S):
                return
            body = f"{self.name} {number}"
            try:
                self._send(body)
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")
            else:
                self.confirmed.append((time.monotonic(), body))

    def pause_s(self, since_s: float) -> float:
        """The longest time without a confirmation from then on."""
        times = [since_s, *(at_s for at_s, _ in self.confirmed if at_s > since_s), time.monotonic()]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


def native(bootstrap: str, topic: str, number: int) -> Callable[[str], object]:
    """A transaction over two partitions, as Kafka's documentation has it: what may be repeated is."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"native-{number}", "log_level": 0})
    producer.init_transactions(60)

    def commit() -> None:
        while True:
            try:
                return producer.commit_transaction(60)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def send(body: str) -> None:
        while True:
            try:
                producer.begin_transaction()
                for partition in (2 * number, 2 * number + 1):
                    producer.produce(topic, body, partition=partition)
                return commit()
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                producer.abort_transaction(60)

    return send


def boto3_client(url: str) -> Any:
    """As users make one."""
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    return boto3.client("sqs", endpoint_url=url, region_name="us-east-1", **keys)


class Prober(threading.Thread):
    """Asks a node whether it lives, again and again."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._address = urllib.parse.urlsplit(url).netloc
        self.slowest_s: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(0.5):
            for path in ("/healthz", "/readyz"):
                began_s = time.monotonic()
                try:
                    connection = http.client.HTTPConnection(self._address, timeout=HEALTH_S_MAX)
                    connection.request("GET", path)
                    status = connection.getresponse().status
                    connection.close()
                except OSError:
                    status = 0
                self.slowest_s[path] = max(self.slowest_s[path], time.monotonic() - began_s)  # type: ignore[assignment]
                self.refused[path] += status != 200


@contextmanager
def balancer(nodes: list[ProcessNode], directory: Path) -> Iterator[str]:
    """HAProxy, with what we advise; where it takes SQS."""
    haproxy, (sqs, rest) = program("haproxy"), free_ports(2)
    text = (Path(__file__).parent.parent / "deploy" / "haproxy" / "haproxy.cfg").read_text()
    for number, node in enumerate(nodes, 1):
        ports = {name: urllib.parse.urlsplit(node.listening[name]["url"]).port for name in ("sqs", "http")}
        text = text.replace(f"n{number}:9324 port 9325", f"127.0.0.1:{ports['sqs']} port {ports['http']}")
        text = text.replace(f"n{number}:9325", f"127.0.0.1:{ports['http']}")
    config = directory / "haproxy.cfg"
    config.write_text(
        text.replace("bind :9324", f"bind 127.0.0.1:{sqs}").replace("bind :9325", f"bind 127.0.0.1:{rest}")
    )
    with open(directory / "haproxy.log", "wb") as log:
        process = subprocess.Popen([haproxy.path, "-db", "-f", config], env=haproxy.environment, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{sqs}"
    finally:
        process.terminate()
        process.wait(30.0)


def receive_all(url: str, queues: list[str], confirmed: set[str]) -> set[str]:
    """What was confirmed and cannot be received."""
    client, missing, deadline_s = boto3_client(url), set(confirmed), time.monotonic() + 120.0
    for queue in queues:
        address = client.get_queue_url(QueueName=queue)["QueueUrl"]
        while time.monotonic() < deadline_s:
            found = client.receive_message(QueueUrl=address, MaxNumberOfMessages=10).get("Messages", [])
            missing -= {message["Body"] for message in found}
            entries = [{"Id": str(at), "ReceiptHandle": it["ReceiptHandle"]} for at, it in enumerate(found)]
            if not entries:
                break
            client.delete_message_batch(QueueUrl=address, Entries=entries)
    return missing


def measure(directory: Path, how: str, victim: int | None, more: str) -> bool:
    """One loss, from nothing to the report; whether the targets were met."""
    with ExitStack() as stack:
        kafka = KafkaCluster(3, properties=DEFAULT_SETTINGS)
        stack.callback(kafka.close)
        nodes = [
            ProcessNode.with_settings(
                name, directory, bare_settings(kafka, "loss", name, directory / name, SHARDS, kafka_more=more)
            )
            for name in NODES
        ]
        for node in nodes:
            stack.callback(node.kill)
            node.launch()
        for node in nodes:
            node.wait()
        senders = _senders(kafka, nodes, stack, stack.enter_context(balancer(nodes, directory)))
        probers = [Prober(node.listening["http"]["url"]) for node in nodes]
        for thread in (*senders, *probers):
            thread.start()
        time.sleep(QUIET_S)
        since_s = time.monotonic()
        victim = _controller(kafka) if victim is None else victim
        (kafka.kill if how == "kill" else kafka.pause)(victim)
        time.sleep(FAULT_S)
        pauses = {kind: [it.pause_s(since_s) for it in senders if it.kind == kind] for kind in KINDS}
        for sender in senders:
            sender.stopping.set()
        for prober in probers:
            prober.stopping.set()
        for sender in senders:
            sender.join(90.0)
        queues = [sender.name for sender in senders if sender.kind != NATIVE]
        confirmed = {body for sender in senders if sender.kind != NATIVE for _, body in sender.confirmed}
        missing = receive_all(nodes[0].sqs_url, queues, confirmed)
        if how != "kill":
            kafka.resume(victim)
        return _tell(nodes, senders, probers, pauses, len(confirmed), missing)


def _senders(kafka: KafkaCluster, nodes: list[ProcessNode], stack: ExitStack, balanced: str) -> list[Sender]:
    admin, topic = AdminClient({"bootstrap.servers": kafka.bootstrap}), "native"
    config = {"min.insync.replicas": "2"}
    admin.create_topics([NewTopic(topic, 2 * QUEUES_EACH, 3, config=config)])[topic].result(60)
    time.sleep(2.0)
    senders = [Sender(NATIVE, native(kafka.bootstrap, topic, it), f"native-{it}") for it in range(QUEUES_EACH)]
    for number in range(QUEUES_EACH):
        for kind, url in ((BOTO3, nodes[number % len(nodes)].sqs_url), (BALANCED, balanced)):
            client, name = boto3_client(url), f"{kind.replace(' ', '-')}-{number}"
            client.create_queue(QueueName=name)
            at = f"{url}/000000000000/{name}"
            send = lambda body, to=client, at=at: to.send_message(QueueUrl=at, MessageBody=body)  # noqa: E731
            senders.append(Sender(kind, send, name))
    for number in range(QUEUES_EACH):
        node, name = nodes[number % len(nodes)], f"python-{number}"
        ps = stack.enter_context(penstock.connect(node.listening["http"]["url"]))
        ps.create_queue(name)
        senders.append(Sender(PYTHON, ps.queue(name).send, name))
    return senders


def _controller(kafka: KafkaCluster) -> int:
    """The broker that the quorum is led by: its loss costs the most. By its own log."""
    led = [
        (re.findall(r"Becoming the active controller at epoch (\d+)", kafka.log(it).read_text()), it) for it in range(3)
    ]
    return max(led, key=lambda found: max((int(epoch) for epoch in found[0]), default=-1))[1]


def _tell(
    nodes: list[ProcessNode],
    senders: list[Sender],
    probers: list[Prober],
    pauses: dict[str, list[float]],
    sent: int,
    missing: set[str],
) -> bool:
    worst = max(pauses[NATIVE])
    rows = []
    for kind, found in pauses.items():
        errors = Counter(re.sub(r"\d+", "N", error)[:100] for it in senders if it.kind == kind for error in it.errors)
        ratio = "" if kind == NATIVE else f"{max(found) / worst:.2f} ({at_most(TARGET, max(found) / worst)})"
        said = "; ".join(f"{count} {text}" for text, count in errors.most_common(3)) or "none"
        rows.append([kind, f"{statistics.median(found):.1f} s", f"{max(found):.1f} s", ratio, said])
    lost = Counter(line for node in nodes for line in re.findall(r"is given up: (\w+)", node.log))
    slowest = {path: max(it.slowest_s[path] for it in probers) for path in ("/healthz", "/readyz")}
    refused = {path: sum(it.refused[path] for it in probers) for path in ("/healthz", "/readyz")}
    said = ", ".join(f"{path}: slowest {slowest[path]:.2f} s, {refused[path]} not 200" for path in slowest)
    counted = f"{sent} messages confirmed, {len(missing)} of them missing afterwards"
    text = f"{counted}. Shards given up: {dict(lost) or 'none'}. {said}."
    header = ("", "median pause", "longest pause", "longest, to native's longest", "errors that callers saw")
    report("One of three brokers is lost, with default settings", text, table(header, rows))
    is_quick = all(max(found) <= TARGET * worst for found in pauses.values())
    return is_quick and not missing and not any(sender.errors for sender in senders) and not refused["/healthz"]


def main() -> None:
    """Run it; the exit status says whether the targets were met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--how", choices=("kill", "pause"), default="kill")
    parser.add_argument("--broker", type=int, default=None, help="which one; the leader of the quorum if not given")
    parser.add_argument("--more", default="", help="more lines of the nodes' [kafka] section")
    parser.add_argument("--keep", type=Path, help="a directory for the nodes' logs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-loss-") as name:
        directory = given.keep or Path(name)
        directory.mkdir(parents=True, exist_ok=True)
        raise SystemExit(0 if measure(directory, given.how, given.broker, given.more) else 1)


if __name__ == "__main__":
    main()
