"""Actions of topics: their attributes, policies and tags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.core.commands import (
    AckConsumer,
    ChangeQueue,
    CreateQueue,
    DeleteConsumer,
    DeleteQueue,
    FindOffsets,
    ListQueues,
    Offsets,
)
from penstock.core.errors import NotFound, QueueExists, QueueNotFound
from penstock.core.queues.config import NAME_LENGTH_MAX, QueueConfig, kind_of
from penstock.protocols.sns import wire
from penstock.protocols.sns.envelope import timestamp
from penstock.protocols.sns.policies import archived_ms, effective_for_topic, topic_policy
from penstock.protocols.sns.requests import (
    NAME,
    PAGE,
    TAGS_MAX,
    ActionsBase,
    Caller,
    Members,
    Result,
    after_of,
    map_of,
    of_several,
    tags_of,
    text_of,
    token_of,
)
from penstock.protocols.sns.topics import ARCHIVE, TOPIC_LABEL, Topic, encoded, subscriptions_of, topic_of
from penstock.protocols.sns.wire import NOT_FOUND, invalid, json_object
from penstock.protocols.sqs.errors import SqsError
from penstock.protocols.sqs.names import TOPIC_PREFIX
from penstock.protocols.sqs.service import default_config
from penstock.server.auth import TO_SEE

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
        "ArchivePolicy",
    }
    | {
        f"{protocol}{which}"
        for protocol in ("Application", "Firehose", "HTTP", "Lambda", "SQS")
        for which in ("SuccessFeedbackRoleArn", "SuccessFeedbackSampleRate", "FailureFeedbackRoleArn")
    }
)
_DISPLAY_NAME_MAX = 100
_RATE_MAX = 100
_IN_POLICIES = frozenset(
    {
        "addpermission",
        "deletetopic",
        "getdataprotectionpolicy",
        "gettopicattributes",
        "listsubscriptionsbytopic",
        "listtagsforresource",
        "publish",
        "putdataprotectionpolicy",
        "receive",
        "removepermission",
        "settopicattributes",
        "subscribe",
    }
)
"""What a topic's policy may name."""
_FIFO_ONLY = frozenset({"FifoTopic", "ContentBasedDeduplication", "FifoThroughputScope", "ArchivePolicy"})


