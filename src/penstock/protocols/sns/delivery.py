"""From a topic to those that are subscribed to it.

How it works. The process that owns a topic's queue has a task for each of its subscriptions. The task receives from the
subscription's channel and makes what the subscriber shall get. For a queue, both are settled in one unit of work: the
ack in the channel and the send to the subscribed queue are one commit, so each message arrives once. If the queue is in
another shard, the send goes through the outbox. For an HTTP(S) endpoint see `http_delivery.py`. What other protocols
would have got is counted.

Nobody tells a process that a shard has become its own. So it looks for topics every `_SCAN_S` seconds, and at once when
a channel comes. A subscription is written down before its channel is made and forgotten before its channel is deleted:
a channel without a subscription is left over from a crash, and goes. A subscription that is not confirmed has no
channel; one that nobody confirms in time goes.

A replay has a channel and a task of its own. While it lasts, the task of the subscription waits.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric

from penstock.core.commands import (
    Ack,
    AckConsumer,
    CatalogEvent,
    CommitWork,
    CreateChannel,
    DeleteChannel,
    Delivery,
    FindOffsets,
    GiveBack,
    Offsets,
    Receive,
    Release,
    Send,
    Span,
)
from penstock.core.errors import InvalidRequest, NotFound, PenstockError, QueueNotFound
from penstock.core.queues.attributes import encode_attributes
from penstock.protocols.sns.envelope import Envelopes, Outgoing, Ticket, confirmation, seal
from penstock.protocols.sns.filters import Filter, compile_policy
from penstock.protocols.sns.http_delivery import AT_ONCE, Failed, HttpPoster, HttpTargets, Pace, headers_of
from penstock.protocols.sns.policies import RetryPolicy, archived_ms, retry_policy
from penstock.protocols.sns.signing import Signatures, Signer
from penstock.protocols.sns.topics import (
    ARCHIVE,
    CHANNEL_PREFIX,
    NOT_SENT,
    REPLAY_SUFFIX,
    SUBSCRIPTION_LABEL,
    TO_HTTP,
    Subscription,
    Topic,
    Topics,
    subscription_of,
    topic_of,
    without,
)
from penstock.protocols.sqs.errors import SqsError
from penstock.server.settings import SnsSettings
from penstock.server.shard import ShardClosed
from penstock.server.shards import QueueView, Shards

log = logging.getLogger("penstock.sns")

_SCAN_S = 2.0
_TRIM_SCANS = 30
"""An archive's old messages go once in so many scans."""
_RUN_MAX = 500
_WAIT_MS = 20_000
_GATHER_S_MIN, _GATHER_S_MAX, _GATHER_S_EACH = 0.02, 0.1, 0.005
"""After a delivery, before the next: what is published meanwhile goes in one unit of work. The more are subscribed, the
more units of work there are, and the longer it is. What comes after a silence does not wait."""
_PAUSE_S = 1.0
"""After an error of the store, before the next try."""
_REPLAY_POLL_S = 0.1
_SIGNED_AT_ONCE = 8
"""A signature takes a millisecond: after so many, others get their turn."""
NO_TOPIC = "a topic cannot be subscribed to a topic: two of them could send each other messages for ever"
_LEASE_SPARE_S = 5.0
"""Beyond the time that an endpoint has. What a crashed process was posting is posted again after both."""


