"""Every action of SQS: its name, its request's shape, and the function or coroutine that does it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from penstock.protocols.sqs import shapes
from penstock.protocols.sqs.context import Answer, Asked, RequestContext
from penstock.protocols.sqs.queues import QueueActions
from penstock.protocols.sqs.shapes import Shape


class Service(QueueActions):
    """All 23 actions. Each file adds its own to those of the one before: compiled classes have one base."""


class Run(Protocol):
    """An action at work."""

    def __call__(self, context: RequestContext, request: Any, /) -> Answer | Coroutine[Asked, Any, Answer]:
        """Begin."""
        ...


class Action:
    __slots__ = ("decode", "name", "request", "run")

    def __init__(self, name: str, request: type[Shape], run: Run) -> None:
        self.name = name
        self.request = request
        self.run = run
        self.decode: Callable[[bytes], Any] = msgspec.json.Decoder(request).decode
        """Reads its requests by JSON."""


REQUESTS: dict[str, type[Shape]] = {
    "AddPermission": shapes.AddPermissionRequest,
    "CancelMessageMoveTask": shapes.CancelMessageMoveTaskRequest,
    "ChangeMessageVisibility": shapes.ChangeMessageVisibilityRequest,
    "ChangeMessageVisibilityBatch": shapes.ChangeMessageVisibilityBatchRequest,
    "CreateQueue": shapes.CreateQueueRequest,
    "DeleteMessage": shapes.DeleteMessageRequest,
    "DeleteMessageBatch": shapes.DeleteMessageBatchRequest,
    "DeleteQueue": shapes.QueueRequest,
    "GetQueueAttributes": shapes.GetQueueAttributesRequest,
    "GetQueueUrl": shapes.GetQueueUrlRequest,
    "ListDeadLetterSourceQueues": shapes.ListDeadLetterSourceQueuesRequest,
    "ListMessageMoveTasks": shapes.ListMessageMoveTasksRequest,
    "ListQueueTags": shapes.QueueRequest,
    "ListQueues": shapes.ListQueuesRequest,
    "PurgeQueue": shapes.QueueRequest,
    "ReceiveMessage": shapes.ReceiveMessageRequest,
    "RemovePermission": shapes.RemovePermissionRequest,
    "SendMessage": shapes.SendMessageRequest,
    "SendMessageBatch": shapes.SendMessageBatchRequest,
    "SetQueueAttributes": shapes.SetQueueAttributesRequest,
    "StartMessageMoveTask": shapes.StartMessageMoveTaskRequest,
    "TagQueue": shapes.TagQueueRequest,
    "UntagQueue": shapes.UntagQueueRequest,
}

CHANGES = frozenset(
    {
        "AddPermission",
        "CancelMessageMoveTask",
        "CreateQueue",
        "DeleteQueue",
        "PurgeQueue",
        "RemovePermission",
        "SetQueueAttributes",
        "StartMessageMoveTask",
        "TagQueue",
        "UntagQueue",
    }
)
"""What the audit log tells: changes of queues, and none of a client's daily work."""


def actions_of(service: Service) -> dict[str, Action]:
    return {name: Action(name, request, getattr(service, name)) for name, request in REQUESTS.items()}