class TopicActions(ActionsBase):
    """What can be done with topics."""

    async def CreateTopic(self, caller: Caller, members: Members) -> Result:
        """Create a topic; one that is there with the same attributes is fine."""
        name = str(members.get("Name", ""))
        if not NAME.match(name) or name == "fifo":
            raise invalid("Topic Name")
        attributes = map_of(members, "Attributes")
        if attributes.get("FifoTopic", "false").lower() != ("true" if name.endswith(".fifo") else "false"):
            raise invalid(
                "Fifo Topic names must end with .fifo and must be made up of only uppercase and lowercase "
                "ASCII "
                "letters, numbers, underscores, and hyphens, and must be between 1 and 256 characters long."
            )
        for attribute, value in list(attributes.items()):
            with of_several(attribute):
                attributes[attribute] = _checked_attribute(attribute, value, name)
        if not name.endswith(".fifo"):
            attributes.pop("FifoTopic", None)
        protection = _checked_protection(members)
        tags = tags_of(members)
        queue = self._prefix(caller) + name
        if len(queue) > NAME_LENGTH_MAX:
            raise invalid("Topic Name")
        caller.check(queue, CreateQueue)
        topic = Topic(attributes, protection)
        config = default_config(kind_of(queue)).changed(
            {
                **self._archive_changes(topic, attributes.get("ArchivePolicy", "")),
                "labels": {TOPIC_LABEL: encoded(topic)},
                "tags": tags,
                "content_dedup": attributes.get("ContentBasedDeduplication", "false").lower() == "true",
            }
        )
        try:
            await self._shard.call(CreateQueue(name=queue, config=config, channels=()))
        except QueueExists:
            there = (await self._topics.describe(queue)).config
            known = topic_of(there.labels)
            if known is None:
                raise invalid(f"Name Reason: the queue {queue} is there already, and is not a topic") from None
            if any(known.attributes.get(each) != value for each, value in attributes.items()):
                raise invalid("Attributes Reason: Topic already exists with different attributes") from None
            if tags and there.tags != tags:
                raise invalid("Tags Reason: Topic already exists with different tags") from None
        if topic.archived_since_ms:
            await self._begin_archive(queue)
        return {"TopicArn": self._arn(queue)}

    def _archive_changes(self, topic: Topic, policy: str) -> dict[str, Any]:
        """What an archive changes of a topic's queue: what it keeps, the archive's consumer says."""
        usual = default_config("standard")
        if not archived_ms(policy):
            topic.archived_since_ms = 0
            return {"retention_ms": usual.retention_ms, "consumer_retention_ms": usual.consumer_retention_ms}
        topic.archived_since_ms = topic.archived_since_ms or self._shard.now_ms()
        return {"retention_ms": None, "consumer_retention_ms": None}

    async def _begin_archive(self, queue: str) -> None:
        """Keep what comes from now on."""
        offsets: Offsets = await self._shard.call(FindOffsets(queue=queue))
        await self._shard.call(AckConsumer(queue=queue, consumer=ARCHIVE, offset=offsets.end))

    async def DeleteTopic(self, caller: Caller, members: Members) -> Result:
        """Delete a topic with its subscriptions; one that is not there is fine."""
        queue = self._queue(caller, text_of(members, "TopicArn"), DeleteQueue)
        try:
            _, topic = await self._topics.find(queue)
            if topic.archived_since_ms:
                raise SqsError(wire.INVALID_STATE, "Invalid state: Cannot delete a topic with an ArchivePolicy")
            await self._shard.call(DeleteQueue(name=queue))
        except QueueNotFound:
            return None
        except SqsError as error:
            if error.kind is not NOT_FOUND:
                raise
        return None

    async def ListTopics(self, caller: Caller, members: Members) -> Result:
        """Topics by name, a hundred at a time."""
        names, token = await self._page(caller, after_of(members))
        found: dict[str, Any] = {"Topics": [{"TopicArn": self._arn(name)} for name in names]}
        return found | ({"NextToken": token} if token else {})

    @staticmethod
    def _prefix(caller: Caller) -> str:
        """What the caller's topics begin with inside."""
        return ("" if caller.scope is None else caller.scope.prefix) + TOPIC_PREFIX

    async def _page(self, caller: Caller, after: str) -> tuple[list[str], str]:
        """The next topics that the caller may see, and the token for those after them."""
        found: list[str] = []
        while len(found) <= PAGE:
            names: list[str] = await self._shard.call(ListQueues(prefix=self._prefix(caller), after=after, limit=PAGE))
            for name in names:
                if (
                    caller.principal.may_see(name)
                    and topic_of((await self._topics.describe(name)).config.labels) is not None
                ):
                    found.append(name)
            if len(names) < PAGE:
                break
            after = names[-1]
        return found[:PAGE], token_of(found[PAGE - 1]) if len(found) > PAGE else ""

    async def GetTopicAttributes(self, caller: Caller, members: Members) -> Result:
        """What a topic is told to do, and how many are subscribed."""
        arn = text_of(members, "TopicArn")
        info, topic = await self._topics.find(self._queue(caller, arn, *TO_SEE))
        arn = self._arn(info.name)
        now_ms = self._shard.now_ms()
        there = [each for each in subscriptions_of(info.config.labels).values() if not each.is_expired(now_ms)]
        pending = sum(each.is_pending for each in there)
        found = {
            "Policy": _policy(arn),
            "Owner": self._topics.account(info.name),
            "SubscriptionsPending": str(pending),
            "TopicArn": arn,
            "EffectiveDeliveryPolicy": effective_for_topic(topic.attributes.get("DeliveryPolicy", "")),
            "SubscriptionsConfirmed": str(len(there) - pending),
            "DisplayName": "",
            "SubscriptionsDeleted": str(topic.unsubscribed),
        }
        if info.config.is_fifo:
            found["ContentBasedDeduplication"] = "false"
        if topic.archived_since_ms:
            begins_ms = max(topic.archived_since_ms, now_ms - archived_ms(topic.attributes.get("ArchivePolicy", "")))
            found["BeginningArchiveTime"] = timestamp(begins_ms)
        return {"Attributes": found | {name: value for name, value in topic.attributes.items() if value}}

    async def SetTopicAttributes(self, caller: Caller, members: Members) -> Result:
        queue = self._queue(caller, text_of(members, "TopicArn"), ChangeQueue)
        _, before = await self._topics.find(queue)
        had_archive = before.archived_since_ms > 0
        attribute, value = text_of(members, "AttributeName"), str(members.get("AttributeValue", ""))
        if attribute == "FifoTopic":
            raise invalid("AttributeName")
        value = _checked_attribute(attribute, value, queue)

        def changes(config: QueueConfig, topic: Topic) -> dict[str, Any]:
            topic.attributes[attribute] = value
            made: dict[str, Any] = {"labels": {**config.labels, TOPIC_LABEL: encoded(topic)}}
            if attribute == "ContentBasedDeduplication":
                made["content_dedup"] = value.lower() == "true"
            if attribute == "ArchivePolicy":
                if not archives:
                    del topic.attributes[attribute]
                made |= self._archive_changes(topic, value)
                made["labels"][TOPIC_LABEL] = encoded(topic)
            return made

        archives = attribute == "ArchivePolicy" and archived_ms(value) > 0
        if archives and not had_archive:
            await self._begin_archive(queue)
        await self._topics.change(queue, changes)
        if had_archive and attribute == "ArchivePolicy" and not archives:
            await self._end_archive(queue)
        return None

    async def _end_archive(self, queue: str) -> None:
        """What is kept for the archive alone goes."""
        try:
            await self._shard.call(DeleteConsumer(queue=queue, consumer=ARCHIVE))
        except NotFound:
            return

    # -- policies and tags --

    async def AddPermission(self, caller: Caller, members: Members) -> Result:
        """Add a statement to a topic's policy. It is kept, and shown; rights are those of the server's credentials."""
        queue = self._queue(caller, text_of(members, "TopicArn"), ChangeQueue)
        label, accounts, actions = text_of(members, "Label"), members.get("AWSAccountId"), members.get("ActionName")
        if not isinstance(accounts, list) or not isinstance(actions, list):
            raise invalid("AWSAccountId and ActionName must have a member each")
        _check_scope([f"SNS:{each}" for each in actions])
        arn = self._arn(queue)

        def changes(config: QueueConfig, topic: Topic) -> dict[str, Any]:
            policy = msgspec.json.decode(topic.attributes.get("Policy") or _policy(arn))
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

        await self._topics.change(queue, changes)
        return None

    async def RemovePermission(self, caller: Caller, members: Members) -> Result:
        """Take a statement out of a topic's policy; one that is not there is fine."""
        queue = self._queue(caller, text_of(members, "TopicArn"), ChangeQueue)
        label, arn = text_of(members, "Label"), self._arn(queue)

        def changes(config: QueueConfig, topic: Topic) -> dict[str, Any]:
            policy = msgspec.json.decode(topic.attributes.get("Policy") or _policy(arn))
            policy["Statement"] = [each for each in policy["Statement"] if each.get("Sid") != label]
            topic.attributes["Policy"] = msgspec.json.encode(policy).decode()
            return {"labels": {**config.labels, TOPIC_LABEL: encoded(topic)}}

        await self._topics.change(queue, changes)
        return None

    async def PutDataProtectionPolicy(self, caller: Caller, members: Members) -> Result:
        """Keep a data protection policy; an empty one goes. It is not applied."""
        queue = self._queue(caller, text_of(members, "ResourceArn"), ChangeQueue)
        text = _checked_protection(members)

        def changes(config: QueueConfig, topic: Topic) -> dict[str, Any]:
            topic.data_protection = text
            return {"labels": {**config.labels, TOPIC_LABEL: encoded(topic)}}

        await self._topics.change(queue, changes)
        return None

    async def GetDataProtectionPolicy(self, caller: Caller, members: Members) -> Result:
        """The data protection policy that was kept."""
        _, topic = await self._topics.find(self._queue(caller, text_of(members, "ResourceArn"), *TO_SEE))
        return {"DataProtectionPolicy": topic.data_protection}

    async def TagResource(self, caller: Caller, members: Members) -> Result:
        """Add tags to a topic, or change them."""
        tags = tags_of(members)

        def changes(config: QueueConfig, _topic: Topic) -> dict[str, Any]:
            if len(config.tags | tags) > TAGS_MAX:
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
        queue = self._queue(caller, text_of(members, "ResourceArn"), *TO_SEE)
        try:
            info, _ = await self._topics.find(queue)
        except (SqsError, QueueNotFound) as error:
            raise _resource(error) from None
        return {"Tags": [{"Key": key, "Value": value} for key, value in info.config.tags.items()]}

    async def _change_resource(
        self, caller: Caller, members: Members, changes: Callable[[QueueConfig, Topic], dict[str, Any]]
    ) -> None:
        queue = self._queue(caller, text_of(members, "ResourceArn"), ChangeQueue)
        try:
            await self._topics.change(queue, changes)
        except (SqsError, QueueNotFound) as error:
            raise _resource(error) from None


