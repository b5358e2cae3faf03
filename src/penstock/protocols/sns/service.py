"""The actions of SNS. One wire verb, one method; each gets a request's members and returns its result."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.core.commands import (
    ChangeQueue,
    Command,
    CreateChannel,
    CreateQueue,
    DeleteChannel,
    DeleteQueue,
    DescribeQueue,
    ListQueues,
    QueueInfo,
    Send,
    Sent,
)
from penstock.core.errors import PenstockError, QueueChanged, QueueExists, QueueNotFound
from penstock.core.queues.attributes import encode_attributes
from penstock.core.queues.config import QueueConfig, kind_of
from penstock.protocols.http import Exchange
from penstock.protocols.sns import wire
from penstock.protocols.sns.delivery import Deliveries
from penstock.protocols.sns.filters import compile_policy
from penstock.protocols.sns.topics import (
    CHANNEL_PREFIX,
    PREFIX,
    STRUCTURE,
    SUBJECT,
    SUBSCRIPTION_LABEL,
    TOPIC_LABEL,
    Subscription,
    Topic,
    encoded,
    subscription_of,
    subscriptions_of,
    topic_of,
)
from penstock.protocols.sns.wire import NOT_FOUND, invalid
from penstock.protocols.sqs import message_attributes
from penstock.protocols.sqs.errors import INTERNAL_FAILURE, UNKNOWN_OPERATION, SqsError
from penstock.protocols.sqs.message_attributes import STORED_SENDER
from penstock.protocols.sqs.names import Arns
from penstock.protocols.sqs.service import default_config, sequence_number
from penstock.protocols.sqs.shapes import AttributeValue
from penstock.server.auth import TO_SEE, Principal
from penstock.server.settings import SqsSettings
from penstock.server.shards import Shards

log = logging.getLogger("penstock.sns")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,119}(\.fifo)?\Z")
_TOKEN = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}\Z")
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
_SUBJECT = re.compile(r"[\x20-\x7e]{1,100}\Z")
MESSAGE_BYTES_MAX = 256 * 1024
_ENTRIES_MAX = 10
_PAGE = 100
_TAGS_MAX = 50
_TOPIC_ATTRIBUTES = frozenset(
    {
        "DisplayName",
        "Policy",
        "DeliveryPolicy",
        "KmsMasterKeyId",
        "SignatureVersion",
        "TracingConfig",
        "FifoTopic",
        "ContentBasedDeduplication",
        "FifoThroughputScope",
    }
)
_SUBSCRIPTION_ATTRIBUTES = frozenset(
    {"DeliveryPolicy", "FilterPolicy", "FilterPolicyScope", "RawMessageDelivery", "RedrivePolicy"}
)
_FIFO_ONLY = frozenset({"FifoTopic", "ContentBasedDeduplication", "FifoThroughputScope"})
_EFFECTIVE_DELIVERY_POLICY = msgspec.json.encode(
    {
        "http": {
            "defaultHealthyRetryPolicy": {
                "minDelayTarget": 20,
                "maxDelayTarget": 20,
                "numRetries": 3,
                "numMaxDelayRetries": 0,
                "numNoDelayRetries": 0,
                "numMinDelayRetries": 0,
                "backoffFunction": "linear",
            },
            "disableSubscriptionOverrides": False,
            "defaultRequestPolicy": {"headerContentType": "text/plain; charset=UTF-8"},
        }
    }
).decode()

Members = dict[str, Any]
Result = dict[str, Any] | None
ACTIONS = (
    "AddPermission",
    "CreateTopic",
    "DeleteTopic",
    "GetDataProtectionPolicy",
    "GetSubscriptionAttributes",
    "GetTopicAttributes",
    "ListSubscriptions",
    "ListSubscriptionsByTopic",
    "ListTagsForResource",
    "ListTopics",
    "Publish",
    "PublishBatch",
    "PutDataProtectionPolicy",
    "RemovePermission",
    "SetSubscriptionAttributes",
    "SetTopicAttributes",
    "Subscribe",
    "TagResource",
    "Unsubscribe",
    "UntagResource",
)


class SnsService:
    """Answers SNS requests from a shard, and delivers what is published."""

    def __init__(self, shard: Shards, settings: SqsSettings) -> None:
        self._shard = shard
        self._account = settings.account
        self._arn_prefix = f"arn:aws:sns:{settings.region}:{settings.account}:"
        self._arns = Arns(settings.region, settings.account, are_many=settings.accounts == "many")
        self._tasks: set[asyncio.Task[None]] = set()
        self.deliveries = Deliveries(shard, self._arn_prefix, self._arns)

    def handle(self, exchange: Exchange, principal: Principal, fields: dict[str, str], url: str) -> None:
        """Answer a request, later. `url` is where the client reached the server."""
        task = asyncio.get_running_loop().create_task(self._answer(exchange, principal, fields, url))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, exchange: Exchange, principal: Principal, fields: dict[str, str], url: str) -> None:
        action = fields.get("Action", "")
        exchange.principal = principal.name
        try:
            if action not in ACTIONS:
                raise SqsError(UNKNOWN_OPERATION, f"Could not find operation {action} for version 2010-03-31")
            exchange.action = action
            members = wire.decode(fields)
            result = await getattr(self, action)(Caller(principal, url), members)
        except SqsError as error:
            wire.respond_error(exchange, error)
        except PenstockError as error:
            wire.respond_error(exchange, wire.from_core(error))
        except Exception:
            log.exception("%s failed", action)
            reason = "The request failed on the server's side: its log says more."
            wire.respond_error(exchange, SqsError(INTERNAL_FAILURE, reason))
        else:
            wire.respond(exchange, action, result)

    # -- topics --

    async def CreateTopic(self, caller: Caller, members: Members) -> Result:
        """Create a topic; one that is there with the same attributes is fine."""
        name = _text(members, "Name")
        if not _NAME.match(name):
            raise invalid("Topic Name")
        attributes = _map(members, "Attributes")
        if attributes.get("FifoTopic", "false").lower() != ("true" if name.endswith(".fifo") else "false"):
            raise invalid(
                "Fifo Topic names must end with .fifo and must be made up of only uppercase and lowercase "
                "ASCII "
                "letters, numbers, underscores, and hyphens, and must be between 1 and 256 characters long."
            )
        for attribute, value in attributes.items():
            _check_topic_attribute(attribute, value, name)
        tags = _tags(members)
        queue = PREFIX + name
        caller.check(queue, CreateQueue)
        config = default_config(kind_of(queue)).changed(
            {
                "labels": {TOPIC_LABEL: encoded(Topic(attributes))},
                "tags": tags,
                "content_dedup": attributes.get("ContentBasedDeduplication", "false").lower() == "true",
            }
        )
        try:
            await self._shard.call(CreateQueue(name=queue, config=config, channels=()))
        except QueueExists:
            there = (await self._describe(queue)).config
            topic = topic_of(there.labels)
            if topic is None:
                raise invalid(f"Name Reason: the queue {queue} is there already, and is not a topic") from None
            if any(topic.attributes.get(each) != value for each, value in attributes.items()):
                raise invalid("Attributes Reason: Topic already exists with different attributes") from None
            if tags and there.tags != tags:
                raise invalid("Tags Reason: Topic already exists with different tags") from None
        return {"TopicArn": self._arn_prefix + name}

    async def DeleteTopic(self, caller: Caller, members: Members) -> Result:
        """Delete a topic with its subscriptions; one that is not there is fine."""
        queue = self._queue(caller, _text(members, "TopicArn"), DeleteQueue)
        try:
            await self._topic(queue)
            await self._shard.call(DeleteQueue(name=queue))
        except QueueNotFound:
            return None
        except SqsError as error:
            if error.kind is not NOT_FOUND:
                raise
        return None

    async def ListTopics(self, caller: Caller, members: Members) -> Result:
        """Topics by name, a hundred at a time."""
        names, token = await self._page(caller, _open_token(members))
        found: dict[str, Any] = {"Topics": [{"TopicArn": self._arn(name)} for name in names]}
        return found | ({"NextToken": token} if token else {})

    async def _page(self, caller: Caller, after: str) -> tuple[list[str], str]:
        """The next topics that the caller may see, and the token for those after them."""
        found: list[str] = []
        while len(found) <= _PAGE:
            names: list[str] = await self._shard.call(ListQueues(prefix=PREFIX, after=after, limit=_PAGE))
            for name in names:
                if caller.principal.may_see(name) and topic_of((await self._describe(name)).config.labels) is not None:
                    found.append(name)
            if len(names) < _PAGE:
                break
            after = names[-1]
        return found[:_PAGE], _token(found[_PAGE - 1]) if len(found) > _PAGE else ""

    async def GetTopicAttributes(self, caller: Caller, members: Members) -> Result:
        """What a topic is told to do, and how many are subscribed."""
        arn = _text(members, "TopicArn")
        info, topic = await self._topic(self._queue(caller, arn, *TO_SEE))
        arn = self._arn(info.name)
        count = sum(1 for label in info.config.labels if label.startswith(SUBSCRIPTION_LABEL))
        found = {
            "Policy": self._policy(arn),
            "Owner": self._account,
            "SubscriptionsPending": "0",
            "TopicArn": arn,
            "EffectiveDeliveryPolicy": topic.attributes.get("DeliveryPolicy") or _EFFECTIVE_DELIVERY_POLICY,
            "SubscriptionsConfirmed": str(count),
            "DisplayName": "",
            "SubscriptionsDeleted": "0",
        }
        if info.config.is_fifo:
            found |= {"ContentBasedDeduplication": "false", "FifoThroughputScope": "Topic"}
        return {"Attributes": found | {name: value for name, value in topic.attributes.items() if value}}

    async def SetTopicAttributes(self, caller: Caller, members: Members) -> Result:
        """Change an attribute of a topic."""
        queue = self._queue(caller, _text(members, "TopicArn"), ChangeQueue)
        await self._topic(queue)
        attribute, value = _text(members, "AttributeName"), str(members.get("AttributeValue", ""))
        if attribute == "FifoTopic":
            raise invalid("AttributeName")
        _check_topic_attribute(attribute, value, queue)

        def changes(config: QueueConfig, topic: Topic) -> dict[str, Any]:
            topic.attributes[attribute] = value
            made: dict[str, Any] = {"labels": {**config.labels, TOPIC_LABEL: encoded(topic)}}
            if attribute == "ContentBasedDeduplication":
                made["content_dedup"] = value.lower() == "true"
            return made

        await self._change(queue, changes)
        return None

    # -- policies and tags --

    async def AddPermission(self, caller: Caller, members: Members) -> Result:
        """Add a statement to a topic's policy. It is kept, and shown; rights are those of the server's credentials."""
        queue = self._queue(caller, _text(members, "TopicArn"), ChangeQueue)
        label, accounts, actions = _text(members, "Label"), members.get("AWSAccountId"), members.get("ActionName")
        if not isinstance(accounts, list) or not isinstance(actions, list):
            raise invalid("AWSAccountId and ActionName must have a member each")
        arn = self._arn(queue)

        def changes(config: QueueConfig, topic: Topic) -> dict[str, Any]:
            policy = msgspec.json.decode(topic.attributes.get("Policy") or self._policy(arn))
            if any(each.get("Sid") == label for each in policy["Statement"]):
                raise invalid("Statement already exists")
            principals = [f"arn:aws:iam::{account}:root" for account in accounts]
            policy["Statement"].append(
                {
                    "Sid": label,
                    "Effect": "Allow",
                    "Principal": {"AWS": principals[0] if len(principals) == 1 else principals},
                    "Action": f"SNS:{actions[0]}" if len(actions) == 1 else [f"SNS:{each}" for each in actions],
                    "Resource": arn,
                }
            )
            topic.attributes["Policy"] = msgspec.json.encode(policy).decode()
            return {"labels": {**config.labels, TOPIC_LABEL: encoded(topic)}}

        await self._change(queue, changes)
        return None

    async def RemovePermission(self, caller: Caller, members: Members) -> Result:
        """Take a statement out of a topic's policy; one that is not there is fine."""
        queue = self._queue(caller, _text(members, "TopicArn"), ChangeQueue)
        label, arn = _text(members, "Label"), self._arn(queue)

        def changes(config: QueueConfig, topic: Topic) -> dict[str, Any]:
            policy = msgspec.json.decode(topic.attributes.get("Policy") or self._policy(arn))
            policy["Statement"] = [each for each in policy["Statement"] if each.get("Sid") != label]
            topic.attributes["Policy"] = msgspec.json.encode(policy).decode()
            return {"labels": {**config.labels, TOPIC_LABEL: encoded(topic)}}

        await self._change(queue, changes)
        return None

    async def PutDataProtectionPolicy(self, caller: Caller, members: Members) -> Result:
        """Keep a data protection policy. It is not applied."""
        queue = self._queue(caller, _text(members, "ResourceArn"), ChangeQueue)
        text = _text(members, "DataProtectionPolicy")
        _check_json("DataProtectionPolicy", text)

        def changes(config: QueueConfig, topic: Topic) -> dict[str, Any]:
            topic.data_protection = text
            return {"labels": {**config.labels, TOPIC_LABEL: encoded(topic)}}

        await self._change(queue, changes)
        return None

    async def GetDataProtectionPolicy(self, caller: Caller, members: Members) -> Result:
        """The data protection policy that was kept."""
        _, topic = await self._topic(self._queue(caller, _text(members, "ResourceArn"), *TO_SEE))
        return {"DataProtectionPolicy": topic.data_protection}

    async def TagResource(self, caller: Caller, members: Members) -> Result:
        """Add tags to a topic, or change them."""
        tags = _tags(members)

        def changes(config: QueueConfig, _topic: Topic) -> dict[str, Any]:
            if len(config.tags | tags) > _TAGS_MAX:
                raise SqsError(
                    wire.TAG_LIMIT_EXCEEDED, "Could not complete request: tag quota of per resource exceeded"
                )
            return {"tags": config.tags | tags}

        await self._change_resource(caller, members, changes)
        return {}

    async def UntagResource(self, caller: Caller, members: Members) -> Result:
        """Take tags away; those that are not there are fine."""
        keys = members.get("TagKeys") or []

        def changes(config: QueueConfig, _topic: Topic) -> dict[str, Any]:
            return {"tags": {key: value for key, value in config.tags.items() if key not in keys}}

        await self._change_resource(caller, members, changes)
        return {}

    async def ListTagsForResource(self, caller: Caller, members: Members) -> Result:
        """A topic's tags."""
        queue = self._queue(caller, _text(members, "ResourceArn"), *TO_SEE)
        try:
            info, _ = await self._topic(queue)
        except SqsError as error:
            raise _resource(error) from None
        return {"Tags": [{"Key": key, "Value": value} for key, value in info.config.tags.items()]}

    async def _change_resource(
        self, caller: Caller, members: Members, changes: Callable[[QueueConfig, Topic], dict[str, Any]]
    ) -> None:
        queue = self._queue(caller, _text(members, "ResourceArn"), ChangeQueue)
        try:
            await self._change(queue, changes)
        except SqsError as error:
            raise _resource(error) from None

    # -- subscriptions --

    async def Subscribe(self, caller: Caller, members: Members) -> Result:
        """Subscribe an SQS queue of this server. The same once more gets the same subscription."""
        queue = self._queue(caller, _text(members, "TopicArn"), ChangeQueue)
        protocol, endpoint = _text(members, "Protocol"), str(members.get("Endpoint") or "")
        if protocol != "sqs":
            raise invalid(f"Does not support this protocol string: {protocol} (this server delivers to sqs)")
        target = self._arns.name(endpoint)
        if target is None:
            raise invalid("SQS endpoint ARN")
        caller.check(target, Send)
        attributes = _map(members, "Attributes")
        for attribute, value in attributes.items():
            self._check_subscription_attribute(caller, attribute, value, attributes)
        info, _ = await self._topic(queue)
        await self._shard.know(target, now=True)
        there = self._shard.identity.queues.get(target)
        if there is not None and there.config.is_fifo and not info.config.is_fifo:
            raise invalid(
                "Invalid parameter: Endpoint Reason: FIFO SQS Queues can not be subscribed to standard topics"
            )
        made = Subscription(protocol, endpoint, target, caller.url, caller.principal.name, attributes)
        subscription_id = str(uuid.uuid4())

        def changes(config: QueueConfig, _topic: Topic) -> dict[str, Any]:
            nonlocal subscription_id
            for known_id, known in subscriptions_of(config.labels).items():
                if known.endpoint == endpoint and known.protocol == protocol:
                    if any(known.attributes.get(name) != value for name, value in attributes.items()):
                        raise invalid("Attributes Reason: Subscription already exists with different attributes")
                    subscription_id = known_id
                    return {}
            return {"labels": {**config.labels, SUBSCRIPTION_LABEL + subscription_id: encoded(made)}}

        await self._change(queue, changes)
        channel = CHANNEL_PREFIX + subscription_id
        await self._shard.call(CreateChannel(queue=queue, channel=channel, start="tail"))
        return {"SubscriptionArn": f"{self._arn(queue)}:{subscription_id}"}

    async def Unsubscribe(self, caller: Caller, members: Members) -> Result:
        """End a subscription; one that is not there is fine."""
        queue, subscription_id = self._subscription(caller, members, ChangeQueue)

        def changes(config: QueueConfig, _topic: Topic) -> dict[str, Any]:
            label = SUBSCRIPTION_LABEL + subscription_id
            if label not in config.labels:
                return {}
            return {"labels": {name: value for name, value in config.labels.items() if name != label}}

        try:
            await self._change(queue, changes)
            channel = CHANNEL_PREFIX + subscription_id
            await self._shard.call(DeleteChannel(queue=queue, channel=channel, purge_last=True))
        except SqsError as error:
            if error.kind is not NOT_FOUND:
                raise
        except PenstockError as error:
            if "NotFound" not in type(error).__name__:
                raise
        return None

    async def ListSubscriptionsByTopic(self, caller: Caller, members: Members) -> Result:
        """A topic's subscriptions, a hundred at a time."""
        info, _ = await self._topic(self._queue(caller, _text(members, "TopicArn"), *TO_SEE))
        after = _open_token(members)
        found = [each for each in self._listed(info) if each["SubscriptionArn"] > after]
        page = found[:_PAGE]
        more = {"NextToken": _token(page[-1]["SubscriptionArn"])} if len(found) > _PAGE else {}
        return {"Subscriptions": page, **more}

    async def ListSubscriptions(self, caller: Caller, members: Members) -> Result:
        """All subscriptions, at least a hundred at a time: those of one topic stay together."""
        names, token = await self._page(caller, _open_token(members))
        found: list[dict[str, str]] = []
        for index, name in enumerate(names):
            found += self._listed(await self._describe(name))
            if len(found) >= _PAGE and index + 1 < len(names):
                token = _token(name)
                break
        return {"Subscriptions": found, **({"NextToken": token} if token else {})}

    def _listed(self, info: QueueInfo) -> list[dict[str, str]]:
        arn = self._arn(info.name)
        return [
            {
                "SubscriptionArn": f"{arn}:{subscription_id}",
                "Owner": self._account,
                "Protocol": each.protocol,
                "Endpoint": each.endpoint,
                "TopicArn": arn,
            }
            for subscription_id, each in subscriptions_of(info.config.labels).items()
        ]

    async def GetSubscriptionAttributes(self, caller: Caller, members: Members) -> Result:
        """What a subscription is told to do."""
        queue, subscription_id = self._subscription(caller, members, *TO_SEE)
        found = await self._there(queue, subscription_id)
        arn = self._arn(queue)
        shown = {
            "SubscriptionPrincipal": f"arn:aws:iam::{self._account}:user/{found.principal}",
            "Owner": self._account,
            "RawMessageDelivery": "false",
            "TopicArn": arn,
            "Endpoint": found.endpoint,
            "Protocol": found.protocol,
            "PendingConfirmation": "false",
            "ConfirmationWasAuthenticated": "true",
            "SubscriptionArn": f"{arn}:{subscription_id}",
        }
        if found.attributes.get("FilterPolicy"):
            shown["FilterPolicyScope"] = "MessageAttributes"
        return {"Attributes": shown | {name: value for name, value in found.attributes.items() if value}}

    async def SetSubscriptionAttributes(self, caller: Caller, members: Members) -> Result:
        """Change an attribute of a subscription."""
        queue, subscription_id = self._subscription(caller, members, ChangeQueue)
        attribute, value = _text(members, "AttributeName"), str(members.get("AttributeValue", ""))
        await self._there(queue, subscription_id)

        def changes(config: QueueConfig, _topic: Topic) -> dict[str, Any]:
            found = subscription_of(config.labels, subscription_id)
            if found is None:
                raise SqsError(NOT_FOUND, "Subscription does not exist")
            found.attributes[attribute] = value
            self._check_subscription_attribute(caller, attribute, value, found.attributes)
            return {"labels": {**config.labels, SUBSCRIPTION_LABEL + subscription_id: encoded(found)}}

        await self._change(queue, changes)
        return None

    def _check_subscription_attribute(self, caller: Caller, name: str, value: str, others: dict[str, str]) -> None:
        if name not in _SUBSCRIPTION_ATTRIBUTES:
            raise invalid("AttributeName")
        if name == "RawMessageDelivery" and value.lower() not in ("true", "false"):
            raise invalid(f"Attributes Reason: RawMessageDelivery: Invalid value [{value}]. Must be true or false.")
        if name == "FilterPolicyScope" and value not in ("MessageAttributes", "MessageBody"):
            raise invalid(
                f"Attributes Reason: FilterPolicyScope: Invalid value [{value}]. "
                "Please use either MessageBody or MessageAttributes"
            )
        policy = others.get("FilterPolicy")
        if name in ("FilterPolicy", "FilterPolicyScope") and policy and policy != "{}":
            compile_policy(policy, of_body=others.get("FilterPolicyScope") == "MessageBody")
        if name == "RedrivePolicy" and value:
            policy_found = _check_json("RedrivePolicy", value)
            arn = policy_found.get("deadLetterTargetArn")
            target = self._arns.name(arn) if isinstance(arn, str) else None
            if target is None:
                raise invalid("RedrivePolicy: deadLetterTargetArn is an invalid arn")
            caller.check(target, Send)
        if name == "DeliveryPolicy" and value:
            _check_json("DeliveryPolicy", value)
        if name == "RawMessageDelivery":
            others[name] = value.lower()

    # -- publishing --

    async def Publish(self, caller: Caller, members: Members) -> Result:
        """Publish a message: one send, one commit, however many are subscribed."""
        arn = members.get("TopicArn") or members.get("TargetArn")
        if not isinstance(arn, str):
            raise invalid("TopicArn or TargetArn Reason: no value for required parameter")
        queue = self._queue(caller, arn, Send)
        config = await self._topic_config(queue)
        body, attributes, group, dedup_id, _ = self._message(caller, members, config)
        sent: Sent = await self._shard.call(_send(queue, [body], [attributes], [group], [dedup_id]))
        return self._published(sent, 0, config)

    async def PublishBatch(self, caller: Caller, members: Members) -> Result:
        """Publish up to ten messages in one commit."""
        queue = self._queue(caller, _text(members, "TopicArn"), Send)
        config = await self._topic_config(queue)
        entries = members.get("PublishBatchRequestEntries")
        if not isinstance(entries, list) or not entries:
            raise SqsError(wire.EMPTY_BATCH, "The batch request doesn't contain any entries.")
        if len(entries) > _ENTRIES_MAX:
            raise SqsError(wire.TOO_MANY_ENTRIES, "The batch request contains more entries than permissible.")
        ids = [each.get("Id") if isinstance(each, dict) else None for each in entries]
        if any(not isinstance(each, str) or not _ENTRY_ID.match(each) for each in ids):
            raise SqsError(
                wire.INVALID_ENTRY_ID, "The Id of a batch entry in a batch request doesn't abide by the specification."
            )
        if len(set(ids)) < len(ids):
            raise SqsError(wire.IDS_NOT_DISTINCT, "Two or more batch entries in the request have the same Id.")
        made: list[tuple[str, tuple[bytes, bytes | None, str | None, str | None, int]]] = []
        failed: list[dict[str, Any]] = []
        for entry in entries:
            try:
                made.append((entry["Id"], self._message(caller, entry, config)))
            except SqsError as error:
                failed.append(
                    {"Id": entry["Id"], "Code": error.kind.code, "Message": error.message, "SenderFault": True}
                )
        if sum(message[4] for _, message in made) > MESSAGE_BYTES_MAX:
            raise SqsError(wire.BATCH_TOO_LONG, "The length of all the messages put together is more than the limit.")
        successful: list[dict[str, Any]] = []
        if made:
            bodies, attributes, groups, dedup_ids, _ = zip(*(message for _, message in made), strict=True)
            sent: Sent = await self._shard.call(
                _send(queue, list(bodies), list(attributes), list(groups), list(dedup_ids))
            )
            successful = [
                {"Id": entry_id, **self._published(sent, index, config)} for index, (entry_id, _) in enumerate(made)
            ]
        return {"Successful": successful, "Failed": failed}

    def _published(self, sent: Sent, index: int, config: QueueConfig) -> dict[str, Any]:
        sequence = sent.sequence(index)
        found = {"MessageId": self._shard.identity.message_id(sent.queue_id, sequence)}
        return found | ({"SequenceNumber": sequence_number(sequence)} if config.is_fifo else {})

    def _message(
        self, caller: Caller, members: Members, config: QueueConfig
    ) -> tuple[bytes, bytes | None, str | None, str | None, int]:
        """A message as the core takes it (body, attributes, group, dedup id), with its size; or what is wrong."""
        text = members.get("Message")
        if not isinstance(text, str) or not text:
            raise invalid("Empty message")
        stored: dict[str, Any] = {}
        structure, subject = members.get("MessageStructure"), members.get("Subject")
        if structure == "json":
            try:
                by_protocol = msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                by_protocol = None
            if not isinstance(by_protocol, dict):
                raise invalid("Message Structure - JSON message body failed to parse")
            if not isinstance(by_protocol.get("default"), str):
                raise invalid("Message Structure - No default entry in JSON message body")
            stored[STRUCTURE] = "json"
        elif structure:
            raise invalid("MessageStructure")
        if subject is not None:
            if not isinstance(subject, str) or not _SUBJECT.match(subject):
                raise invalid("Subject")
            stored[SUBJECT] = subject
        body = text.encode()
        size = len(body)
        given = members.get("MessageAttributes")
        if isinstance(given, dict) and given:
            own = {name: _attribute(name, value) for name, value in given.items()}
            try:
                message_attributes.check(own, 100)
            except SqsError as error:
                raise SqsError(wire.PARAMETER_VALUE_INVALID, error.message) from None
            size += message_attributes.size(own)
            stored |= message_attributes.to_stored(own, None)
        if size > MESSAGE_BYTES_MAX:
            raise invalid("Message too long")
        if caller.principal.access_key:
            stored[STORED_SENDER] = caller.principal.name
        group, dedup_id = members.get("MessageGroupId"), members.get("MessageDeduplicationId")
        if config.is_fifo:
            if not group:
                raise invalid("The MessageGroupId parameter is required for FIFO topics")
            if not dedup_id and not config.content_dedup:
                raise invalid(
                    "The topic should either have ContentBasedDeduplication enabled or "
                    "MessageDeduplicationId provided explicitly"
                )
        elif dedup_id:
            raise invalid(
                "MessageDeduplicationId Reason: The request includes MessageDeduplicationId parameter that "
                "is not valid for this topic type"
            )
        for name, token in (("MessageGroupId", group), ("MessageDeduplicationId", dedup_id)):
            if token is not None and (not isinstance(token, str) or not _TOKEN.match(token)):
                raise invalid(
                    f"{name} Reason: {name} can only include alphanumeric and punctuation characters. "
                    "1 to 128 in length"
                )
        return body, encode_attributes(stored) if stored else None, group, dedup_id, size

    # -- what they share --

    def _arn(self, queue: str) -> str:
        return self._arn_prefix + queue.removeprefix(PREFIX)

    def _queue(self, caller: Caller, arn: str, *kinds: type[Command]) -> str:
        """The queue of a topic, if the caller may do one of these commands there."""
        parts = arn.split(":")
        if len(parts) != 6 or parts[:3] != ["arn", "aws", "sns"] or not _NAME.match(parts[5]):
            raise invalid(
                f"TopicArn Reason: An ARN must have at least 6 elements, not {len(parts)}"
                if len(parts) < 6
                else "TopicArn"
            )
        queue = PREFIX + parts[5]
        caller.check(queue, *kinds)
        return queue

    def _subscription(self, caller: Caller, members: Members, *kinds: type[Command]) -> tuple[str, str]:
        """The topic's queue, and the id of the subscription with an ARN."""
        arn, _, subscription_id = _text(members, "SubscriptionArn").rpartition(":")
        if len(arn.split(":")) != 6:
            raise invalid("SubscriptionArn")
        return self._queue(caller, arn, *kinds), subscription_id

    async def _describe(self, queue: str) -> QueueInfo:
        info: QueueInfo = await self._shard.call(DescribeQueue(name=queue))
        return info

    async def _topic(self, queue: str) -> tuple[QueueInfo, Topic]:
        """A topic that is there."""
        info = await self._describe(queue)
        topic = topic_of(info.config.labels)
        if topic is None:
            raise SqsError(NOT_FOUND, "Topic does not exist")
        return info, topic

    async def _topic_config(self, queue: str) -> QueueConfig:
        """As `_topic`, without asking a shard for what is known here."""
        known = self._shard.identity.queues.get(queue)
        if known is None or TOPIC_LABEL not in known.config.labels:
            return (await self._topic(queue))[0].config
        return known.config

    async def _there(self, queue: str, subscription_id: str) -> Subscription:
        try:
            info, _ = await self._topic(queue)
        except QueueNotFound:
            raise SqsError(NOT_FOUND, "Subscription does not exist") from None
        found = subscription_of(info.config.labels, subscription_id)
        if found is None:
            raise SqsError(NOT_FOUND, "Subscription does not exist")
        return found

    async def _change(self, queue: str, changes_of: Callable[[QueueConfig, Topic], dict[str, Any]]) -> None:
        """Change what is kept of a topic, from what it is; if somebody was faster, it is worked out again."""
        while True:
            info, topic = await self._topic(queue)
            changes = changes_of(info.config, topic)
            if not changes:
                return
            expected = {setting: getattr(info.config, setting) for setting in changes}
            try:
                await self._shard.call(ChangeQueue(name=queue, changes=changes, expected=expected))
            except QueueChanged:
                continue
            return

    def _policy(self, arn: str) -> str:
        """The policy of a topic that was not given one, as AWS shows it."""
        actions = ["GetTopicAttributes", "SetTopicAttributes", "AddPermission", "RemovePermission", "DeleteTopic"]
        actions += ["Subscribe", "ListSubscriptionsByTopic", "Publish"]
        statement = {
            "Sid": "__default_statement_ID",
            "Effect": "Allow",
            "Principal": {"AWS": "*"},
            "Action": [f"SNS:{each}" for each in actions],
            "Resource": arn,
            "Condition": {"StringEquals": {"AWS:SourceOwner": self._account}},
        }
        policy = {"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [statement]}
        return msgspec.json.encode(policy).decode()


class Caller:
    """Who calls, and where they reached the server."""

    def __init__(self, principal: Principal, url: str) -> None:
        self.principal = principal
        self.url = url

    def check(self, queue: str, *kinds: type[Command]) -> None:
        """Raise unless the caller may do one of these commands with the queue."""
        if not self.principal.may(queue, *kinds):
            raise SqsError(wire.AUTHORIZATION_ERROR, f"User: {self.principal.name} is not authorized on {queue}")


def _send(
    queue: str,
    bodies: list[bytes],
    attributes: list[bytes | None],
    groups: list[str | None],
    dedup_ids: list[str | None],
) -> Send:
    return Send(
        queue=queue,
        bodies=bodies,
        attributes=attributes if any(attributes) else None,
        groups=groups if any(groups) else None,
        dedup_ids=dedup_ids if any(dedup_ids) else None,
        create=False,
    )


def _text(members: Members, name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not value:
        raise invalid(f"{name} Reason: no value for required parameter")
    return value


def _map(members: Members, name: str) -> dict[str, str]:
    value = members.get(name) or {}
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise invalid(name)
    return dict(value)


def _tags(members: Members) -> dict[str, str]:
    given = members.get("Tags") or []
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise invalid("Tags")
    tags = {str(each.get("Key", "")): str(each.get("Value", "")) for each in given}
    if len(tags) < len(given):
        raise invalid("Duplicated keys are not allowed.")
    if len(tags) > _TAGS_MAX:
        raise SqsError(wire.TAG_LIMIT_EXCEEDED, "Could not complete request: tag quota of per resource exceeded")
    if any(not 1 <= len(key) <= 128 or len(value) > 256 for key, value in tags.items()):
        raise invalid("Tags Reason: keys have 1 to 128 characters, and values at most 256")
    return tags


def _attribute(name: str, given: Any) -> AttributeValue:
    if not isinstance(given, dict):
        raise invalid(f"MessageAttributes Reason: {name} has no DataType")
    binary = given.get("BinaryValue")
    try:
        data = None if binary is None else base64.b64decode(str(binary), validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"MessageAttributes Reason: the BinaryValue of {name} is not base64") from None
    kind, text = given.get("DataType"), given.get("StringValue")
    if not isinstance(kind, str | None) or not isinstance(text, str | None):
        raise invalid(f"MessageAttributes Reason: {name}")
    return AttributeValue(data_type=kind, string_value=text, binary_value=data)


def _check_json(name: str, text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise invalid(f"{name}: failed to parse JSON.")
    return found


def _check_topic_attribute(name: str, value: str, topic: str) -> None:
    if name not in _TOPIC_ATTRIBUTES or (name in _FIFO_ONLY - {"FifoTopic"} and not topic.endswith(".fifo")):
        raise invalid("AttributeName")
    if name in ("FifoTopic", "ContentBasedDeduplication") and value.lower() not in ("true", "false"):
        raise invalid(f"{name} Reason: must be true or false")
    if name == "FifoThroughputScope" and value not in ("Topic", "MessageGroup"):
        raise invalid("FifoThroughputScope Reason: must be Topic or MessageGroup")
    if name == "Policy" and value:
        policy = _check_json("Policy", value)
        statements = policy.get("Statement")
        if not isinstance(statements, list) or not all(isinstance(each, dict) for each in statements):
            raise invalid("Policy Error: null")
    if name == "DeliveryPolicy" and value:
        _check_json("DeliveryPolicy", value)


def _resource(error: SqsError) -> SqsError:
    """TagResource and its like have an error of their own for a topic that is not there."""
    return SqsError(wire.RESOURCE_NOT_FOUND, "Resource does not exist") if error.kind is NOT_FOUND else error


def _token(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _open_token(members: Members) -> str:
    token = members.get("NextToken")
    if not token:
        return ""
    try:
        return base64.b64decode(str(token).encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError):
        raise invalid("NextToken") from None