class Deliveries:
    """Delivers what is published to the topics of this process, from `start` until the shard is closed."""

    def __init__(self, shard: Shards, topics: Topics, settings: SnsSettings, targets: HttpTargets) -> None:
        self._shard = shard
        self._topics = topics
        self._settings = settings
        self._signatures = Signatures()
        self.poster = HttpPoster(settings, targets)
        self.counts: Counter[tuple[str, str]] = Counter()
        """Messages, by the protocol of the subscription and what became of them."""
        self._tasks: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._confirming: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        self._left_over: set[tuple[str, str]] = set()
        """Channels without a subscription, as seen by the last scan."""
        self._unreadable: set[tuple[str, str]] = set()
        """Subscriptions that nobody can read, and that the log has."""
        self._scan_is_due = False
        self._scans = 0

    def start(self) -> None:
        """Begin, in the running loop."""
        self._shard.listeners.append(self._on_event)
        self._scan()
        self._scan_later()

    def families(self) -> Iterator[Metric]:
        """What was counted, for the metrics."""
        family = CounterMetricFamily(
            "penstock_sns_notifications",
            "Messages of topics, by the protocol of the subscription and what became of them.",
            labels=("protocol", "outcome"),
        )
        for labels, count in sorted(self.counts.items()):
            family.add_metric(labels, count)
        yield family

    async def signer(self) -> Signer | None:
        """What signs messages; None if there is nothing to sign with."""
        return await self._signatures.signer(self._shard.identity.meta.secret)

    def _in_background(self, work: asyncio.Task[None]) -> None:
        self._sending.add(work)
        work.add_done_callback(self._sending.discard)

    # -- which topics and subscriptions are ours --

    def _on_event(self, event: CatalogEvent) -> None:
        if not self._scan_is_due and self._topics.is_topic(event.queue):
            self._scan_is_due = True
            asyncio.get_running_loop().call_soon(self._scan)

    def _scan_later(self) -> None:
        asyncio.get_running_loop().call_later(_SCAN_S, self._scan_in_turn)

    def _scan_in_turn(self) -> None:
        self._scans += 1
        try:
            self._left_over = self._scan(in_turn=True)
        except Exception:
            log.exception("topics could not be read: trying again in %s s", _SCAN_S)
        finally:
            self._scan_later()

    def _scan(self, *, in_turn: bool = False) -> set[tuple[str, str]]:
        """Start what is missing. Returns the channels that have no subscription; twice in a row, and they go."""
        self._scan_is_due = False
        left_over: set[tuple[str, str]] = set()
        loop = asyncio.get_running_loop()
        try:
            queues = self._shard.identity.local_queues
            names = [name for name in self._shard.identity.part_names() if self._topics.is_topic(name)]
        except PenstockError:  # the store is being opened again
            return left_over
        for name in names:
            queue = queues.get(name)
            if queue is None:
                continue
            labels = queue.config.labels
            for label in labels:
                if label.startswith(SUBSCRIPTION_LABEL):
                    self._take_up(name, queue, label.removeprefix(SUBSCRIPTION_LABEL), in_turn)
            for channel in queue.channels:
                if channel.startswith(CHANNEL_PREFIX):
                    subscription_id = channel.removeprefix(CHANNEL_PREFIX).removesuffix(REPLAY_SUFFIX)
                    found = subscription_of(labels, subscription_id)
                    if found is None and SUBSCRIPTION_LABEL + subscription_id in labels:
                        continue  # it cannot be read: what waits for it stays
                    if found is None or (channel.endswith(REPLAY_SUFFIX) and not _is_replaying(found)):
                        left_over.add((name, channel))
            if in_turn and self._scans % _TRIM_SCANS == 0:
                topic = topic_of(labels)
                if topic is not None and topic.archived_since_ms:
                    self._in_background(loop.create_task(self._trim(name, topic)))
        for name, channel in left_over & self._left_over:
            self._in_background(loop.create_task(self._delete(name, channel)))
        return left_over

    def _take_up(self, name: str, queue: QueueView, subscription_id: str, in_turn: bool) -> None:
        """Start the tasks of a subscription, as far as they do not run."""
        loop = asyncio.get_running_loop()
        wanted = [] if (queue.id, subscription_id) in self._tasks else [subscription_id]
        replay = subscription_id + REPLAY_SUFFIX
        if CHANNEL_PREFIX + replay in queue.channels and (queue.id, replay) not in self._tasks:
            wanted.append(replay)
        if not wanted:
            return
        found = subscription_of(queue.config.labels, subscription_id)
        if found is None:
            if (name, subscription_id) not in self._unreadable:
                self._unreadable.add((name, subscription_id))
                log.error("%s: the label %s cannot be read, and is ignored", name, SUBSCRIPTION_LABEL + subscription_id)
            return
        if found.is_pending:
            if in_turn and found.is_expired(self._shard.now_ms()):
                self._in_background(loop.create_task(self._forget(name, subscription_id)))
            return
        for each in wanted:
            key = (queue.id, each)
            if each == subscription_id:
                task = loop.create_task(self._deliver_all(name, *key))
            elif _is_replaying(found):
                task = loop.create_task(self._replay(name, queue.id, subscription_id))
            else:
                continue
            self._tasks[key] = task
            task.add_done_callback(lambda _task, key=key: self._tasks.pop(key, None))  # type: ignore[misc]

    async def _delete(self, name: str, channel: str) -> None:
        try:
            await self._shard.call(DeleteChannel(queue=name, channel=channel, purge_last=True))
        except PenstockError as error:
            log.info("the unused channel %s of %s could not be removed yet: %s", channel, name, error)

    async def _forget(self, name: str, subscription_id: str) -> None:
        """Nobody has confirmed a subscription."""
        try:
            await self._topics.change(name, partial(without, subscription_id=subscription_id))
        except (PenstockError, SqsError) as error:
            log.info("%s: an unconfirmed subscription could not be removed yet: %s", name, error)

    async def _trim(self, name: str, topic: Topic) -> None:
        """The archive begins where its retention period does."""
        try:
            since_ms = self._shard.now_ms() - archived_ms(topic.attributes.get("ArchivePolicy", ""))
            found: Offsets = await self._shard.call(FindOffsets(queue=name, times_ms=(since_ms,)))
            offset = max(found.at_times[0], found.first)
            await self._shard.call(AckConsumer(queue=name, consumer=ARCHIVE, offset=offset))
        except PenstockError as error:
            log.info("old messages could not be removed from the archive of %s yet: %s", name, error)

    # -- one subscription --

    async def _deliver_all(self, name: str, queue_id: int, subscription_id: str) -> None:
        """Deliver to one subscription until it is gone, or the topic is another process's."""
        channel = CHANNEL_PREFIX + subscription_id
        worker = _Worker(self, name, subscription_id, channel)
        is_new = True
        while True:
            try:
                queue = self._shard.identity.local_queues.get(name)
                if queue is None or queue.id != queue_id:
                    return
                found = subscription_of(queue.config.labels, subscription_id)
                if found is None or found.is_pending:
                    return
                if is_new:
                    await self._shard.call(CreateChannel(queue=name, channel=channel, start="tail"))
                    is_new = False
                    if self._is_signed(found):
                        await self.signer()  # so that the first message need not wait for the key
                if _is_replaying(found):
                    await asyncio.sleep(_REPLAY_POLL_S)
                    continue
                delivery = await worker.receive(found, _WAIT_MS)
                if delivery is None:
                    continue
                # as it is now: it may have been changed while we waited
                queue = self._shard.identity.local_queues.get(name)
                found = None if queue is None else subscription_of(queue.config.labels, subscription_id)
                if queue is None or found is None:
                    continue
                if _is_replaying(found):
                    spans = delivery.spans()
                    await self._shard.call(
                        GiveBack(queue=name, channel=channel, spans=spans, received_ms=delivery.received_ms)
                    )
                    continue
                await worker.deliver(delivery, queue, found)
                await asyncio.sleep(gather_s(len(queue.channels)))
            except ShardClosed:
                return
            except NotFound:
                is_new = True
                await asyncio.sleep(_PAUSE_S)
            except PenstockError as error:
                log.info("%s: a delivery to %s will be tried again: %s", name, subscription_id, error)
                await asyncio.sleep(_PAUSE_S)
            except Exception:
                log.exception("%s: a delivery to %s failed", name, subscription_id)
                await asyncio.sleep(_PAUSE_S)

    async def _replay(self, name: str, queue_id: int, subscription_id: str) -> None:
        """Deliver archived messages once more, then let the subscription go on."""
        channel = CHANNEL_PREFIX + subscription_id + REPLAY_SUFFIX
        worker = _Worker(self, name, subscription_id, channel)
        while True:
            try:
                queue = self._shard.identity.local_queues.get(name)
                if queue is None or queue.id != queue_id:
                    return
                found = subscription_of(queue.config.labels, subscription_id)
                if found is None or found.replay is None or found.replay.is_over:
                    return
                replay = found.replay
                delivery = await worker.receive(found, 0)
                if delivery is not None:
                    await worker.deliver(delivery, queue, found, replay.id, replay.stop)
                    if all(run.first + run.count < replay.stop for run in delivery.runs):
                        continue

                def end(subscription: Subscription, replay_id: str = replay.id) -> None:
                    if subscription.replay is not None and subscription.replay.id == replay_id:
                        subscription.replay.is_over = True

                await self._topics.change_subscription(name, subscription_id, end)
                await self._shard.call(DeleteChannel(queue=name, channel=channel, purge_last=True))
                return
            except (ShardClosed, NotFound, SqsError):
                return  # a scan takes it up again if there is anything left to do
            except PenstockError as error:
                log.info("%s: the replay for %s is tried again: %s", name, subscription_id, error)
                await asyncio.sleep(_PAUSE_S)

    def _is_signed(self, found: Subscription) -> bool:
        if found.is_raw or found.protocol in NOT_SENT:
            return False
        return found.protocol in TO_HTTP or self._settings.sign == "all"

    async def envelopes(
        self, found: Subscription, wanted: Filter | None, arn: str, delivery: Delivery, queue: QueueView, topic: Topic
    ) -> Envelopes:
        """What makes the messages of a subscription."""
        return Envelopes(
            found,
            wanted,
            arn,
            is_fifo=queue.config.is_fifo,
            signer=await self.signer() if self._is_signed(found) and not queue.config.is_fifo else None,
            version=topic.attributes.get("SignatureVersion") or "1",
            message_id=partial(self._shard.identity.message_id, delivery.queue_id),
        )

    # -- to queues --

    async def settle(self, ack: Ack, found: Subscription, outgoing: list[Outgoing]) -> None:
        """Ack what was received, and send what comes of it to a queue, in one commit."""
        good = [each for each in outgoing if not each.refusal]
        bad = [each for each in outgoing if each.refusal]
        sends: list[Send] = []
        if good:
            await self._shard.know(found.target)
            if self._topics.is_topic(found.target):  # an earlier build let that be
                bad += [msgspec.structs.replace(each, refusal=NO_TOPIC) for each in good]
                good = []
            elif found.target in self._shard.identity.queues:
                sends.append(self._send(found.target, good))
            else:
                bad += [msgspec.structs.replace(each, refusal="the queue does not exist") for each in good]
                good = []
        if bad:
            sends += await self.dead_letters(found, bad)
        try:
            await self._shard.call(CommitWork(acks=[ack], sends=sends))
        except (QueueNotFound, InvalidRequest) as error:
            # The queue has gone meanwhile, or does not take one of them. Which one? They are tried one by one, and the
            # ack comes last: so this rare way delivers at least once.
            refused: list[Outgoing] = []
            for each in good:
                try:
                    await self._shard.call(self._send(found.target, [each]))
                except (QueueNotFound, InvalidRequest) as reason:
                    refused.append(msgspec.structs.replace(each, refusal=str(reason)))
            log.info("%s does not take a message: %s", found.target, error)
            bad += refused
            await self._shard.call(CommitWork(acks=[ack], sends=await self.dead_letters(found, bad)))
            self.counts[found.protocol, "delivered"] -= len(refused)
        self.counts[found.protocol, "delivered"] += len(good)
        self.counts[found.protocol, "failed"] += len(bad)

    async def dead_letters(self, found: Subscription, bad: list[Outgoing]) -> list[Send]:
        """The sends to the dead-letter queue of a subscription, if it has one that is there."""
        policy = msgspec.json.decode(found.attributes.get("RedrivePolicy") or "{}")
        target = self._topics.arns.name(policy.get("deadLetterTargetArn", "")) if isinstance(policy, dict) else None
        if target is None or not bad or self._topics.is_topic(target):
            return []
        await self._shard.know(target)
        if target not in self._shard.identity.queues:
            return []
        told = [
            msgspec.structs.replace(
                each,
                attributes={
                    **each.attributes,
                    "RequestID": str(uuid.uuid4()),
                    "ErrorCode": "InvalidParameter" if each.attempt == 1 else "DeliveryFailed",
                    "ErrorMessage": each.refusal,
                },
            )
            for each in bad
        ]
        return [self._send(target, told)]

    def _send(self, target: str, outgoing: list[Outgoing]) -> Send:
        config = self._shard.identity.queues[target].config
        # The groups of a FIFO topic are of no use to a standard queue; those of a standard topic make a queue fair.
        groups = [each.group if config.is_fifo or not each.is_fifo else None for each in outgoing]
        return Send(
            queue=target,
            bodies=[each.body for each in outgoing],
            attributes=[encode_attributes(each.attributes) for each in outgoing],
            groups=groups if any(groups) else None,
            dedup_ids=[each.dedup_id for each in outgoing] if config.is_fifo else None,
            create=False,
        )

    # -- confirmations --

    def confirm(self, kind: str, queue_id: int, queue: str, subscription_id: str, found: Subscription) -> None:
        """Send a confirmation to an HTTP(S) endpoint, in the background. Nobody is mailed: the log has the link."""
        work = self._confirm(kind, queue_id, queue, subscription_id, found)
        task = asyncio.get_running_loop().create_task(work)
        self._in_background(task)
        key = kind, queue, subscription_id
        if key in self._confirming:  # it may be tried for hours, and this one takes its place
            self._confirming[key].cancel()
        self._confirming[key] = task
        task.add_done_callback(lambda done: self._confirming.pop(key) if self._confirming.get(key) is done else None)

    async def _confirm(self, kind: str, queue_id: int, queue: str, subscription_id: str, found: Subscription) -> None:
        arn = f"{self._topics.arn(queue)}:{subscription_id}"
        restored = found if kind == "UnsubscribeConfirmation" else None
        now_ms = self._shard.now_ms()
        token = seal(Ticket(queue_id, subscription_id, now_ms, restored), self._shard.identity.meta.secret)
        if found.protocol not in TO_HTTP:
            topic_arn = arn.rpartition(":")[0]
            url = f"{found.url}/?Action=ConfirmSubscription&TopicArn={topic_arn}&Token={token}"
            log.info(
                "%s was not asked to confirm its subscription to %s. To confirm it, visit %s",
                found.endpoint,
                queue,
                url,
            )
            return
        try:
            known = self._shard.identity.queues.get(queue)
            topic = (None if known is None else topic_of(known.config.labels)) or Topic()
            version = topic.attributes.get("SignatureVersion") or "1"
            signer = await self.signer()
            message_id = str(uuid.uuid4())
            body = confirmation(kind, message_id, arn, token, found.url, now_ms, signer, version)
            policy = _policy_of(topic, found)
            headers = headers_of(kind, message_id, arn, policy.content_type)
            for attempt in range(1, 102):
                try:
                    await self.poster.post(found.endpoint, headers, body)
                except Failed as error:
                    wait_s = None if error.is_final else policy.wait_s(attempt)
                    if wait_s is None:
                        log.warning("%s does not take a %s of %s: %s", found.endpoint, kind, queue, error)
                        return
                    await asyncio.sleep(wait_s)
                else:
                    return
        except (PenstockError, SqsError) as error:
            log.warning("%s gets no %s of %s: %s", found.endpoint, kind, queue, error)


