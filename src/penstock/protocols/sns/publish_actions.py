"""Publish and PublishBatch: one send and one commit, however many are subscribed."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

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
from penstock.protocols.sqs.message_attributes import STORED_SENDER
from penstock.protocols.sqs.service import sequence_number
from penstock.protocols.sqs.shapes import AttributeValue

_TOKEN = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}\Z")
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
_SUBJECT = re.compile(r"[\x20-\x7e]{1,100}\Z")
MESSAGE_BYTES_MAX = 256 * 1024
_ENTRIES_MAX = 10


class PublishActions(ActionsBase):
    """How messages come to a topic."""

    async def Publish(self, caller: Caller, members: Members) -> Result:
        """Publish a message: one send, one commit, however many are subscribed."""
        arn = members.get("TopicArn") or members.get("TargetArn")
        if not isinstance(arn, str):
            raise invalid("TopicArn or TargetArn Reason: no value for required parameter")
        queue = self._queue(caller, arn, Send)
        config = await self._topics.config(queue)
        body, attributes, group, dedup_id, _ = self._message(caller, members, config)
        sent: Sent = await self._shard.call(_send(queue, [body], [attributes], [group], [dedup_id]))
        return self._published(sent, 0, config)

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
