"""From a topic to the queues that are subscribed to it.

How it works. The process that owns a topic's queue has a task for each of its subscriptions. The task receives from the
subscription's channel, makes what the subscriber shall get, and settles both in one unit of work: the ack in the
channel and the send to the subscribed queue are one commit, so each message arrives once. If the queue is in another
shard, the send goes through the outbox.

Nobody tells a process that a shard has become its own. So it looks for topics every `_SCAN_S` seconds, and at once when
a channel comes. A subscription is written down before its channel is made and forgotten before its channel is deleted:
a channel without a subscription is left over from a crash, and goes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from penstock.core.commands import Ack, CatalogEvent, CommitWork, CreateChannel, DeleteChannel, Delivery, Receive, Send
from penstock.core.errors import InvalidRequest, NotFound, PenstockError, QueueNotFound
from penstock.core.queues.attributes import AttributeValue, decode_attributes, encode_attributes
from penstock.protocols.sns.filters import Filter, attribute_values, body_values, compile_policy
from penstock.protocols.sns.topics import (
    CHANNEL_PREFIX,
    PREFIX,
    STRUCTURE,
    SUBJECT,
    SUBSCRIPTION_LABEL,
    Subscription,
    subscription_of,
)
from penstock.protocols.sqs.errors import SqsError
from penstock.protocols.sqs.message_attributes import STORED_SENDER, STORED_TRACE_HEADER, from_stored
from penstock.protocols.sqs.names import Arns
from penstock.protocols.sqs.service import sequence_number
from penstock.server.shard import ShardClosed
from penstock.server.shards import Shards

log = logging.getLogger("penstock.sns")

_SCAN_S = 2.0
_RUN_MAX = 500
_WAIT_MS = 20_000
_GATHER_S = 0.02
"""After a delivery, before the next: what is published meanwhile goes in one unit of work."""
_PAUSE_S = 1.0
"""After an error of the store, before the next try."""
_RAW_ATTRIBUTES_MAX = 10


class Outgoing(msgspec.Struct):
    """A message as a subscriber gets it."""

    body: bytes
    attributes: dict[str, AttributeValue]
    group: str | None
    dedup_id: str | None
    refusal: str = ""
    """Why it cannot be delivered."""


class Deliveries:
    """Delivers what is published to the topics of this process, from `start` until the shard is closed."""

    def __init__(self, shard: Shards, topic_arn_prefix: str, arns: Arns) -> None:
        self._shard = shard
        self._topic_arn_prefix = topic_arn_prefix
        self._arns = arns
        self._tasks: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._left_over: set[tuple[str, str]] = set()
        """Channels without a subscription, as seen by the last scan."""
        self._scan_is_due = False

    def start(self) -> None:
        """Begin, in the running loop."""
        self._shard.listeners.append(self._on_event)
        self._scan()
        self._scan_later()

    def _on_event(self, event: CatalogEvent) -> None:
        if event.queue.startswith(PREFIX) and not self._scan_is_due:
            self._scan_is_due = True
            asyncio.get_running_loop().call_soon(self._scan)

    def _scan_later(self) -> None:
        asyncio.get_running_loop().call_later(_SCAN_S, self._scan_in_turn)

    def _scan_in_turn(self) -> None:
        self._left_over = self._scan()
        self._scan_later()

    def _scan(self) -> set[tuple[str, str]]:
        """Start what is missing. Returns the channels that have no subscription; twice in a row, and they go."""
        self._scan_is_due = False
        left_over: set[tuple[str, str]] = set()
        try:
            queues = self._shard.identity.local_queues
            names = [name for name in self._shard.identity.part_names() if name.startswith(PREFIX)]
        except PenstockError:  # the store is being opened again
            return left_over
        for name in names:
            queue = queues.get(name)
            if queue is None:
                continue
            for label in queue.config.labels:
                if label.startswith(SUBSCRIPTION_LABEL):
                    key = (queue.id, label.removeprefix(SUBSCRIPTION_LABEL))
                    if key not in self._tasks:
                        task = asyncio.get_running_loop().create_task(self._deliver_all(name, *key))
                        self._tasks[key] = task
                        task.add_done_callback(lambda _task, key=key: self._tasks.pop(key, None))  # type: ignore[misc]
            for channel in queue.channels:
                if channel.startswith(CHANNEL_PREFIX):
                    label = SUBSCRIPTION_LABEL + channel.removeprefix(CHANNEL_PREFIX)
                    if label not in queue.config.labels:
                        left_over.add((name, channel))
        for name, channel in left_over & self._left_over:
            asyncio.get_running_loop().create_task(self._delete(name, channel))
        return left_over

    async def _delete(self, name: str, channel: str) -> None:
        try:
            await self._shard.call(DeleteChannel(queue=name, channel=channel, purge_last=True))
        except PenstockError as error:
            log.info("the channel %s of %s is left over, and stays for now: %s", channel, name, error)

    async def _deliver_all(self, name: str, queue_id: int, subscription_id: str) -> None:
        """Deliver to one subscription until it is gone, or the topic is another process's."""
        channel = CHANNEL_PREFIX + subscription_id
        known: Subscription | None = None
        wanted: Filter | None = None
        is_new = True
        while True:
            try:
                queue = self._shard.identity.local_queues.get(name)
                if queue is None or queue.id != queue_id:
                    return
                if subscription_of(queue.config.labels, subscription_id) is None:
                    return
                if is_new:
                    await self._shard.call(CreateChannel(queue=name, channel=channel, start="tail"))
                    is_new = False
                delivery: Delivery | None = await self._shard.call(
                    Receive(queue=name, channel=channel, limit=_RUN_MAX, wait_ms=_WAIT_MS)
                )
                if delivery is None or delivery.error is not None or not delivery.runs:
                    continue
                # as it is now: it may have been changed while we waited
                queue = self._shard.identity.local_queues.get(name)
                found = None if queue is None else subscription_of(queue.config.labels, subscription_id)
                if queue is None or found is None:
                    continue
                if found != known:
                    known, wanted = found, filter_of(found)
                arn = self._topic_arn_prefix + name.removeprefix(PREFIX)
                outgoing = self._outgoing(delivery, found, wanted, f"{arn}:{subscription_id}", queue.config.is_fifo)
                spans = [span for run in delivery.runs for span in run.spans()]
                await self._settle(Ack(queue=name, channel=channel, spans=spans), found, outgoing)
                await asyncio.sleep(_GATHER_S)
            except ShardClosed:
                return
            except NotFound:
                is_new = True
                await asyncio.sleep(_PAUSE_S)
            except PenstockError as error:
                log.info("%s: a delivery to %s is tried again: %s", name, subscription_id, error)
                await asyncio.sleep(_PAUSE_S)
            except Exception:
                log.exception("%s: a delivery to %s failed", name, subscription_id)
                await asyncio.sleep(_PAUSE_S)

    def _outgoing(
        self, delivery: Delivery, found: Subscription, wanted: Filter | None, arn: str, is_fifo: bool
    ) -> list[Outgoing]:
        """What the subscriber gets of a delivery."""
        is_raw = found.attributes.get("RawMessageDelivery") == "true"
        of_body = found.attributes.get("FilterPolicyScope") == "MessageBody"
        made: list[Outgoing] = []
        for run in delivery.runs:
            chunk = run.chunk
            for index in range(run.start, run.stop):
                body, stored = chunk.body(index), decode_attributes(chunk.attributes(index))
                typed = from_stored(stored, lambda _name: True)
                subject, structure = stored.get(SUBJECT), stored.get(STRUCTURE)
                typed = {name: value for name, value in typed.items() if name not in (SUBJECT, STRUCTURE)}
                if structure == "json":
                    by_protocol = msgspec.json.decode(body)
                    body = str(by_protocol.get("sqs", by_protocol["default"])).encode()
                if wanted is not None:
                    seen = (
                        body_values(body)
                        if of_body
                        else attribute_values(
                            {
                                name: (value.data_type or "String", value.string_value or value.binary_value or "")
                                for name, value in typed.items()
                            }
                        )
                    )
                    if seen is None or not wanted(seen):
                        continue
                sequence = chunk.base + index
                group, dedup_id = chunk.group(index), chunk.dedup_id(index)
                if is_fifo and dedup_id is None:
                    dedup_id = hashlib.sha256(chunk.body(index)).hexdigest()
                passed = {name: stored[name] for name in (STORED_TRACE_HEADER, STORED_SENDER) if name in stored}
                if is_raw:
                    too_many = len(typed) > _RAW_ATTRIBUTES_MAX
                    refusal = "raw messages have at most 10 attributes" if too_many else ""
                    passed |= {name: stored[name] for name in typed}
                    made.append(Outgoing(body, passed, group, dedup_id, refusal))
                    continue
                envelope: dict[str, Any] = {
                    "Type": "Notification",
                    "MessageId": self._shard.identity.message_id(delivery.queue_id, sequence),
                }
                if is_fifo:
                    envelope["SequenceNumber"] = sequence_number(sequence)
                envelope["TopicArn"] = arn.rpartition(":")[0]
                if subject is not None:
                    envelope["Subject"] = subject
                sent = datetime.fromtimestamp(chunk.sent_ms / 1_000, UTC)
                envelope["Message"] = body.decode("utf-8", "replace")
                envelope["Timestamp"] = sent.strftime("%Y-%m-%dT%H:%M:%S.") + f"{chunk.sent_ms % 1_000:03d}Z"
                envelope["UnsubscribeURL"] = f"{found.url}/?Action=Unsubscribe&SubscriptionArn={quote(arn, safe=':')}"
                if typed:
                    envelope["MessageAttributes"] = {
                        name: {
                            "Type": value.data_type,
                            "Value": value.string_value if value.string_value is not None else value.binary_value,
                        }
                        for name, value in typed.items()
                    }
                made.append(Outgoing(msgspec.json.encode(envelope), passed, group, dedup_id))
        return made

    async def _settle(self, ack: Ack, found: Subscription, outgoing: list[Outgoing]) -> None:
        """Ack what was received, and send what comes of it, in one commit."""
        good = [each for each in outgoing if not each.refusal]
        bad = [each for each in outgoing if each.refusal]
        sends: list[Send] = []
        if good:
            await self._shard.know(found.target)
            if found.target in self._shard.identity.queues:
                sends.append(self._send(found.target, good))
            else:
                bad += [msgspec.structs.replace(each, refusal="the queue does not exist") for each in good]
        if bad:
            sends += await self._dead_letters(found, bad)
        try:
            await self._shard.call(CommitWork(acks=[ack], sends=sends))
        except (QueueNotFound, InvalidRequest) as error:
            # The queue has gone meanwhile, or does not take one of them. Which one? They are tried one by one, and the
            # ack comes last: so this rare way delivers at least once.
            for each in good:
                try:
                    await self._shard.call(self._send(found.target, [each]))
                except (QueueNotFound, InvalidRequest) as refused:
                    bad.append(msgspec.structs.replace(each, refusal=str(refused)))
            log.info("%s does not take a message: %s", found.target, error)
            await self._shard.call(CommitWork(acks=[ack], sends=await self._dead_letters(found, bad)))

    async def _dead_letters(self, found: Subscription, bad: list[Outgoing]) -> list[Send]:
        """The sends to the dead-letter queue of a subscription, if it has one that is there."""
        policy = msgspec.json.decode(found.attributes.get("RedrivePolicy") or "{}")
        target = self._arns.name(policy.get("deadLetterTargetArn", "")) if isinstance(policy, dict) else None
        if target is None or not bad:
            return []
        await self._shard.know(target)
        if target not in self._shard.identity.queues:
            return []
        told = [
            msgspec.structs.replace(
                each, attributes={**each.attributes, "ErrorCode": "InvalidParameter", "ErrorMessage": each.refusal}
            )
            for each in bad
        ]
        return [self._send(target, told)]

    def _send(self, target: str, outgoing: list[Outgoing]) -> Send:
        config = self._shard.identity.queues[target].config
        return Send(
            queue=target,
            bodies=[each.body for each in outgoing],
            attributes=[encode_attributes(each.attributes) for each in outgoing],
            groups=[each.group for each in outgoing] if any(each.group for each in outgoing) else None,
            dedup_ids=[each.dedup_id for each in outgoing] if config.is_fifo else None,
            create=False,
        )


def filter_of(found: Subscription) -> Filter | None:
    """The predicate of a subscription's filter policy; None if it has none."""
    text = found.attributes.get("FilterPolicy")
    if not text:
        return None
    try:
        return compile_policy(text, of_body=found.attributes.get("FilterPolicyScope") == "MessageBody")
    except SqsError:  # it was checked when it was set, by another build
        log.exception("a stored filter policy cannot be read: its subscription gets nothing")
        return lambda _message: False
