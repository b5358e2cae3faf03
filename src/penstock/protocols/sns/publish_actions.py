"""Publish and PublishBatch: one send and one commit, however many are subscribed."""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from typing import Any, NamedTuple

import msgspec

from penstock.core.commands import Send, Sent
from penstock.core.queues.attributes import encode_attributes
from penstock.core.queues.config import QueueConfig
from penstock.protocols.sns import wire
from penstock.protocols.sns.requests import ActionsBase, Caller, Members, Result, text_of
from penstock.protocols.sns.topics import STRUCTURE, SUBJECT
from penstock.protocols.sns.wire import invalid
from penstock.protocols.sqs import message_attributes
from penstock.protocols.sqs.errors import SqsError
from penstock.protocols.sqs.message_attributes import STORED_SENDER, STORED_TRACE_HEADER
from penstock.protocols.sqs.service import sequence_number
from penstock.protocols.sqs.shapes import AttributeValue

_TOKEN = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}\Z")
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
_SUBJECT = re.compile(r"[\x20-\x7e]{1,100}\Z")
_PHONE = re.compile(r"\+?[0-9][0-9 ()./-]{0,30}\Z")
_KIND = re.compile(r"(String|Number|Binary)(\..+)?\Z")
_NOT_IN_NAMES = re.compile(r"[^\w.-]")
_NAME_LENGTH_MAX = 256
MESSAGE_BYTES_MAX = 256 * 1024
_ENTRIES_MAX = 10
_ATTRIBUTES_MAX = 100


class Draft(NamedTuple):
    """A message on its way in, checked."""

    body: bytes
    attributes: bytes | None
    group: str | None
    dedup_id: str | None
    size: int


class PublishActions(ActionsBase):
    """How messages come to a topic."""

    async def Publish(self, caller: Caller, members: Members) -> Result:
        """Publish a message: one send, one commit, however many are subscribed. A text message is counted."""
        if "PhoneNumber" in members and "TopicArn" not in members and "TargetArn" not in members:
            return self._count_text_message(members)
        arn, target = members.get("TopicArn"), members.get("TargetArn")
        if arn is None and isinstance(target, str) and ":endpoint/" in target:
            raise invalid("TargetArn Reason: No endpoint found for the target arn specified")
        arn = target if arn is None else arn
        if not isinstance(arn, str):
            raise invalid("TopicArn or TargetArn Reason: no value for required parameter")
        queue = self._queue(caller, arn, Send)
        config = await self._topics.config(queue)
        message = self._message(caller, members, config, "")
        if message.size > MESSAGE_BYTES_MAX:
            raise invalid("Message too long")
        return self._published(await self._shard.call(_send(queue, [message])), 0, config)

    def _count_text_message(self, members: Members) -> Result:
        """Nobody is sent a text message: it is counted."""
        number = str(members["PhoneNumber"])
        if not is_phone_number(number):
            raise invalid(f"PhoneNumber Reason: {number} is not valid to publish to")
        if not members.get("Message"):
            raise invalid("Empty message")
        self.deliveries.counts["sms", "not_sent"] += 1
        return {"MessageId": str(uuid.uuid4())}

    async def PublishBatch(self, caller: Caller, members: Members) -> Result:
        """Publish up to ten messages in one commit."""
        queue = self._queue(caller, text_of(members, "TopicArn"), Send)
        config = await self._topics.config(queue)
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
        messages = [
            self._message(caller, entry, config, f"publishBatchRequestEntries.{number}.member.")
            for number, entry in enumerate(entries, 1)
        ]
        if sum(message.size for message in messages) > MESSAGE_BYTES_MAX:
            raise SqsError(wire.BATCH_TOO_LONG, "The length of all the messages put together is more than the limit.")
        sent: Sent = await self._shard.call(_send(queue, messages))
        successful = [{"Id": entry_id, **self._published(sent, index, config)} for index, entry_id in enumerate(ids)]
        return {"Successful": successful, "Failed": []}

    def _published(self, sent: Sent, index: int, config: QueueConfig) -> dict[str, Any]:
        sequence = sent.sequence(index)
        found = {"MessageId": self._shard.identity.message_id(sent.queue_id, sequence)}
        return found | ({"SequenceNumber": sequence_number(sequence)} if config.is_fifo else {})

    def _message(self, caller: Caller, members: Members, config: QueueConfig, where: str) -> Draft:
        """A message as the core takes it, or what is wrong with it. `where` is its place in the request."""
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
            _check_attributes(own, where)
            size += message_attributes.size(own)
            stored |= message_attributes.to_stored(own, None)
        if caller.principal.access_key:
            stored[STORED_SENDER] = caller.principal.name
        if caller.trace_header and not message_attributes.not_allowed_in(caller.trace_header):
            stored[STORED_TRACE_HEADER] = caller.trace_header
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
        return Draft(body, encode_attributes(stored) if stored else None, group, dedup_id, size)


