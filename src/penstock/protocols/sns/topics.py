"""How topics and subscriptions are named and kept.

A topic is the queue `sns.NAME`; a subscription is its channel `sns-ID`. What SNS knows of them stands in the labels of
that queue: one label for the topic, one for each subscription. So it is as durable as the queue, and goes with it.
Where there are many accounts, the queue has account and region in front, as every queue has (`sqs/names.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from penstock.core.commands import ChangeQueue, DescribeQueue, QueueInfo
from penstock.core.errors import QueueChanged
from penstock.core.queues.config import QueueConfig
from penstock.protocols.sns.wire import NOT_FOUND
from penstock.protocols.sqs.errors import SqsError
from penstock.protocols.sqs.names import TOPIC_PREFIX, Arns, is_topic
from penstock.server.shards import Shards

CHANNEL_PREFIX = "sns-"
REPLAY_SUFFIX = ".replay"
ARCHIVE = "sns-archive"
"""The consumer that keeps what a topic archives: it stands where the archive begins."""
TOPIC_LABEL = "sns.topic"
SUBSCRIPTION_LABEL = "sns.subscription."
SUBJECT = "AWS.Subject"
STRUCTURE = "AWS.MessageStructure"
"""Stored beside a message's own attributes; no user's attribute can have such a name."""
PENDING_MS_MAX = 2 * 24 * 3_600 * 1_000
"""For so long a subscription may wait to be confirmed, and its token is good."""
TO_QUEUES = frozenset({"sqs", "penstock"})
TO_HTTP = frozenset({"http", "https"})
NOT_SENT = frozenset({"email", "email-json", "sms", "lambda", "firehose", "application"})
"""Protocols that can be subscribed, and are counted instead of served."""
PROTOCOLS = TO_QUEUES | TO_HTTP | NOT_SENT


class Topic(msgspec.Struct, omit_defaults=True):
    """What is kept of a topic."""

    attributes: dict[str, str] = {}
    data_protection: str = ""
    archived_since_ms: int = 0
    """When its archive was switched on; 0 if it has none."""
    unsubscribed: int = 0
    """How many subscriptions have ended: `SubscriptionsDeleted`."""


class Replay(msgspec.Struct, omit_defaults=True):
    """A subscription gets archived messages once more."""

    id: str
    start_ms: int
    stop: int
    """The number of the first message that is not part of it."""
    is_over: bool = False


class Subscription(msgspec.Struct, omit_defaults=True):
    """What is kept of a subscription."""

    protocol: str
    endpoint: str
    target: str
    """The queue that it is delivered to; empty if it is not delivered to a queue."""
    url: str
    """Where the server was reached when it was made: `UnsubscribeURL` starts with it."""
    principal: str = ""
    account: str = ""
    """Whose it is, if it is not the topic's account."""
    attributes: dict[str, str] = {}
    is_pending: bool = False
    made_ms: int = 0
    was_confirmed_by_stranger: bool = False
    """Who has the token confirmed it, and no credential did: who has the ARN may end it."""
    replay: Replay | None = None

    def is_expired(self, now_ms: int) -> bool:
        """Whether nobody has confirmed it in time.

        >>> Subscription("http", "http://a/", "", "", is_pending=True, made_ms=5).is_expired(6 + PENDING_MS_MAX)
        True
        """
        return self.is_pending and now_ms > self.made_ms + PENDING_MS_MAX

    @property
    def is_raw(self) -> bool:
        """Whether it gets messages without envelopes. A Penstock queue does, unless it is told otherwise."""
        return self.attributes.get("RawMessageDelivery", "true" if self.protocol == "penstock" else "false") == "true"

    @property
    def of_body(self) -> bool:
        """Whether its filter policy looks at the body."""
        return self.attributes.get("FilterPolicyScope") == "MessageBody"


_Record = TypeVar("_Record", Topic, Subscription)
_topic = msgspec.json.Decoder(Topic)
_subscription = msgspec.json.Decoder(Subscription)


def encoded(record: Topic | Subscription) -> str:
    return msgspec.json.encode(record).decode()


