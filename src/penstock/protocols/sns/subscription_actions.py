"""Actions of subscriptions: how they are made, confirmed, changed and ended."""

from __future__ import annotations

import re
import uuid
from typing import Any

from penstock.core.commands import (
    ChangeQueue,
    Command,
    CreateChannel,
    DeleteChannel,
    FindOffsets,
    Offsets,
    QueueInfo,
    Send,
)
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.queues.config import QueueConfig, check_name
from penstock.protocols.sns import wire
from penstock.protocols.sns.delivery import NO_TOPIC
from penstock.protocols.sns.envelope import open_token
from penstock.protocols.sns.filters import compile_policy
from penstock.protocols.sns.http_delivery import NotAllowed, read_endpoint
from penstock.protocols.sns.policies import effective_for_subscription, replayed_between, subscription_policy
from penstock.protocols.sns.publish_actions import is_phone_number
from penstock.protocols.sns.requests import (
    PAGE,
    Caller,
    Members,
    Result,
    after_of,
    map_of,
    of_several,
    text_of,
    token_of,
)
from penstock.protocols.sns.topic_actions import TopicActions
from penstock.protocols.sns.topics import (
    CHANNEL_PREFIX,
    PROTOCOLS,
    REPLAY_SUFFIX,
    SUBSCRIPTION_LABEL,
    TO_HTTP,
    TO_QUEUES,
    Replay,
    Subscription,
    Topic,
    encoded,
    subscription_of,
    subscriptions_of,
    without,
)
from penstock.protocols.sns.wire import NOT_FOUND, invalid, json_object
from penstock.protocols.sqs.errors import SqsError
from penstock.server.auth import TO_SEE

_ATTRIBUTES = frozenset(
    {
        "DeliveryPolicy",
        "FilterPolicy",
        "FilterPolicyScope",
        "RawMessageDelivery",
        "RedrivePolicy",
        "ReplayPolicy",
        "SubscriptionRoleArn",
    }
)
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\Z")
_ARN_OF = {"lambda": "arn:aws:lambda:", "firehose": "arn:aws:firehose:", "application": "arn:aws:sns:"}
_PENDING_ARN = "PendingConfirmation"
_ARN_PARTS = 6
"""Of a topic's ARN; that of a subscription has one more."""
_SUBSCRIPTIONS_MAX = 100_000