def _policy(arn: str) -> str:
    """The policy of a topic that was not given one, as AWS shows it."""
    actions = ["GetTopicAttributes", "SetTopicAttributes", "AddPermission", "RemovePermission", "DeleteTopic"]
    actions += ["Subscribe", "ListSubscriptionsByTopic", "Publish"]
    statement = {
        "Sid": "__default_statement_ID",
        "Effect": "Allow",
        "Principal": {"AWS": "*"},
        "Action": [f"SNS:{each}" for each in actions],
        "Resource": arn,
        "Condition": {"StringEquals": {"AWS:SourceOwner": arn.split(":")[4]}},
    }
    policy = {"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [statement]}
    return msgspec.json.encode(policy).decode()


def _checked_attribute(name: str, value: str, topic: str) -> str:
    if name not in _TOPIC_ATTRIBUTES or (name in _FIFO_ONLY - {"FifoTopic"} and not topic.endswith(".fifo")):
        raise invalid("AttributeName")
    if name in ("FifoTopic", "ContentBasedDeduplication") and value.lower() not in ("true", "false"):
        raise invalid(f"{name} Reason: must be true or false")
    if name == "FifoThroughputScope" and value not in ("Topic", "MessageGroup"):
        raise invalid("FifoThroughputScope Reason: must be Topic or MessageGroup")
    if name == "Policy" and value:
        policy = json_object("Policy", value)
        statements = policy.get("Statement")
        if not isinstance(statements, list) or not all(isinstance(each, dict) for each in statements):
            raise invalid("Policy Error: null")
        for statement in statements:
            _check_scope(statement.get("Action", []))
    if name == "DeliveryPolicy":
        return topic_policy(value)
    if name == "ArchivePolicy":
        archived_ms(value)
    if name == "SignatureVersion" and value not in ("1", "2"):
        raise invalid("SignatureVersion Reason: must be 1 or 2")
    if name == "TracingConfig" and value not in ("PassThrough", "Active"):
        raise invalid("TracingConfig Reason: must be PassThrough or Active")
    if name == "DisplayName" and len(value) > _DISPLAY_NAME_MAX:
        raise invalid("DisplayName")
    if name.endswith("SampleRate") and not (value.isdecimal() and len(value) < 4 and int(value) <= _RATE_MAX):
        raise invalid(f"{name}: {value} value provided is not an integer between 0-100")
    return value


def _check_scope(actions: Any) -> None:
    """Raise unless a policy can speak of these actions. AWS takes no wildcards there."""
    for action in actions if isinstance(actions, list) else [actions]:
        service, _, name = str(action).partition(":")
        if service.lower() != "sns" or name.lower() not in _IN_POLICIES:
            raise invalid("Policy statement action out of service scope!")


def _checked_protection(members: Members) -> str:
    """The data protection policy of a request, as text."""
    text = str(members.get("DataProtectionPolicy", ""))
    if text:
        json_object("DataProtectionPolicy", text)
    return text


def _resource(error: SqsError | QueueNotFound) -> SqsError:
    """TagResource and its like have an error of their own for a topic that is not there."""
    if isinstance(error, SqsError) and error.kind is not NOT_FOUND:
        return error
    return SqsError(wire.RESOURCE_NOT_FOUND, "Resource does not exist")