class _Worker:
    """Receives for one subscription, and delivers."""

    def __init__(self, deliveries: Deliveries, name: str, subscription_id: str, channel: str) -> None:
        self._deliveries = deliveries
        self._shard = deliveries._shard
        self._name = name
        self._arn = f"{deliveries._topics.arn(name)}:{subscription_id}"
        self._channel = channel
        self._known: Subscription | None = None
        self._wanted: Filter | None = None
        self._pace = Pace()
        self._per_second: int | None = None

    async def receive(self, found: Subscription, wait_ms: int) -> Delivery | None:
        """Messages of the channel; None if there are none."""
        limit, lease_ms = _RUN_MAX, None
        if found.protocol in TO_HTTP:
            limit = min(AT_ONCE, self._per_second or AT_ONCE)
            lease_ms = round((self._deliveries._settings.http_timeout_s + _LEASE_SPARE_S) * 1_000)
        delivery: Delivery | None = await self._shard.call(
            Receive(queue=self._name, channel=self._channel, limit=limit, wait_ms=wait_ms, lease_ms=lease_ms)
        )
        return delivery if delivery is not None and delivery.error is None and delivery.runs else None

    async def deliver(
        self,
        delivery: Delivery,
        queue: QueueView,
        found: Subscription,
        replay_id: str = "",
        stop: int | None = None,
    ) -> None:
        """Deliver what was received, and settle it."""
        deliveries = self._deliveries
        if found != self._known:
            self._known, self._wanted = found, filter_of(found)
        topic = topic_of(queue.config.labels) or Topic()
        envelopes = await deliveries.envelopes(found, self._wanted, self._arn, delivery, queue, topic)
        outgoing: list[Outgoing] = []
        for each in envelopes.of(delivery.runs, replay_id, stop):
            outgoing.append(each)
            if len(outgoing) % _SIGNED_AT_ONCE == 0:
                await asyncio.sleep(0)
        if delivery.count > len(outgoing):
            deliveries.counts[found.protocol, "filtered"] += delivery.count - len(outgoing)
        spans = delivery.spans()
        ack = Ack(queue=self._name, channel=self._channel, spans=spans)
        if found.protocol in TO_HTTP:
            await self._post_all(delivery, found, _policy_of(topic, found), outgoing)
        elif found.protocol in NOT_SENT:
            await self._shard.call(ack)
            deliveries.counts[found.protocol, "not_sent"] += len(outgoing)
        else:
            await deliveries.settle(ack, found, outgoing)

    async def _post_all(
        self, delivery: Delivery, found: Subscription, policy: RetryPolicy, outgoing: list[Outgoing]
    ) -> None:
        self._per_second = policy.per_second
        failures = await asyncio.gather(*(self._post(found, policy, each) for each in outgoing))
        failed = {each.sequence: error for each, error in zip(outgoing, failures, strict=True) if error is not None}
        done: list[Span] = []
        buried: list[Outgoing] = []
        for run in delivery.runs:
            if not failed:
                done += run.spans()
                continue
            attempts = run.attempts
            for index in range(run.count):
                sequence, attempt = run.first + index, int(attempts[index])
                error = failed.get(sequence)
                wait_s = None if error is None or error.is_final else policy.wait_s(attempt)
                if error is not None and wait_s is not None:
                    self._deliveries.counts[found.protocol, "retried"] += 1
                    await self._shard.call(
                        Release(
                            queue=self._name,
                            channel=self._channel,
                            spans=[Span(sequence, sequence, attempt)],
                            delay_ms=round(wait_s * 1_000),
                            error=str(error),
                        )
                    )
                    continue
                done.append(Span(sequence, sequence, attempt))
                if error is not None:
                    (lost,) = (each for each in outgoing if each.sequence == sequence)
                    buried.append(msgspec.structs.replace(lost, refusal=str(error)))
        ack = Ack(queue=self._name, channel=self._channel, spans=done)
        if buried:
            log.info("%s does not take %d messages of %s", found.endpoint, len(buried), self._name)
            sends = await self._deliveries.dead_letters(found, buried)
            await self._shard.call(CommitWork(acks=[ack], sends=sends))
        elif done:
            await self._shard.call(ack)
        counts = self._deliveries.counts
        counts[found.protocol, "failed"] += len(buried)
        counts[found.protocol, "delivered"] += len(outgoing) - len(failed)

    async def _post(self, found: Subscription, policy: RetryPolicy, each: Outgoing) -> Failed | None:
        await self._pace.turn(policy.per_second)
        headers = headers_of("Notification", each.message_id, self._arn, policy.content_type, is_raw=found.is_raw)
        try:
            await self._deliveries.poster.post(found.endpoint, headers, each.body)
        except Failed as error:
            return error
        return None


def gather_s(channels: int) -> float:
    """How long a subscription gathers messages, on a topic with so many.

    >>> gather_s(1), gather_s(10), gather_s(1_000)
    (0.02, 0.05, 0.1)
    """
    return min(_GATHER_S_MAX, max(_GATHER_S_MIN, channels * _GATHER_S_EACH))


def _is_replaying(found: Subscription) -> bool:
    return found.replay is not None and not found.replay.is_over


def _policy_of(topic: Topic, found: Subscription) -> RetryPolicy:
    return retry_policy(topic.attributes.get("DeliveryPolicy", ""), found.attributes.get("DeliveryPolicy", ""))


def filter_of(found: Subscription) -> Filter | None:
    """The predicate of a subscription's filter policy; None if it has none."""
    text = found.attributes.get("FilterPolicy")
    if not text:
        return None
    try:
        return compile_policy(text, of_body=found.of_body)
    except SqsError:  # it was checked when it was set, by another build
        log.exception("a stored filter policy cannot be read: its subscription gets nothing")
        return lambda _message: False