class SubscriptionActions(TopicActions):
    """What can be done with subscriptions."""

    async def Subscribe(self, caller: Caller, members: Members) -> Result:
        """Subscribe an endpoint. The same once more gets the same subscription, or one more confirmation."""
        queue = self._queue(caller, text_of(members, "TopicArn"), ChangeQueue)
        protocol, endpoint = text_of(members, "Protocol"), str(members.get("Endpoint") or "")
        attributes = map_of(members, "Attributes")
        info, _ = await self._topics.find(queue)
        target = await self._check_endpoint(caller, protocol, endpoint, info.config.is_fifo)
        if target and self._topics.is_topic(target):
            raise invalid(f"Endpoint Reason: {NO_TOPIC}")
        for attribute, value in list(attributes.items()):
            with of_several(attribute):
                self._check_attribute(caller, attribute, value, attributes, protocol)
                await self._check_dead_letters(attribute, value, target, info)
        if attributes.get("ReplayPolicy") and not info.config.is_fifo:
            raise invalid("ReplayPolicy: Replay is only supported on FIFO topics")
        needs_confirmation = protocol in TO_HTTP or protocol in ("email", "email-json")
        made = Subscription(
            protocol,
            endpoint,
            target,
            caller.url,
            caller.principal.name,
            "" if caller.scope is None or caller.scope.account == self._topics.account(queue) else caller.scope.account,
            attributes,
            is_pending=needs_confirmation,
            made_ms=self._shard.now_ms(),
        )
        subscription_id = str(uuid.uuid4())

        def changes(config: QueueConfig, _topic: Topic) -> dict[str, Any]:
            nonlocal subscription_id, made
            there = subscriptions_of(config.labels)
            for known_id, known in there.items():
                if known.endpoint == endpoint and known.protocol == protocol:
                    if any(known.attributes.get(name) != value for name, value in attributes.items()):
                        raise invalid("Attributes Reason: Subscription already exists with different attributes")
                    subscription_id, made = known_id, known
                    return {}
            if len(there) >= _SUBSCRIPTIONS_MAX:
                raise SqsError(wire.SUBSCRIPTION_LIMIT_EXCEEDED, "Subscription limit exceeded")
            return {"labels": {**config.labels, SUBSCRIPTION_LABEL + subscription_id: encoded(made)}}

        await self._topics.change(queue, changes)
        arn = f"{self._arn(queue)}:{subscription_id}"
        if made.is_pending:
            self.deliveries.confirm("SubscriptionConfirmation", info.queue_id, queue, subscription_id, made)
            wants_arn = str(members.get("ReturnSubscriptionArn", "false")).lower() == "true"
            return {"SubscriptionArn": arn if wants_arn else "pending confirmation"}
        channel = CHANNEL_PREFIX + subscription_id
        await self._shard.call(CreateChannel(queue=queue, channel=channel, start="tail"))
        if attributes.get("ReplayPolicy") and made.replay is None:
            await self._start_replay(queue, subscription_id, attributes["ReplayPolicy"])
        return {"SubscriptionArn": arn}

    async def _check_endpoint(self, caller: Caller, protocol: str, endpoint: str, is_fifo: bool) -> str:
        """The queue that an endpoint is, or an empty text; `SqsError` if it cannot be subscribed."""
        if protocol not in PROTOCOLS:
            raise invalid(f"Amazon SNS does not support this protocol string: {protocol}")
        if not endpoint:
            raise invalid("Endpoint")
        if is_fifo and protocol not in TO_QUEUES:
            raise invalid("Invalid parameter: Endpoint Reason: Please use FIFO SQS queue")
        if protocol in TO_QUEUES:
            return await self._check_queue(caller, protocol, endpoint, is_fifo)
        if protocol in TO_HTTP:
            parts = read_endpoint(endpoint)
            if parts is None or parts.is_tls != (protocol == "https"):
                raise invalid("Endpoint must match the specified protocol")
            try:
                await self.deliveries.poster.targets.resolve(parts)
            except NotAllowed as error:
                raise invalid(f"Unreachable endpoint Reason: {error}") from None
            except (OSError, UnicodeError):
                raise invalid("Unreachable endpoint Reason: its name is not known") from None
        elif protocol in ("email", "email-json"):
            if not _EMAIL.match(endpoint):
                raise invalid("Email address")
        elif protocol == "sms":
            if not is_phone_number(endpoint):
                raise SqsError(wire.INVALID_PARAMETER, f"Invalid SMS endpoint: {endpoint}")
        elif not endpoint.startswith(_ARN_OF[protocol]):
            raise invalid(f"{protocol.title()} endpoint ARN")
        return ""

    async def _check_queue(self, caller: Caller, protocol: str, endpoint: str, is_fifo: bool) -> str:
        if protocol == "sqs":
            target = self._arns.name(endpoint)
            if target is None:
                raise invalid("SQS endpoint ARN")
        else:
            try:
                target = check_name(endpoint, "queue")
            except InvalidRequest as error:
                raise invalid(f"Endpoint Reason: {error}") from None
        caller.check(target, Send)
        await self._shard.know(target, now=True)
        there = self._shard.identity.queues.get(target)
        if there is not None and there.config.is_fifo and not is_fifo:
            raise invalid(
                "Invalid parameter: Endpoint Reason: FIFO SQS Queues can not be subscribed to standard SNS topics"
            )
        return target

    async def ConfirmSubscription(self, caller: Caller, members: Members) -> Result:
        """Confirm a subscription with the token that its endpoint was sent. The token is what gives the right to."""
        ticket = open_token(text_of(members, "Token"), self._shard.identity.meta.secret, self._shard.now_ms())
        locked = str(members.get("AuthenticateOnUnsubscribe", "false")).lower() == "true"
        try:
            queue = self._named_queue(text_of(members, "TopicArn"))
            info, _ = await self._topics.find(queue)
        except (PenstockError, SqsError) as error:
            if not _is_missing(error) and not isinstance(error, SqsError):
                raise
            raise invalid("Topic") from None
        if info.queue_id != ticket.queue_id:
            raise invalid("Topic")

        def changes(config: QueueConfig, _topic: Topic) -> dict[str, Any]:
            found = subscription_of(config.labels, ticket.subscription_id) or ticket.restored
            if found is None:
                raise SqsError(NOT_FOUND, "Subscription does not exist")
            if not found.is_pending and SUBSCRIPTION_LABEL + ticket.subscription_id in config.labels:
                return {}
            found.is_pending = False
            found.was_confirmed_by_stranger = not caller.is_known or not locked
            return {"labels": {**config.labels, SUBSCRIPTION_LABEL + ticket.subscription_id: encoded(found)}}

        await self._topics.change(queue, changes)
        channel = CHANNEL_PREFIX + ticket.subscription_id
        await self._shard.call(CreateChannel(queue=queue, channel=channel, start="tail"))
        return {"SubscriptionArn": f"{self._arn(queue)}:{ticket.subscription_id}"}

    async def Unsubscribe(self, caller: Caller, members: Members) -> Result:
        """End a subscription; one that is not there is fine. An HTTP(S) endpoint is told, and may come back."""
        topic_arn, subscription_id = self._parts(members)
        queue = self._named_queue(topic_arn)
        try:
            info, _ = await self._topics.find(queue)
        except (PenstockError, SqsError) as error:
            caller.check(queue, ChangeQueue)
            if _is_missing(error):
                return None
            raise
        found = subscription_of(info.config.labels, subscription_id)
        if found is None or not found.was_confirmed_by_stranger:
            caller.check(queue, ChangeQueue)
        if found is not None and found.is_pending:
            raise invalid("SubscriptionArn Reason: Cannot unsubscribe a subscription that is pending confirmation")
        try:
            await self._topics.change(queue, lambda config, topic: without(config, topic, subscription_id))
            for channel in (CHANNEL_PREFIX + subscription_id, CHANNEL_PREFIX + subscription_id + REPLAY_SUFFIX):
                if channel in info.channels:
                    await self._shard.call(DeleteChannel(queue=queue, channel=channel, purge_last=True))
        except (PenstockError, SqsError) as error:
            if not _is_missing(error):
                raise
        if found is not None and found.protocol in TO_HTTP:
            self.deliveries.confirm("UnsubscribeConfirmation", info.queue_id, queue, subscription_id, found)
        return None

    async def ListSubscriptionsByTopic(self, caller: Caller, members: Members) -> Result:
        """A topic's subscriptions, a hundred at a time."""
        info, _ = await self._topics.find(self._queue(caller, text_of(members, "TopicArn"), *TO_SEE))
        after = after_of(members)
        found = [(key, each) for key, each in self._listed(info) if key > after]
        page = found[:PAGE]
        more = {"NextToken": token_of(page[-1][0])} if len(found) > PAGE else {}
        return {"Subscriptions": [each for _, each in page], **more}

    async def ListSubscriptions(self, caller: Caller, members: Members) -> Result:
        """All subscriptions, at least a hundred at a time: those of one topic stay together."""
        names, token = await self._page(caller, after_of(members))
        found: list[dict[str, str]] = []
        for index, name in enumerate(names):
            found += [each for _, each in self._listed(await self._topics.describe(name))]
            if len(found) >= PAGE and index + 1 < len(names):
                token = token_of(name)
                break
        return {"Subscriptions": found, **({"NextToken": token} if token else {})}

    def _listed(self, info: QueueInfo) -> list[tuple[str, dict[str, str]]]:
        arn, now_ms = self._arn(info.name), self._shard.now_ms()
        owner = self._topics.account(info.name)
        return [
            (
                subscription_id,
                {
                    "SubscriptionArn": _PENDING_ARN if each.is_pending else f"{arn}:{subscription_id}",
                    "Owner": each.account or owner,
                    "Protocol": each.protocol,
                    "Endpoint": each.endpoint,
                    "TopicArn": arn,
                },
            )
            for subscription_id, each in subscriptions_of(info.config.labels).items()
            if not each.is_expired(now_ms)
        ]

    async def GetSubscriptionAttributes(self, caller: Caller, members: Members) -> Result:
        """What a subscription is told to do."""
        queue, subscription_id = self._subscription(caller, members, *TO_SEE)
        topic, found = await self._there(queue, subscription_id)
        arn, owner = self._arn(queue), found.account or self._topics.account(queue)
        shown = {
            "SubscriptionPrincipal": f"arn:aws:iam::{owner}:user/{found.principal}",
            "Owner": owner,
            "RawMessageDelivery": "true" if found.is_raw else "false",
            "TopicArn": arn,
            "Endpoint": found.endpoint,
            "Protocol": found.protocol,
            "PendingConfirmation": "true" if found.is_pending else "false",
            "ConfirmationWasAuthenticated": "false" if found.is_pending or found.was_confirmed_by_stranger else "true",
            "SubscriptionArn": f"{arn}:{subscription_id}",
        }
        if found.attributes.get("FilterPolicy"):
            shown["FilterPolicyScope"] = "MessageAttributes"
        if found.protocol in TO_HTTP:
            shown["EffectiveDeliveryPolicy"] = effective_for_subscription(
                topic.attributes.get("DeliveryPolicy", ""), found.attributes.get("DeliveryPolicy", "")
            )
        if found.replay is not None:
            shown["ReplayStatus"] = "Completed" if found.replay.is_over else "In progress"
        own = {name: value for name, value in found.attributes.items() if value}
        if "FilterPolicy" not in own:
            own.pop("FilterPolicyScope", None)
        return {"Attributes": shown | own}

    async def SetSubscriptionAttributes(self, caller: Caller, members: Members) -> Result:
        queue, subscription_id = self._subscription(caller, members, ChangeQueue)
        attribute, value = text_of(members, "AttributeName"), str(members.get("AttributeValue", ""))
        _, there = await self._there(queue, subscription_id)
        await self._check_dead_letters(attribute, value, there.target, await self._topics.describe(queue))

        def change(found: Subscription) -> None:
            found.attributes[attribute] = value
            self._check_attribute(caller, attribute, value, found.attributes, found.protocol)
            if attribute == "ReplayPolicy" and not value:
                found.replay = None
            if attribute == "FilterPolicy" and value.strip() in ("", "{}"):
                del found.attributes["FilterPolicy"]  # it goes, and its scope goes with it
                found.attributes.pop("FilterPolicyScope", None)

        if attribute == "ReplayPolicy" and value:
            self._check_attribute(caller, attribute, value, {}, there.protocol)
            if not (await self._topics.config(queue)).is_fifo:
                raise invalid("ReplayPolicy: Replay is only supported on FIFO topics")
        await self._topics.change_subscription(queue, subscription_id, change)
        if attribute == "ReplayPolicy" and value:
            await self._start_replay(queue, subscription_id, value)
        return None

    async def _start_replay(self, queue: str, subscription_id: str, policy: str) -> None:
        """Give a subscription what was archived between two times once more."""
        times = replayed_between(policy)
        if times is None:
            return
        start_ms, end_ms = times
        _, topic = await self._topics.find(queue)
        if not topic.archived_since_ms:
            raise invalid("ReplayPolicy: the topic has no archive")
        asked = (start_ms,) if end_ms is None else (start_ms, end_ms + 1)
        offsets: Offsets = await self._shard.call(FindOffsets(queue=queue, times_ms=asked))
        replay = Replay(str(uuid.uuid4()), start_ms, offsets.end if end_ms is None else offsets.at_times[1])
        channel = CHANNEL_PREFIX + subscription_id + REPLAY_SUFFIX
        if channel in (await self._topics.describe(queue)).channels:  # a replay takes the place of the one before
            await self._shard.call(DeleteChannel(queue=queue, channel=channel, purge_last=True))

        def begin(found: Subscription) -> None:
            found.replay = replay

        await self._topics.change_subscription(queue, subscription_id, begin)
        await self._shard.call(CreateChannel(queue=queue, channel=channel, offset=offsets.at_times[0]))

    # -- what they share --

    @staticmethod
    def _parts(members: Members) -> tuple[str, str]:
        """The topic's ARN and the id, of a subscription's ARN."""
        text = text_of(members, "SubscriptionArn")
        parts = text.split(":")
        if len(parts) < _ARN_PARTS:
            raise invalid(f"SubscriptionArn Reason: An ARN must have at least 6 elements, not {len(parts)}")
        if len(parts) != _ARN_PARTS + 1:
            raise invalid("SubscriptionId")
        return text.rpartition(":")[0], parts[-1]

    def _subscription(self, caller: Caller, members: Members, *kinds: type[Command]) -> tuple[str, str]:
        """The topic's queue, and the id of the subscription with an ARN."""
        arn, subscription_id = self._parts(members)
        return self._queue(caller, arn, *kinds), subscription_id

    async def _check_dead_letters(self, name: str, value: str, target: str, info: QueueInfo) -> None:
        """Raise if the dead letters of a FIFO queue, subscribed to a FIFO topic, would go to a standard queue."""
        if name != "RedrivePolicy" or not value or not info.config.is_fifo:
            return
        arn = json_object("RedrivePolicy", value).get("deadLetterTargetArn")
        dead = self._arns.name(arn) if isinstance(arn, str) else None
        queues = self._shard.identity.queues
        for queue in (target, dead):
            if queue:
                await self._shard.know(queue, now=True)
        there, sink = queues.get(target), queues.get(dead or "")
        if there is not None and there.config.is_fifo and sink is not None and not sink.config.is_fifo:
            raise invalid("RedrivePolicy: must use a FIFO queue as DLQ for a FIFO Subscription to a FIFO Topic.")

    def _check_attribute(self, caller: Caller, name: str, value: str, others: dict[str, str], protocol: str) -> None:
        if name not in _ATTRIBUTES:
            raise invalid("AttributeName")
        if name == "RawMessageDelivery":
            if value.lower() not in ("true", "false"):
                raise invalid(f"RawMessageDelivery: Invalid value [{value}]. Must be true or false.")
            if value.lower() == "true" and protocol not in TO_QUEUES | TO_HTTP | {"firehose"}:
                raise invalid(f"RawMessageDelivery: This attribute is not supported for delivery protocol {protocol}")
            others[name] = value.lower()
        if name == "FilterPolicyScope" and value not in ("MessageAttributes", "MessageBody"):
            raise invalid(
                f"FilterPolicyScope: Invalid value [{value}]. Please use either MessageBody or MessageAttributes"
            )
        wanted = others.get("FilterPolicy")
        if name in ("FilterPolicy", "FilterPolicyScope") and wanted and wanted != "{}":
            compile_policy(wanted, of_body=others.get("FilterPolicyScope") == "MessageBody")
        if name == "RedrivePolicy" and value:
            policy = json_object("RedrivePolicy", value)
            for member in policy:
                if member != "deadLetterTargetArn":
                    raise invalid(f"RedrivePolicy: invalid JSON. Attribute {member} is unknown.")
            arn = policy.get("deadLetterTargetArn")
            target = self._arns.name(arn) if isinstance(arn, str) else None
            if target is None:
                raise invalid("RedrivePolicy: deadLetterTargetArn is an invalid arn")
            if self._topics.is_topic(target):
                raise invalid(f"RedrivePolicy: {NO_TOPIC}")
            caller.check(target, Send)
        if name == "DeliveryPolicy" and value:
            if protocol not in TO_HTTP:
                raise invalid("DeliveryPolicy: delivery policies are only supported for HTTP(S) endpoints")
            others[name] = subscription_policy(value)
        if name == "ReplayPolicy" and value:
            replayed_between(value)


def _is_missing(error: Exception) -> bool:
    return error.kind is NOT_FOUND if isinstance(error, SqsError) else "NotFound" in type(error).__name__
