"""How topics and subscriptions are named and kept.

A topic is the queue `sns.NAME`; a subscription is its channel `sns-ID`. What SNS knows of them stands in the labels of
that queue: one label for the topic, one for each subscription. So it is as durable as the queue, and goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

PREFIX = "sns."
CHANNEL_PREFIX = "sns-"
TOPIC_LABEL = "sns.topic"
SUBSCRIPTION_LABEL = "sns.subscription."
SUBJECT = "AWS.Subject"
STRUCTURE = "AWS.MessageStructure"
"""Stored beside a message's own attributes; no user's attribute can have such a name."""


class Topic(msgspec.Struct, omit_defaults=True):
    """What is kept of a topic."""

    attributes: dict[str, str] = {}
    data_protection: str = ""


class Subscription(msgspec.Struct, omit_defaults=True):
    """What is kept of a subscription."""

    protocol: str
    endpoint: str
    target: str
    """The queue that it is delivered to."""
    url: str
    """Where the server was reached when it was made: `UnsubscribeURL` starts with it."""
    principal: str = ""
    attributes: dict[str, str] = {}


_topic = msgspec.json.Decoder(Topic)
_subscription = msgspec.json.Decoder(Subscription)


def encoded(record: Topic | Subscription) -> str:
    """A record as a label."""
    return msgspec.json.encode(record).decode()


def topic_of(labels: Mapping[str, str]) -> Topic | None:
    """The topic that a queue is; None if it is none.

    >>> topic_of({TOPIC_LABEL: "{}"}), topic_of({})
    (Topic(attributes={}, data_protection=''), None)
    """
    label = labels.get(TOPIC_LABEL)
    return None if label is None else _topic.decode(label)


def subscription_of(labels: Mapping[str, str], subscription_id: str) -> Subscription | None:
    """A subscription by its id; None if it is not there."""
    label = labels.get(SUBSCRIPTION_LABEL + subscription_id)
    return None if label is None else _subscription.decode(label)


def subscriptions_of(labels: Mapping[str, str]) -> dict[str, Subscription]:
    """The subscriptions of a topic, by their ids, in order."""
    return {
        name.removeprefix(SUBSCRIPTION_LABEL): _subscription.decode(labels[name])
        for name in sorted(labels)
        if name.startswith(SUBSCRIPTION_LABEL)
    }