def is_phone_number(text: str) -> bool:
    """Whether a text message could go there.

    >>> is_phone_number("+15555550100"), is_phone_number("+1a234")
    (True, False)
    """
    return _PHONE.match(text) is not None


def _send(queue: str, messages: list[Draft]) -> Send:
    bodies, attributes, groups, dedup_ids, _ = zip(*messages, strict=True)
    return Send(
        queue=queue,
        bodies=list(bodies),
        attributes=list(attributes) if any(attributes) else None,
        groups=list(groups) if any(groups) else None,
        dedup_ids=list(dedup_ids) if any(dedup_ids) else None,
        create=False,
    )


def _check_attributes(attributes: dict[str, AttributeValue], where: str) -> None:
    """Raise what is wrong with the attributes of a message. The rules are those of SQS, the words are not."""
    for name, value in attributes.items():
        kind, text = value.data_type, value.string_value
        if kind is None:
            raise SqsError(
                wire.VALIDATION_ERROR,
                f"1 validation error detected: Value null at '{where}messageAttributes.{name}.member.dataType' failed "
                "to satisfy constraint: Member must not be null",
            )
        found = _NOT_IN_NAMES.search(name)
        if len(name.encode()) > _NAME_LENGTH_MAX:
            reason = "Length of message attribute name must be less than 256 bytes."
        elif found is not None:
            reason = (
                f"Invalid non-alphanumeric character '#x{ord(found.group()):X}' was found in the message attribute "
                "name. Can only include alphanumeric characters, hyphens, underscores, or dots."
            )
        elif name.startswith("."):
            reason = "Invalid message attribute name starting with character '.' was found."
        elif name.endswith("."):
            reason = "Invalid message attribute name ending with character '.' was found."
        elif ".." in name:
            reason = "Message attribute name can not have successive '.' character."
        elif not _KIND.match(kind):
            reason = (
                f"The message attribute '{name}' has an invalid message attribute type, the set of supported type "
                "prefixes is Binary, Number, and String."
            )
        else:
            kind = kind.partition(".")[0]
            field = "Binary" if kind == "Binary" else "String"
            if (value.binary_value if field == "String" else text) is not None:
                reason = f"The message attribute '{name}' with type '{kind}' must use field '{field}'."
            elif not (text if field == "String" else value.binary_value):
                reason = (
                    f"The message attribute '{name}' must contain non-empty message attribute value for message "
                    f"attribute type '{kind}'."
                )
            elif kind == "Number" and not message_attributes.is_number(text or ""):
                reason = f"Could not cast message attribute '{name}' value to number."
            else:
                continue
        raise SqsError(wire.PARAMETER_VALUE_INVALID, reason)
    try:
        message_attributes.check(attributes, _ATTRIBUTES_MAX)
    except SqsError as error:
        raise SqsError(wire.PARAMETER_VALUE_INVALID, error.message) from None


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
