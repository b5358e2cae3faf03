"""Message move tasks: messages of a dead-letter queue go back to where they came from, or elsewhere (a redrive)."""

from __future__ import annotations

import base64
import binascii

import msgspec

from penstock.core.commands import CancelRedrive, ListQueues, ListRedrives, RedriveTask, StartRedrive
from penstock.core.delivery.receipt import message_id, sequence_in
from penstock.core.errors import TaskNotFound
from penstock.protocols.sqs.context import RequestContext, ask
from penstock.protocols.sqs.errors import (
    INVALID_PARAMETER_VALUE,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_OPERATION,
    SqsError,
    invalid_value,
    missing,
)
from penstock.protocols.sqs.limits import MOVES_LISTED, MOVES_LISTED_MAX, MOVES_PER_SECOND_MAX
from penstock.protocols.sqs.queues import QueueActions
from penstock.protocols.sqs.shapes import (
    CancelMessageMoveTaskRequest,
    CancelMessageMoveTaskResult,
    ListMessageMoveTasksRequest,
    ListMessageMoveTasksResult,
    MoveHandle,
    MoveTask,
    StartMessageMoveTaskRequest,
    StartMessageMoveTaskResult,
)

_TASKS = 0xFE << 56
"""Stands for the queue where the id of a task is made: no queue has this number."""
_STATUS = {"running": "RUNNING", "done": "COMPLETED", "cancelled": "CANCELLED", "failed": "FAILED"}


class MoveActions(QueueActions):
    """The actions on message move tasks."""

    async def StartMessageMoveTask(
        self, context: RequestContext, request: StartMessageMoveTaskRequest
    ) -> StartMessageMoveTaskResult:
        """Start to move the messages of a dead-letter queue."""
        source = await self._queue_of(context, request.source_arn, "SourceArn")
        target = None
        if request.destination_arn is not None:
            target = await self._queue_of(context, request.destination_arn, "DestinationArn")
        rate = request.max_number_of_messages_per_second
        if rate is not None and not 1 <= rate <= MOVES_PER_SECOND_MAX:
            raise invalid_value(
                rate, "MaxNumberOfMessagesPerSecond", f"Must be between 1 and {MOVES_PER_SECOND_MAX}, if provided."
            )
        await self._check_route(source, target)
        tasks: list[RedriveTask] = await ask(ListRedrives(queue=source))
        if any(task.status == "running" for task in tasks):
            raise SqsError(
                INVALID_PARAMETER_VALUE,
                "There is already a task running. Only one active task is allowed for a source queue arn at a given "
                "time.",
            )
        task: RedriveTask = await ask(StartRedrive(queue=source, target=target, per_second=rate))
        return StartMessageMoveTaskResult(self._handle(task))

    async def _check_route(self, source: str, target: str | None) -> None:
        if not await ask(ListQueues(dead_letters_to=source, limit=1)):
            raise SqsError(INVALID_PARAMETER_VALUE, "Source queue must be configured as a Dead Letter Queue.")
        if target is None:
            return
        if target == source:
            raise SqsError(INVALID_PARAMETER_VALUE, "Source queue and destination queue must not be the same.")
        source_config, target_config = self.config(source), self.config(target)
        if source_config and target_config and source_config.kind != target_config.kind:
            raise SqsError(UNSUPPORTED_OPERATION, "Source and destination queues must be of the same type.")

    async def CancelMessageMoveTask(
        self, context: RequestContext, request: CancelMessageMoveTaskRequest
    ) -> CancelMessageMoveTaskResult:
        """Stop to move messages; what was moved stays where it is."""
        if not request.task_handle:
            raise missing("TaskHandle")
        handle = _open_handle(request.task_handle)
        number = self._number(handle.taskId)
        source = await self._queue_of(context, handle.sourceArn, "SourceArn")
        tasks: list[RedriveTask] = await ask(ListRedrives(queue=source))
        task = next((task for task in tasks if task.task == number), None)
        if task is None:
            raise SqsError(RESOURCE_NOT_FOUND, "Task does not exist.")
        if task.status != "running":
            raise SqsError(INVALID_PARAMETER_VALUE, "Only active tasks can be cancelled.")
        try:
            cancelled: RedriveTask = await ask(CancelRedrive(task=number))
        except TaskNotFound:
            raise SqsError(RESOURCE_NOT_FOUND, "Task does not exist.") from None
        return CancelMessageMoveTaskResult(cancelled.moved)

    async def ListMessageMoveTasks(
        self, context: RequestContext, request: ListMessageMoveTasksRequest
    ) -> ListMessageMoveTasksResult:
        """The latest tasks of a queue, newest first."""
        source = await self._queue_of(context, request.source_arn, "SourceArn")
        limit = MOVES_LISTED if request.max_results is None else request.max_results
        if not 1 <= limit <= MOVES_LISTED_MAX:
            raise invalid_value(limit, "MaxResults", f"Must be between 1 and {MOVES_LISTED_MAX}, if provided.")
        tasks: list[RedriveTask] = await ask(ListRedrives(queue=source))
        return ListMessageMoveTasksResult([self._described(task) for task in tasks[:limit]])

    async def _queue_of(self, context: RequestContext, arn: str | None, parameter: str) -> str:
        if not arn:
            raise missing(parameter)
        name = self.arns.name(arn)
        if name is None:
            raise invalid_value(arn, parameter, "It is not the ARN of a queue.")
        self.check_rights(context, name, StartRedrive)
        await self.learn(name, now=True)
        if self.config(name) is None:
            raise SqsError(
                RESOURCE_NOT_FOUND, f"The resource that you specified for the {parameter} parameter doesn't exist."
            )
        return name

    def _number(self, task_id: str) -> int:
        """The number of a task; -1 if there can be none. Earlier handles have it as it is."""
        if task_id.isascii() and task_id.isdigit() and len(task_id) < 19:
            return int(task_id)
        number = sequence_in(task_id, self.shard.identity.meta.realm, _TASKS)
        return -1 if number is None else number

    def _described(self, task: RedriveTask) -> MoveTask:
        return MoveTask(
            status=_STATUS[task.status],
            source_arn=self.arns.of(task.queue),
            approximate_number_of_messages_moved=task.moved,
            started_timestamp=task.started_ms,
            task_handle=self._handle(task) if task.status == "running" else None,
            destination_arn=None if task.target is None else self.arns.of(task.target),
            max_number_of_messages_per_second=task.per_second,
            approximate_number_of_messages_to_move=task.to_move,
            failure_reason=task.error or None,
        )

    def _handle(self, task: RedriveTask) -> str:
        task_id = message_id(self.shard.identity.meta.realm, _TASKS, task.task)
        handle = MoveHandle(task_id, self.arns.of(task.queue))
        return base64.b64encode(msgspec.json.encode(handle)).decode()


def _open_handle(text: str) -> MoveHandle:
    try:
        return msgspec.json.decode(base64.b64decode(text.encode(), validate=True), type=MoveHandle)
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
        raise SqsError(INVALID_PARAMETER_VALUE, "Value for parameter TaskHandle is invalid.") from None
