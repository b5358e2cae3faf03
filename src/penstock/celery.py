"""Celery's broker over SQS and SNS, whole: broadcasts, remote control and its replies.

    app = Celery("shop", broker="sqs://key:secret@localhost:9324//")
    app.conf.broker_transport = "penstock.celery:Transport"

It is kombu's SQS transport with three things put right. kombu's serves fan-out exchanges and does not say so, and
Celery leaves remote control out where they are missing. It keeps bindings in the process that made them, so that a
worker does not know the queue of who asked it: here that queue's name is worked out. And it deletes what needs no ack
through an event loop, which only workers have.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import SQS


class Channel(SQS.Channel):
    """Finds the queues of replies, and deletes without an event loop."""

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        if exchange.startswith("reply."):  # as kombu.pidbox names exchange and queue
            return [f"{routing_key}.{exchange}"]
        found: list[str] = super()._lookup(exchange, routing_key, default)
        return found

    def _delete_message(self, queue: str, message: dict[str, Any]) -> None:
        if self.hub is not None:
            super()._delete_message(queue, message)
            return
        url = self._new_queue(queue)
        name = self.canonical_queue_name(queue)
        self.sqs(queue=name).delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


class Transport(SQS.Transport):
    """The `broker_transport` of an app. Fan-out needs the topics of SNS, so they are on."""

    Channel = Channel
    implements = SQS.Transport.implements.extend(exchange_type=frozenset({"direct", "topic", "fanout"}))

    def __init__(self, client: Any, **options: Any) -> None:
        client.transport_options.setdefault("supports_fanout", True)
        super().__init__(client, **options)
