"""One store, many ways: what NSQ publishes is received through SQS and Python, and the other way."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from tests.protocols.nsq.clients.servers import AGAINST_NSQD, Broker, Penstock, running
from tests.protocols.nsq.clients.wire import fin, mpub

pytestmark = pytest.mark.skipif(AGAINST_NSQD, reason="nsqd speaks NSQ alone")


def received(sqs: object, url: str) -> list[str]:
    """Everything that SQS gives of a queue, deleted."""
    bodies: list[str] = []
    while True:
        answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)  # type: ignore[attr-defined]
        if "Messages" not in answer:
            return bodies
        for message in answer["Messages"]:
            bodies.append(message["Body"])
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])  # type: ignore[attr-defined]


def test_from_nsq_to_sqs(server: Penstock, topic: str) -> None:
    """A queue made by SQS has the channel `main`; what NSQ publishes to it goes there too."""
    sqs = server.sqs()
    url = sqs.create_queue(QueueName=topic)["QueueUrl"]
    with server.connect() as writer:
        writer.publish(topic, b"one")
        assert writer.ask(mpub(topic, [b"two", b"three"])) == b"OK"
    assert sorted(received(sqs, url)) == ["one", "three", "two"]


def test_from_nsq_s_own_topic_to_sqs(server: Penstock, topic: str) -> None:
    """A topic made by NSQ is a queue of SQS: its first reader there gets what waited."""
    server.publish(topic, b"one", b"two")
    sqs = server.sqs()
    url = sqs.get_queue_url(QueueName=topic)["QueueUrl"]
    assert sorted(received(sqs, url)) == ["one", "two"]


def test_from_sqs_to_nsq(server: Penstock, topic: str) -> None:
    sqs = server.sqs()
    url = sqs.create_queue(QueueName=topic)["QueueUrl"]
    with server.subscriber(topic, "tap", ready=10) as reader:
        sqs.send_message(QueueUrl=url, MessageBody="pushed")
        message = reader.message()
        assert message.body == b"pushed"
        reader.send(fin(message))
        assert reader.is_open()
    assert received(sqs, url) == ["pushed"]


def test_nsq_can_read_the_channel_of_sqs(server: Penstock, topic: str) -> None:
    sqs = server.sqs()
    url = sqs.create_queue(QueueName=topic)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="shared")
    with server.subscriber(topic, "main", ready=10) as reader:
        message = reader.message()
        assert message.body == b"shared"
        reader.send(fin(message))
        assert reader.is_open()
    assert received(sqs, url) == []


def test_what_an_nsq_client_holds_is_invisible_to_sqs_until_it_leaves(server: Penstock, topic: str) -> None:
    sqs = server.sqs()
    url = sqs.create_queue(QueueName=topic)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="held")
    reader = server.subscriber(topic, "main", ready=1)
    reader.message()
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    reader.close()
    [message] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20, AttributeNames=["All"])["Messages"]
    assert message["Body"] == "held"
    assert message["Attributes"]["ApproximateReceiveCount"] == "2"


def test_a_fifo_queue_of_sqs_is_no_topic(server: Penstock, topic: str) -> None:
    """Its name is valid, but its messages need a group: NSQ cannot say one."""
    server.sqs().create_queue(QueueName=f"{topic}.fifo", Attributes={"FifoQueue": "true"})
    with server.connect() as writer:
        writer.send(b"PUB %s.fifo\n\0\0\0\1x" % topic.encode())
        assert writer.error().startswith("E_PUB_FAILED ")
        assert writer.is_closed()
    assert server.connect().is_open()


def test_between_nsq_and_python(tmp_path: Path) -> None:
    """One after the other: a directory has one owner."""
    with running(Penstock(tmp_path)) as server:
        server.publish("orders", b"from nsq")
        with server.subscriber("orders", "billing", ready=1) as reader:
            reader.message()
        assert server.stop() == 0
        with penstock.open(server.data) as ps:
            queue = ps.queue("orders")
            with queue.channel("billing").receive(wait=20) as message:
                assert (message.body, message.attempts) == (b"from nsq", 2)
            queue.send(b"from python")
            ps.queue("plain").send(b"to a queue of Python's")
        server.start()
        with server.subscriber("orders", "billing", ready=10) as reader:
            assert reader.message().body == b"from python"
            assert reader.is_silent()
        with server.subscriber("plain", "main", ready=10) as reader:
            assert reader.message().body == b"to a queue of Python's"


def test_a_topic_that_does_not_wait_for_the_disk_keeps_to_rdy_and_loses_nothing(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data") as ps:
        ps.create_queue("quick", deliver_unsynced=True, max_receives=0)
    bodies = [b"%d" % number for number in range(300)]
    with running(Penstock(tmp_path)) as server:
        assert server.data == tmp_path / "data"
        with server.subscriber("quick", "tap", ready=3) as reader, server.connect() as writer:
            for body in bodies[:20]:
                writer.publish("quick", body)
            held = reader.messages(3)
            assert reader.is_silent()
            reader.send(*map(fin, held))
            assert writer.ask(mpub("quick", bodies[20:])) == b"OK"
            while len(held) < len(bodies):
                message = reader.message()
                held.append(message)
                reader.send(fin(message))
            assert sorted(message.body for message in held) == sorted(bodies)
            assert len({message.id for message in held}) == len(bodies)
            assert reader.is_silent()


def test_attributes_that_nsq_cannot_show_do_no_harm(server: Penstock, topic: str) -> None:
    sqs = server.sqs()
    url = sqs.create_queue(QueueName=topic)["QueueUrl"]
    attributes = {"table": {"StringValue": "7", "DataType": "String"}}
    with server.subscriber(topic, "tap", ready=10) as reader:
        sqs.send_message(QueueUrl=url, MessageBody="body", MessageAttributes=attributes)
        assert reader.message().body == b"body"


def test_every_front_end_lists_the_same_queues(server: Broker, topic: str) -> None:
    assert isinstance(server, Penstock)
    server.publish(topic, b"x")
    urls = server.sqs().list_queues(QueueNamePrefix=topic)["QueueUrls"]
    assert [url.rpartition("/")[2] for url in urls] == [topic]
