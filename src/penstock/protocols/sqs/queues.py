"""Queues: creating, finding, describing, configuring, purging and deleting them; their tags.

Message move tasks: messages of a dead-letter queue go back to where they came from, or elsewhere (a redrive).

AddPermission and RemovePermission: statements of a queue's Policy. They are kept and shown, as the policy is.

Who may do what here is said in the server's settings, by access key.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

import msgspec

from penstock.core.commands import (
    CancelRedrive,
    ChangeQueue,
    CommitWork,
    CreateQueue,
    DeleteQueue,
    DescribeQueue,
    LastMark,
    ListQueues,
    ListRedrives,
    PurgeQueue,
    QueueInfo,
    QueueStats,
    RedriveTask,
    StartRedrive,
)
from penstock.core.delivery.receipt import message_id, sequence_in
from penstock.core.errors import QueueExists, TaskNotFound
from penstock.core.queues.config import Kind, QueueConfig, kind_of
from penstock.protocols.sqs.attributes import (
    AttributeReader,
    check_names,
    facts_of,
    settings_of,
)
from penstock.protocols.sqs.context import RequestContext, ask
from penstock.protocols.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    INVALID_PARAMETER_VALUE,
    OVER_LIMIT,
    PURGE_QUEUE_IN_PROGRESS,
    QUEUE_DELETED_RECENTLY,
    QUEUE_NAME_EXISTS,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_OPERATION,
    SqsError,
    invalid_value,
    missing,
    no_such_queue,
)
from penstock.protocols.sqs.limits import MOVES_LISTED, MOVES_LISTED_MAX, MOVES_PER_SECOND_MAX, PAGE_MAX, TAGS_MAX
from penstock.protocols.sqs.messages import MessageActions
from penstock.protocols.sqs.names import check_queue_name
from penstock.protocols.sqs.service import default_config
from penstock.protocols.sqs.shapes import (
    AddPermissionRequest,
    CancelMessageMoveTaskRequest,
    CancelMessageMoveTaskResult,
    CreateQueueRequest,
    GetQueueAttributesRequest,
    GetQueueUrlRequest,
    ListDeadLetterSourceQueuesRequest,
    ListDeadLetterSourceQueuesResult,
    ListMessageMoveTasksRequest,
    ListMessageMoveTasksResult,
    ListQueuesRequest,
    ListQueuesResult,
    ListQueueTagsResult,
    MoveHandle,
    MoveTask,
    QueueAttributesResult,
    QueueRequest,
    QueueUrlResult,
    RemovePermissionRequest,
    SetQueueAttributesRequest,
    StartMessageMoveTaskRequest,
    StartMessageMoveTaskResult,
    TagQueueRequest,
    UntagQueueRequest,
)
from penstock.server.auth import TO_SEE, restrict

_TAG_KEY_LENGTH_MAX = 128
_TAG_VALUE_LENGTH_MAX = 256
_DELETED = "penstock.sqs.deleted."
_PURGED = "penstock.sqs.purged."
"""Marks, of when a queue of that name was deleted, and when the queue with that id was purged: with limits `strict`."""


class QueueActions(MessageActions):
    """The actions on queues, beside those on messages."""

    # -- there or not --

    async def CreateQueue(self, context: RequestContext, request: CreateQueueRequest) -> QueueUrlResult:
        """Create a queue; one that is there with the same attributes is fine."""
        if not request.queue_name:
            raise missing("QueueName")
        attributes = dict(request.attributes or {})
        said = self._kind(attributes)
        check_queue_name(request.queue_name, said, self.limits)
        name = context.scope.prefix + request.queue_name
        if not context.scope.has(name) and self.scopes.are_many:
            raise invalid_value(request.queue_name, "QueueName", "It is the name of a queue of another account.")
        targets = self._targets(context, attributes)
        self.check_rights(context, name, CreateQueue)
        tags = request.creation_tags or {}
        check_tags(request.queue_name, tags)
        await self.learn(name, *targets, now=True)
        existing = self.config(name)
        if existing is None:
            if self.limits.recreate_pause_ms:
                await self._check_deleted(name)
            before = default_config(kind_of(name, said))
            config = before.changed(self._reader(name, before.is_fifo).read(attributes, before) | {"tags": tags})
            try:
                await ask(CreateQueue(name=name, config=config))
            except QueueExists:  # somebody was faster
                await self.learn(name, now=True)
                existing = self.config(name)
        if existing is not None:
            self._check_same(name, existing, said, attributes)
        return QueueUrlResult(context.url(name))

    def _kind(self, attributes: dict[str, str]) -> Kind | None:
        """What kind of queue is asked for, if any is. AWS knows no standard queue that says so."""
        is_fifo = attributes.get("FifoQueue")
        if is_fifo is None:
            return None
        is_fifo = is_fifo.lower()
        if is_fifo == "true":
            return "fifo"
        if not self.limits.any_queue_name or is_fifo != "false":
            raise SqsError(INVALID_ATTRIBUTE_NAME, "Unknown Attribute FifoQueue.")
        del attributes["FifoQueue"]
        return "standard"

    def _targets(self, context: RequestContext, attributes: dict[str, str]) -> list[str]:
        """The queue that attributes name as the one for dead letters, if they do; it takes a right on that one, too."""
        try:
            policy = msgspec.json.decode(attributes.get("RedrivePolicy") or "null")
        except (msgspec.DecodeError, RecursionError):
            return []
        arn = policy.get("deadLetterTargetArn") if isinstance(policy, dict) else None
        target = self.arns.name(arn) if isinstance(arn, str) else None
        if target is None:
            return []
        self.check_rights(context, target, ChangeQueue)
        return [target]

    def _reader(self, name: str, is_fifo: bool) -> AttributeReader:
        return AttributeReader(name, is_fifo, self.limits, self.arns, self.config)

    async def _check_deleted(self, name: str) -> None:
        deleted_ms: int = await ask(LastMark(name=_DELETED + name))
        if self.shard.now_ms() < deleted_ms + self.limits.recreate_pause_ms:
            raise SqsError(
                QUEUE_DELETED_RECENTLY,
                "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
            )

    def _check_same(self, name: str, existing: QueueConfig, said: Kind | None, attributes: dict[str, str]) -> None:
        """A queue of that name is there: it must be what was asked for, as far as anything was."""
        has_ending = kind_of(name) == "fifo"
        if existing.kind != (said or (existing.kind if has_ending else "standard")):
            raise _exists("FifoQueue")
        changed = existing.changed(self._reader(name, existing.is_fifo).read(attributes, existing))
        now, wished = settings_of(name, existing, self.arns), settings_of(name, changed, self.arns)
        for attribute in attributes:
            if now.get(attribute) != wished.get(attribute):
                raise _exists(attribute)

    async def DeleteQueue(self, context: RequestContext, request: QueueRequest) -> None:
        name = self.queue_name(context, request.queue_url, DeleteQueue)
        if self.limits.recreate_pause_ms:
            await ask(DescribeQueue(name=name))
            await ask(CommitWork(acks=[], sends=[], mark=(_DELETED + name, self.shard.now_ms())))
        await ask(DeleteQueue(name=name))

    async def PurgeQueue(self, context: RequestContext, request: QueueRequest) -> None:
        name = self.queue_name(context, request.queue_url, PurgeQueue)
        if self.limits.purge_pause_ms:
            await self._check_purged(name)
        await ask(PurgeQueue(name=name))

    async def _check_purged(self, name: str) -> None:
        """Raise if the queue was purged a short while ago; else remember that it is now."""
        info: QueueInfo = await ask(DescribeQueue(name=name))
        mark, now_ms = f"{_PURGED}{info.queue_id}", self.shard.now_ms()
        purged_ms: int = await ask(LastMark(name=mark))
        if now_ms < purged_ms + self.limits.purge_pause_ms:
            raise SqsError(
                PURGE_QUEUE_IN_PROGRESS,
                f"Only one PurgeQueue operation on {self.arns.outside(name)[2]} is allowed every 60 seconds.",
            )
        await ask(CommitWork(acks=[], sends=[], mark=(mark, now_ms)))

    # -- finding --

    async def GetQueueUrl(self, context: RequestContext, request: GetQueueUrlRequest) -> QueueUrlResult:
        if not request.queue_name:
            raise missing("QueueName")
        owner = request.queue_owner_aws_account_id or context.scope.account
        name = self.arns.inside(owner, context.scope.region, request.queue_name)
        self.check_rights(context, name, *TO_SEE)
        if self.auto_create:
            check_queue_name(request.queue_name, kind_of(name), self.limits)
        await self.existing(name)
        return QueueUrlResult(context.url(name))

    async def ListQueues(self, context: RequestContext, request: ListQueuesRequest) -> ListQueuesResult:
        """Queues by name, in pages if asked for."""
        prefix = context.scope.prefix + (request.queue_name_prefix or "")
        limit, after = page_asked(request.max_results, request.next_token)
        names = await self.names(context, limit + 1, prefix=prefix, after=after)
        page, token = page_of(names, request.max_results, request.next_token)
        return ListQueuesResult([context.url(name) for name in page], token)

    async def ListDeadLetterSourceQueues(
        self, context: RequestContext, request: ListDeadLetterSourceQueuesRequest
    ) -> ListDeadLetterSourceQueuesResult:
        """The queues whose dead letters come to this one."""
        target = self.queue_name(context, request.queue_url, DescribeQueue, ChangeQueue)
        await self.existing(target)
        limit, after = page_asked(request.max_results, request.next_token)
        sources = await self.names(context, limit + 1, after=after, dead_letters_to=target)
        page, token = page_of(sources, request.max_results, request.next_token)
        return ListDeadLetterSourceQueuesResult([context.url(name) for name in page], token)

    # -- attributes --

    async def GetQueueAttributes(
        self, context: RequestContext, request: GetQueueAttributesRequest
    ) -> QueueAttributesResult:
        """What a queue is told to do, and how much is in it."""
        name = self.queue_name(context, request.queue_url, *TO_SEE)
        await self.existing(name)
        names = request.attribute_names or []
        check_names(names)
        info = await ask(DescribeQueue(name=name))
        found = settings_of(name, info.config, self.arns)
        found |= facts_of(info, await ask(QueueStats(name=name)), self.arns)
        if "All" in names:
            return QueueAttributesResult(found)
        return QueueAttributesResult({each: found[each] for each in dict.fromkeys(names) if each in found})

    async def SetQueueAttributes(self, context: RequestContext, request: SetQueueAttributesRequest) -> None:
        """Change what a queue is told to do."""
        targets = self._targets(context, request.attributes or {})
        name = self.queue_name(context, request.queue_url, ChangeQueue)
        attributes = request.attributes
        if not attributes:
            await self.existing(name)
            raise missing("Attribute.Name")
        await self.learn(*targets, now=True)
        await self.change(name, lambda config: self._reader(name, config.is_fifo).read(attributes, config))

    # -- tags --

    async def TagQueue(self, context: RequestContext, request: TagQueueRequest) -> None:
        name = self.queue_name(context, request.queue_url, ChangeQueue)
        tags = request.tags
        if not tags:
            await self.existing(name)
            raise missing("Tags")
        await self.change(name, lambda config: {"tags": check_tags(self.arns.outside(name)[2], config.tags | tags)})

    async def UntagQueue(self, context: RequestContext, request: UntagQueueRequest) -> None:
        """Take tags away; those that are not there are fine."""
        name = self.queue_name(context, request.queue_url, ChangeQueue)
        keys = request.tag_keys
        if not keys:
            await self.existing(name)
            raise missing("TagKeys")
        await self.change(
            name, lambda config: {"tags": {key: value for key, value in config.tags.items() if key not in keys}}
        )

    async def ListQueueTags(self, context: RequestContext, request: QueueRequest) -> ListQueueTagsResult:
        name = self.queue_name(context, request.queue_url, DescribeQueue, ChangeQueue)
        await self.learn(name, now=True)
        config = self.config(name)
        if config is None:
            raise no_such_queue()
        return ListQueueTagsResult(dict(config.tags))

    async def StartMessageMoveTask(
        self, context: RequestContext, request: StartMessageMoveTaskRequest
    ) -> StartMessageMoveTaskResult:
        """Start to move the messages of a dead-letter queue."""
        source = await self._queue_of(context, request.source_arn, "SourceArn")
        target = None
        if request.destination_arn is not None:
            try:
                target = await self._queue_of(context, request.destination_arn, "DestinationArn")
            finally:
                context.tell_redrive(source, self.arns.name(request.destination_arn) or request.destination_arn)
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
        command = StartRedrive(queue=source, target=target, per_second=rate)
        restrict(context.principal, command)
        task: RedriveTask = await ask(command)
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

    async def AddPermission(self, context: RequestContext, request: AddPermissionRequest) -> None:
        """Add a statement to the policy."""
        name = self.queue_name(context, request.queue_url, ChangeQueue)
        await self.existing(name)
        _check(request)
        await self.change(name, lambda config: _added(config, request, self.arns.of(name)))

    async def RemovePermission(self, context: RequestContext, request: RemovePermissionRequest) -> None:
        """Take a statement out of the policy. The policy goes with its last one."""
        name = self.queue_name(context, request.queue_url, ChangeQueue)
        label = request.label
        if not label:
            await self.existing(name)
            raise missing("Label")
        await self.change(name, lambda config: _removed(config, label, self.arns.of(name)))


def _exists(attribute: str) -> SqsError:
    return SqsError(
        QUEUE_NAME_EXISTS,
        f"A queue already exists with the same name and a different value for attribute {attribute}",
    )


def check_tags(name: str, tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > TAGS_MAX:
        raise SqsError(INVALID_PARAMETER_VALUE, f"Too many tags added for queue {name}.")
    for key, value in tags.items():
        if not 1 <= len(key) <= _TAG_KEY_LENGTH_MAX:
            raise invalid_value(key, "TagKey", f"Must be 1 to {_TAG_KEY_LENGTH_MAX} in length.")
        if len(value) > _TAG_VALUE_LENGTH_MAX:
            raise invalid_value(value, "TagValue", f"Must be at most {_TAG_VALUE_LENGTH_MAX} in length.")
    return tags


def page_asked(page_max: int | None, token: str | None) -> tuple[int, str]:
    """How many names one answer holds, and after which name they come; or what is wrong with what was asked."""
    if page_max is not None and not 1 <= page_max <= PAGE_MAX:
        raise invalid_value(page_max, "MaxResults", f"MaxResults must be an integer between 1 and {PAGE_MAX}.")
    if token and page_max is None:
        raise missing("MaxResults")
    return page_max or PAGE_MAX, _open_token(token) if token else ""


def page_of(names: list[str], page_max: int | None, token: str | None) -> tuple[list[str], str | None]:
    """Names in order, as many as one answer holds, and the token for the next ones if pages were asked for.

    >>> page, token = page_of(["c", "a", "b"], 2, None)
    >>> page, page_of(["c", "a", "b"], 2, token)
    (['a', 'b'], (['c'], None))
    """
    limit, after = page_asked(page_max, token)
    later = sorted(name for name in names if name > after)
    page = later[:limit]
    return page, _token(page[-1]) if page_max is not None and len(later) > limit else None


def _token(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _open_token(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError):
        raise invalid_value(token, "NextToken", "Invalid or expired next token.") from None


_TASKS = 0xFE << 56
"""Stands for the queue where the id of a task is made: no queue has this number."""
_STATUS = {"running": "RUNNING", "done": "COMPLETED", "cancelled": "CANCELLED", "failed": "FAILED"}


def _open_handle(text: str) -> MoveHandle:
    try:
        return msgspec.json.decode(base64.b64decode(text.encode(), validate=True), type=MoveHandle)
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
        raise SqsError(INVALID_PARAMETER_VALUE, "Value for parameter TaskHandle is invalid.") from None


_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
_ACCOUNT = re.compile(r"\d{12}\Z", re.ASCII)
_POLICY = "sqs.Policy"
_ACTIONS_MAX = 7
_STATEMENTS_MAX = 20

SHAREABLE = frozenset(
    {
        "*",
        "SendMessage",
        "ReceiveMessage",
        "DeleteMessage",
        "ChangeMessageVisibility",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "PurgeQueue",
    }
)
"""The actions that a permission may name."""


def _added(config: QueueConfig, request: AddPermissionRequest, arn: str) -> dict[str, Any]:
    policy = _policy(config.labels.get(_POLICY), arn)
    statements = policy["Statement"]
    if any(statement.get("Sid") == request.label for statement in statements):
        raise invalid_value(request.label, "Label", "Already exists.")
    if len(statements) >= _STATEMENTS_MAX:
        raise SqsError(OVER_LIMIT, f"{_STATEMENTS_MAX} statements are as many as a policy may have.")
    statements.append(_statement(request, arn))
    return {"labels": config.labels | {_POLICY: msgspec.json.encode(policy).decode()}}


def _removed(config: QueueConfig, label: str, arn: str) -> dict[str, Any]:
    policy = _policy(config.labels.get(_POLICY), arn)
    kept = [statement for statement in policy["Statement"] if statement.get("Sid") != label]
    if len(kept) == len(policy["Statement"]):
        raise invalid_value(label, "Label", "can't find label.")
    labels = {key: value for key, value in config.labels.items() if key != _POLICY}
    if kept:
        labels[_POLICY] = msgspec.json.encode(policy | {"Statement": kept}).decode()
    return {"labels": labels}


def _check(request: AddPermissionRequest) -> None:
    if not request.label:
        raise missing("Label")
    if not _LABEL.match(request.label):
        raise invalid_value(
            request.label,
            "Label",
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length.",
        )
    if not request.aws_account_ids:
        raise missing("AWSAccountIds")
    if not request.actions:
        raise missing("Actions")
    for account in request.aws_account_ids:
        if not _ACCOUNT.match(account):
            raise invalid_value(account, "PrincipalId", "Unable to verify.")
    for action in request.actions:
        if action not in SHAREABLE:
            raise invalid_value(f"SQS:{action}", "ActionName", "Only the queue owner is allowed to invoke this action.")
    if len(request.actions) > _ACTIONS_MAX:
        raise SqsError(OVER_LIMIT, f"{len(request.actions)} Actions were found, maximum allowed is {_ACTIONS_MAX}.")


def _policy(stored: str | None, arn: str) -> dict[str, Any]:
    """The policy as it is, with a list of statements; a new one if there is none."""
    if stored is None:
        return {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy", "Statement": []}
    policy: dict[str, Any] = msgspec.json.decode(stored)
    statements = policy.get("Statement", [])
    listed = statements if isinstance(statements, list) else [statements]
    return policy | {"Statement": [statement for statement in listed if isinstance(statement, dict)]}


def _statement(request: AddPermissionRequest, arn: str) -> dict[str, Any]:
    accounts = [f"arn:aws:iam::{account}:root" for account in request.aws_account_ids or ()]
    actions = [f"SQS:{action}" for action in request.actions or ()]
    return {
        "Sid": request.label,
        "Effect": "Allow",
        "Principal": {"AWS": _one_or_many(accounts)},
        "Action": _one_or_many(actions),
        "Resource": arn,
    }


def _one_or_many(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values
