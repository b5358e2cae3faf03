"""Queues: creating, finding, describing, configuring, purging and deleting them; their tags."""

from __future__ import annotations

import base64
import binascii

import msgspec

from penstock.core.commands import (
    ChangeQueue,
    CommitWork,
    CreateQueue,
    DeleteQueue,
    DescribeQueue,
    LastMark,
    PurgeQueue,
    QueueInfo,
    QueueStats,
)
from penstock.core.errors import QueueExists
from penstock.core.queues.config import Kind, QueueConfig, kind_of
from penstock.protocols.sqs.attributes import (
    AttributeReader,
    check_names,
    facts_of,
    settings_of,
)
from penstock.protocols.sqs.batches import BatchActions
from penstock.protocols.sqs.context import RequestContext, ask
from penstock.protocols.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    INVALID_PARAMETER_VALUE,
    PURGE_QUEUE_IN_PROGRESS,
    QUEUE_DELETED_RECENTLY,
    QUEUE_NAME_EXISTS,
    SqsError,
    invalid_value,
    missing,
    no_such_queue,
)
from penstock.protocols.sqs.limits import PAGE_MAX, TAGS_MAX
from penstock.protocols.sqs.names import check_queue_name
from penstock.protocols.sqs.service import default_config
from penstock.protocols.sqs.shapes import (
    CreateQueueRequest,
    GetQueueAttributesRequest,
    GetQueueUrlRequest,
    ListDeadLetterSourceQueuesRequest,
    ListDeadLetterSourceQueuesResult,
    ListQueuesRequest,
    ListQueuesResult,
    ListQueueTagsResult,
    QueueAttributesResult,
    QueueRequest,
    QueueUrlResult,
    SetQueueAttributesRequest,
    TagQueueRequest,
    UntagQueueRequest,
)
from penstock.server.auth import TO_SEE

_TAG_KEY_LENGTH_MAX = 128
_TAG_VALUE_LENGTH_MAX = 256
_DELETED = "penstock.sqs.deleted."
_PURGED = "penstock.sqs.purged."
"""Marks, of when a queue of that name was deleted, and when the queue with that id was purged: with limits `strict`."""


class QueueActions(BatchActions):
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
        """Delete a queue with its messages."""
        name = self.queue_name(context, request.queue_url, DeleteQueue)
        if self.limits.recreate_pause_ms:
            await ask(DescribeQueue(name=name))
            await ask(CommitWork(acks=[], sends=[], mark=(_DELETED + name, self.shard.now_ms())))
        await ask(DeleteQueue(name=name))

    async def PurgeQueue(self, context: RequestContext, request: QueueRequest) -> None:
        """Delete a queue's messages."""
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
        """The URL of a queue by its name."""
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
        """Add tags, or change them."""
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


def _exists(attribute: str) -> SqsError:
    return SqsError(
        QUEUE_NAME_EXISTS,
        f"A queue already exists with the same name and a different value for attribute {attribute}",
    )


def check_tags(name: str, tags: dict[str, str]) -> dict[str, str]:
    """A queue's tags, or what is wrong with them."""
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
