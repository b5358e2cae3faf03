"""Topics of SNS and their subscriptions, for people who watch. They are made and changed over SNS."""

from __future__ import annotations

import contextlib
import re
from typing import Annotated

from msgspec import Meta

from penstock.core.commands import DescribeQueue, ListQueues, QueueInfo, QueueStats, Stats
from penstock.core.errors import QueueDamaged, QueueNotFound
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.contents import seconds_of
from penstock.protocols.rest.operations import Resource, operation
from penstock.protocols.rest.shapes import Result, Shape
from penstock.protocols.sns.topics import CHANNEL_PREFIX, subscriptions_of, topic_of
from penstock.protocols.sqs.names import TOPIC_PREFIX

_NAMES_AT_A_TIME = 200
_USER = re.compile(r"//[^/@]*@")
"""A password may be in an address: it is nothing to look at."""


class TopicsQuery(Shape):
    """Which topics."""

    after: Annotated[str, Meta(max_length=128)] = ""
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class SubscriptionRow(Result, omit_defaults=False):
    """A subscription: who gets the messages of a topic."""

    id: str
    protocol: str
    endpoint: str
    target: str
    """The queue that its messages are delivered to. Empty if it is not delivered to a queue."""
    pending: bool
    """Whether it waits for its confirmation."""
    replaying: bool
    filter: str
    """Its filter policy. Empty: it gets every message."""
    lag: int | None
    """How many messages it has not got yet. null: nothing is kept for it."""
    oldest_sent_at: float | None
    delivered: int | None
    """How many messages it is done with: delivered, or left out by its filter."""
    failed: int | None


class TopicRow(Result, omit_defaults=False):
    """A topic."""

    name: str
    queue: str
    """The queue of the topic."""
    fifo: bool
    published: int
    archived: bool
    subscriptions: list[SubscriptionRow]


class TopicRows(Result, omit_defaults=False):
    """A page of topics."""

    topics: list[TopicRow]
    next: str | None
    """The `after` of the next page. null on the last page."""


class TopicsOfSns(Resource):
    """Topics."""

    tag = "server"

    @operation("GET", "/v1/topics", live_s=3)
    async def list_topics(self, caller: Caller, query: TopicsQuery) -> TopicRows:
        """List the SNS topics that the caller may read, with their subscriptions and the lag of each."""
        found: list[TopicRow] = []
        many = self.services.settings.sqs.accounts == "many"
        prefix, after = "" if many else TOPIC_PREFIX, query.after
        while True:
            names: list[str] = await self.shard.call(ListQueues(prefix=prefix, after=after, limit=_NAMES_AT_A_TIME))
            for name in names:
                if TOPIC_PREFIX not in name or not caller.principal.may(name, QueueStats):
                    continue
                if len(found) == query.limit:
                    return TopicRows(topics=found, next=found[-1].queue)
                with contextlib.suppress(QueueNotFound, QueueDamaged):
                    row = await self._row(name)
                    found += [row] if row is not None else []
            if len(names) < _NAMES_AT_A_TIME:
                return TopicRows(topics=found, next=None)
            after = names[-1]

    async def _row(self, name: str) -> TopicRow | None:
        info: QueueInfo = await self.shard.call(DescribeQueue(name=name))
        topic = topic_of(info.config.labels)
        if topic is None:
            return None
        stats: Stats = await self.shard.call(QueueStats(name=name))
        rows = []
        for number, each in subscriptions_of(info.config.labels).items():
            channel = stats.channels.get(CHANNEL_PREFIX + number)
            rows.append(
                SubscriptionRow(
                    id=number,
                    protocol=each.protocol,
                    endpoint=_USER.sub("//•••@", each.endpoint),
                    target=each.target,
                    pending=each.is_pending,
                    replaying=each.replay is not None and not each.replay.is_over,
                    filter=each.attributes.get("FilterPolicy", ""),
                    lag=None if channel is None else channel.ready + channel.leased + channel.delayed,
                    oldest_sent_at=None if channel is None else seconds_of(channel.oldest_ms),
                    delivered=None if channel is None else channel.acked,
                    failed=None if channel is None else channel.failed,
                )
            )
        return TopicRow(
            name=name.partition(TOPIC_PREFIX)[2],
            queue=name,
            fifo=info.config.kind == "fifo",
            published=stats.sent,
            archived=bool(topic.archived_since_ms),
            subscriptions=rows,
        )
