"""Celery's broker over SQS and SNS, whole: broadcasts, remote control and its replies.

    app = Celery("shop", broker="sqs://key:secret@localhost:9324//")
    app.conf.broker_transport = "penstock.celery:Transport"

It is kombu's SQS transport with four things put right. kombu's serves fan-out exchanges and does not say so, and
Celery leaves remote control out where they are missing. It keeps bindings in the process that made them, so that a
worker does not know the queue of who asked it: here that queue's name is worked out. For the same reason a sender takes
the exchange of a broadcast for a direct one, and its task is lost: here an exchange that has a topic fans out. And it
deletes what needs no ack through an event loop, which only workers have.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import SQS


class Channel(SQS.Channel):
    """Finds the queues of replies and the topics of broadcasts, and deletes without an event loop."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._fan_outs: set[str] = set()
        """Exchanges that this process has not declared, and that have topics."""
        super().__init__(*args, **options)

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        if exchange.startswith("reply."):  # as kombu.pidbox names exchange and queue
            return [f"{routing_key}.{exchange}"]
        found: list[str] = super()._lookup(exchange, routing_key, default)
        return found

    def typeof(self, exchange: str, default: str = "direct") -> Any:
        if exchange and exchange not in self.state.exchanges and not exchange.startswith("reply."):
            if exchange not in self._fan_outs and self._has_topic(exchange):
                self._fan_outs.add(exchange)
            default = "fanout" if exchange in self._fan_outs else default
        return super().typeof(exchange, default)

    def _has_topic(self, exchange: str) -> bool:
        name = self.canonical_queue_name(exchange)
        pages = self.fanout.get_client(exchange).get_paginator("list_topics").paginate()
        return any(topic["TopicArn"].rpartition(":")[2] == name for page in pages for topic in page["Topics"])

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
