"""What the actions of SNS share: who calls, members of a request, and a topic's names."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.core.commands import Command
from penstock.core.errors import AccessDenied, QueueNotFound
from penstock.protocols.sns import wire
from penstock.protocols.sns.delivery import Deliveries
from penstock.protocols.sns.http_delivery import HttpTargets
from penstock.protocols.sns.topics import Subscription, Topic, Topics, subscription_of
from penstock.protocols.sns.wire import NOT_FOUND, invalid
from penstock.protocols.sqs.errors import SqsError
from penstock.protocols.sqs.names import ACCOUNT, REGION, TOPIC_PREFIX, Arns, Scope
from penstock.server.auth import ANYBODY, STRANGER, Principal, authorize_kinds
from penstock.server.settings import SnsSettings, SqsSettings
from penstock.server.shards import Shards

NAME = re.compile(r"[A-Za-z0-9_-]{1,119}(\.fifo)?\Z")
PAGE = 100
TAGS_MAX = 50
_TAG_KEY_LENGTH_MAX, _TAG_VALUE_LENGTH_MAX = 128, 256
Members = dict[str, Any]
Result = dict[str, Any] | None


class Caller:
    """Who calls, and where they reached the server. `scope` is their account and region; who visits a link has none."""

    def __init__(
        self, principal: Principal, url: str, scope: Scope | None = None, trace_header: str | None = None
    ) -> None:
        self.principal = principal
        self.url = url
        self.scope = scope
        self.trace_header = trace_header

    @property
    def is_known(self) -> bool:
        """Whether it has shown a credential, or need not."""
        return self.principal is not STRANGER

    def check(self, queue: str, *kinds: type[Command]) -> None:
        """Raise unless the caller may do one of these commands with the queue."""
        try:
            authorize_kinds(self.principal, queue, *kinds)
        except AccessDenied:
            reason = f"User: {self.principal.name} is not authorized on {queue}"
            raise SqsError(wire.AUTHORIZATION_ERROR, reason) from None


UNCHECKED = Caller(ANYBODY, "")


class ActionsBase:
    """The ground that actions stand on."""

    def __init__(self, shard: Shards, settings: SqsSettings, sns: SnsSettings, targets: HttpTargets) -> None:
        self._shard = shard
        self._arns = Arns(settings.region, settings.account, are_many=settings.accounts == "many")
        self._topics = Topics(shard, self._arns)
        self._arn = self._topics.arn
        self.deliveries = Deliveries(shard, self._topics, sns, targets)

    def _queue(self, caller: Caller, arn: str, *kinds: type[Command]) -> str:
        """The queue of a topic, if the caller may do one of these commands there."""
        parts = arn.split(":")
        if len(parts) != 6 or parts[:3] != ["arn", "aws", "sns"] or not NAME.match(parts[5]):
            raise invalid(
                f"TopicArn Reason: An ARN must have at least 6 elements, not {len(parts)}"
                if len(parts) < 6
                else "TopicArn"
            )
        _, _, _, region, account, name = parts
        if self._arns.are_many and (
            not ACCOUNT.match(account)
            or not REGION.match(region)
            or (caller.scope is not None and region != caller.scope.region)
        ):
            raise invalid("TopicArn")
        queue = self._arns.inside(account, region, TOPIC_PREFIX + name)
        caller.check(queue, *kinds)
        return queue

    def _named_queue(self, arn: str) -> str:
        """As `_queue`, for what a token or a subscription's ARN may give the right to."""
        return self._queue(UNCHECKED, arn)

    async def _there(self, queue: str, subscription_id: str) -> tuple[Topic, Subscription]:
        try:
            info, topic = await self._topics.find(queue)
        except QueueNotFound:
            raise SqsError(NOT_FOUND, "Subscription does not exist") from None
        found = subscription_of(info.config.labels, subscription_id)
        if found is None:
            raise SqsError(NOT_FOUND, "Subscription does not exist")
        return topic, found


def text_of(members: Members, name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not value:
        raise invalid(f"{name} Reason: no value for required parameter")
    return value


def map_of(members: Members, name: str) -> dict[str, str]:
    value = members.get(name) or {}
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise invalid(name)
    return dict(value)


def tags_of(members: Members) -> dict[str, str]:
    given = members.get("Tags") or []
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise invalid("Tags")
    tags = {str(each.get("Key", "")): str(each.get("Value", "")) for each in given}
    if len(tags) < len(given):
        raise invalid("Duplicated keys are not allowed.")
    if len(tags) > TAGS_MAX:
        raise SqsError(wire.TAG_LIMIT_EXCEEDED, "Could not complete request: tag quota of per resource exceeded")
    for number, (key, value) in enumerate(tags.items(), 1):
        for name, text, limit in (("key", key, _TAG_KEY_LENGTH_MAX), ("value", value, _TAG_VALUE_LENGTH_MAX)):
            least = 1 if name == "key" else 0
            if not least <= len(text) <= limit:
                bound = f"less than or equal to {limit}" if text else f"greater than or equal to {least}"
                raise SqsError(
                    wire.VALIDATION_ERROR,
                    f"1 validation error detected: Value '{text}' at 'tags.{number}.member.{name}' failed to satisfy "
                    f"constraint: Member must have length {bound}",
                )
    return tags


@contextmanager
def of_several(attribute: str) -> Iterator[None]:
    """What is wrong with one attribute, in a request that has several."""
    try:
        yield
    except SqsError as error:
        if error.kind is not wire.INVALID_PARAMETER:
            raise
        reason = error.message.removeprefix("Invalid parameter: ")
        raise invalid(
            f"Attributes Reason: {f'Unknown attribute {attribute}' if reason == 'AttributeName' else reason}"
        ) from None


def token_of(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def after_of(members: Members) -> str:
    token = members.get("NextToken")
    if not token:
        return ""
    try:
        return base64.b64decode(str(token).encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError):
        raise invalid("NextToken") from None
