"""What goes over the wire: requests and results of all actions, named as AWS names them, in both protocols.

Field names follow by rule from ours (`queue_url` is `QueueUrl`); the few that do not are in `_IRREGULAR`. Every field
of a request may be absent here: an action says itself what it needs, so that the caller gets SQS's own error.
"""

from __future__ import annotations

import msgspec

_IRREGULAR = {
    "aws_account_ids": "AWSAccountIds",
    "queue_owner_aws_account_id": "QueueOwnerAWSAccountId",
    "md5_of_body": "MD5OfBody",
    "md5_of_message_body": "MD5OfMessageBody",
    "md5_of_message_attributes": "MD5OfMessageAttributes",
    "md5_of_message_system_attributes": "MD5OfMessageSystemAttributes",
    "creation_tags": "tags",
    "source_queue_urls": "queueUrls",
}


def wire_name(field: str) -> str:
    """A field's name on the wire.

    >>> wire_name("max_number_of_messages"), wire_name("md5_of_body")
    ('MaxNumberOfMessages', 'MD5OfBody')
    """
    return _IRREGULAR.get(field) or "".join(word.capitalize() for word in field.split("_"))


class Shape(msgspec.Struct, rename=wire_name, omit_defaults=True, gc=False):
    """Base of everything here."""


# -- queues ------------------------------------------------------------------------------------------------------------


class CreateQueueRequest(Shape):
    queue_name: str | None = None
    attributes: dict[str, str] | None = None
    creation_tags: dict[str, str] | None = None


class QueueUrlResult(Shape):
    """CreateQueue and GetQueueUrl answer with this."""

    queue_url: str


class QueueRequest(Shape):
    """Actions that need nothing but a queue: DeleteQueue, PurgeQueue, ListQueueTags."""

    queue_url: str | None = None


class GetQueueUrlRequest(Shape):
    queue_name: str | None = None
    queue_owner_aws_account_id: str | None = None


class ListQueuesRequest(Shape):
    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: int | None = None


class ListQueuesResult(Shape):
    queue_urls: list[str] = []
    next_token: str | None = None


class GetQueueAttributesRequest(Shape):
    queue_url: str | None = None
    attribute_names: list[str] | None = None


class QueueAttributesResult(Shape):
    """GetQueueAttributes."""

    attributes: dict[str, str] = {}


class SetQueueAttributesRequest(Shape):
    queue_url: str | None = None
    attributes: dict[str, str] | None = None


class ListDeadLetterSourceQueuesRequest(Shape):
    queue_url: str | None = None
    next_token: str | None = None
    max_results: int | None = None


class ListDeadLetterSourceQueuesResult(Shape):
    source_queue_urls: list[str]
    next_token: str | None = None


class TagQueueRequest(Shape):
    queue_url: str | None = None
    tags: dict[str, str] | None = None


class UntagQueueRequest(Shape):
    queue_url: str | None = None
    tag_keys: list[str] | None = None


class ListQueueTagsResult(Shape):
    tags: dict[str, str] = {}


class AddPermissionRequest(Shape):
    queue_url: str | None = None
    label: str | None = None
    aws_account_ids: list[str] | None = None
    actions: list[str] | None = None


class RemovePermissionRequest(Shape):
    queue_url: str | None = None
    label: str | None = None


# -- messages ----------------------------------------------------------------------------------------------------------


class AttributeValue(Shape):
    """One message attribute. In JSON a binary value is base64 text; here it is bytes."""

    data_type: str | None = None
    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None


class SendMessageRequest(Shape):
    queue_url: str | None = None
    message_body: str | None = None
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] | None = None
    message_system_attributes: dict[str, AttributeValue] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageResult(Shape):
    md5_of_message_body: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    message_id: str | None = None
    sequence_number: str | None = None


class SendMessageBatchRequestEntry(Shape):
    id: str | None = None
    message_body: str | None = None
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] | None = None
    message_system_attributes: dict[str, AttributeValue] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageBatchRequest(Shape):
    queue_url: str | None = None
    entries: list[SendMessageBatchRequestEntry] | None = None


class SendMessageBatchResultEntry(Shape):
    """A message of a batch that was sent."""

    id: str
    message_id: str
    md5_of_message_body: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    sequence_number: str | None = None


class BatchResultErrorEntry(Shape):
    """An entry of a batch that failed."""

    id: str
    sender_fault: bool
    code: str
    message: str | None = None


class SendMessageBatchResult(Shape):
    successful: list[SendMessageBatchResultEntry] = []
    failed: list[BatchResultErrorEntry] = []


class ReceiveMessageRequest(Shape):
    queue_url: str | None = None
    attribute_names: list[str] | None = None
    message_system_attribute_names: list[str] | None = None
    message_attribute_names: list[str] | None = None
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class Message(Shape):
    """A message as a receiver gets it."""

    message_id: str
    receipt_handle: str
    md5_of_body: str
    body: str
    attributes: dict[str, str] | None = None
    md5_of_message_attributes: str | None = None
    message_attributes: dict[str, AttributeValue] | None = None


class ReceiveMessageResult(Shape):
    messages: list[Message] = []


class DeleteMessageRequest(Shape):
    queue_url: str | None = None
    receipt_handle: str | None = None


class ChangeMessageVisibilityRequest(Shape):
    queue_url: str | None = None
    receipt_handle: str | None = None
    visibility_timeout: int | None = None


class DeleteMessageBatchRequestEntry(Shape):
    id: str | None = None
    receipt_handle: str | None = None


class DeleteMessageBatchRequest(Shape):
    queue_url: str | None = None
    entries: list[DeleteMessageBatchRequestEntry] | None = None


class ChangeMessageVisibilityBatchRequestEntry(Shape):
    id: str | None = None
    receipt_handle: str | None = None
    visibility_timeout: int | None = None


class ChangeMessageVisibilityBatchRequest(Shape):
    queue_url: str | None = None
    entries: list[ChangeMessageVisibilityBatchRequestEntry] | None = None


class SettledEntry(Shape):
    """An entry of DeleteMessageBatch or ChangeMessageVisibilityBatch that went well."""

    id: str


class SettledResult(Shape):
    """DeleteMessageBatch and ChangeMessageVisibilityBatch."""

    successful: list[SettledEntry] = []
    failed: list[BatchResultErrorEntry] = []


# -- moves -------------------------------------------------------------------------------------------------------------


class StartMessageMoveTaskRequest(Shape):
    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class StartMessageMoveTaskResult(Shape):
    task_handle: str


class CancelMessageMoveTaskRequest(Shape):
    task_handle: str | None = None


class CancelMessageMoveTaskResult(Shape):
    approximate_number_of_messages_moved: int


class ListMessageMoveTasksRequest(Shape):
    source_arn: str | None = None
    max_results: int | None = None


class MoveTask(Shape):
    """One message move task."""

    status: str
    source_arn: str
    approximate_number_of_messages_moved: int
    started_timestamp: int
    task_handle: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    approximate_number_of_messages_to_move: int | None = None
    failure_reason: str | None = None


class ListMessageMoveTasksResult(Shape):
    results: list[MoveTask] = []


class MoveHandle(msgspec.Struct):
    """What a move task's handle says, before it is encoded."""

    taskId: str
    sourceArn: str