def topic_of(labels: Mapping[str, str]) -> Topic | None:
    """The topic that a queue is; None if it is none, or nobody can read what is kept of it.

    >>> topic_of({TOPIC_LABEL: "{}"}).attributes, topic_of({}), topic_of({TOPIC_LABEL: "{"})
    ({}, None, None)
    """
    return _read(_topic, labels.get(TOPIC_LABEL))


def subscription_of(labels: Mapping[str, str], subscription_id: str) -> Subscription | None:
    """A subscription by its id; None if it is not there, or nobody can read it."""
    return _read(_subscription, labels.get(SUBSCRIPTION_LABEL + subscription_id))


def subscriptions_of(labels: Mapping[str, str]) -> dict[str, Subscription]:
    """The subscriptions of a topic that can be read, by their ids, in order."""
    ids = sorted(name.removeprefix(SUBSCRIPTION_LABEL) for name in labels if name.startswith(SUBSCRIPTION_LABEL))
    return {each: found for each in ids if (found := subscription_of(labels, each)) is not None}


def _read(decoder: msgspec.json.Decoder[_Record], label: str | None) -> _Record | None:
    """A record; None if there is none, or it cannot be read: one bad label must not hide the others."""
    try:
        return None if label is None else decoder.decode(label)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def without(config: QueueConfig, topic: Topic, subscription_id: str) -> dict[str, Any]:
    """The changes that end a subscription; none if it is not there."""
    label = SUBSCRIPTION_LABEL + subscription_id
    if label not in config.labels:
        return {}
    topic.unsubscribed += 1
    labels = {name: value for name, value in config.labels.items() if name != label}
    return {"labels": labels | {TOPIC_LABEL: encoded(topic)}}


class Topics:
    """The topics of a server, as they are named and kept."""

    def __init__(self, shard: Shards, arns: Arns) -> None:
        self._shard = shard
        self.arns = arns

    def arn(self, queue: str) -> str:
        account, region, name = self.arns.outside(queue)
        return f"arn:aws:sns:{region}:{account}:{name.removeprefix(TOPIC_PREFIX)}"

    def account(self, queue: str) -> str:
        return self.arns.outside(queue)[0]

    def is_topic(self, queue: str) -> bool:
        return TOPIC_PREFIX in queue and is_topic(self.arns.outside(queue)[2])

    async def describe(self, queue: str) -> QueueInfo:
        info: QueueInfo = await self._shard.call(DescribeQueue(name=queue))
        return info

    async def find(self, queue: str) -> tuple[QueueInfo, Topic]:
        info = await self.describe(queue)
        topic = topic_of(info.config.labels)
        if topic is None:
            raise SqsError(NOT_FOUND, "Topic does not exist")
        return info, topic

    async def config(self, queue: str) -> QueueConfig:
        """A topic's configuration, without asking a shard for what is known here."""
        known = self._shard.identity.queues.get(queue)
        if known is None or TOPIC_LABEL not in known.config.labels:
            return (await self.find(queue))[0].config
        return known.config

    async def change(self, queue: str, changes_of: Callable[[QueueConfig, Topic], dict[str, Any]]) -> None:
        """Change what is kept of a topic, from what it is; if somebody was faster, it is worked out again."""
        while True:
            info, topic = await self.find(queue)
            changes = changes_of(info.config, topic)
            if not changes:
                return
            expected = {setting: getattr(info.config, setting) for setting in changes}
            try:
                await self._shard.call(ChangeQueue(name=queue, changes=changes, expected=expected))
            except QueueChanged:
                continue
            return

    async def change_subscription(
        self, queue: str, subscription_id: str, change: Callable[[Subscription], None]
    ) -> Subscription:
        """Change what is kept of a subscription. Returns it as it is then."""
        changed: list[Subscription] = []

        def changes(config: QueueConfig, _topic: Topic) -> dict[str, Any]:
            found = subscription_of(config.labels, subscription_id)
            if found is None:
                raise SqsError(NOT_FOUND, "Subscription does not exist")
            change(found)
            changed[:] = [found]
            return {"labels": {**config.labels, SUBSCRIPTION_LABEL + subscription_id: encoded(found)}}

        await self.change(queue, changes)
        return changed[0]
