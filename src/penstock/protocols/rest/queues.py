"""Queues, their channels and dead letters, and the whole server in numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from penstock.core.commands import (
    Browse,
    CancelRedrive,
    ChangeQueue,
    ChannelStats,
    CreateChannel,
    CreateQueue,
    DeleteChannel,
    DeleteQueue,
    DescribeQueue,
    Failure,
    ListQueues,
    ListRedrives,
    PauseChannel,
    PurgeChannel,
    PurgeQueue,
    QueueInfo,
    QueueStats,
    RedriveTask,
    Seen,
    StartRedrive,
    Stats,
)
from penstock.core.delivery.states import State
from penstock.core.errors import ChannelNotFound, MessageNotFound, QueueDamaged, QueueNotFound, TaskNotFound
from penstock.core.queues.config import SETTINGS, QueueConfig, dead_letter_name, kind_of, read_changes
from penstock.core.queues.origin import error_group, failures_of
from penstock.core.transfer.moves import is_wanted, origin_of
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.contents import milliseconds, seconds_of, seen_message
from penstock.protocols.rest.intervening import LOOKED_AT_MAX, browsed, first_of, sequences_of
from penstock.protocols.rest.masks import masks_of
from penstock.protocols.rest.messages import Messages
from penstock.protocols.rest.operations import Resource, operation
from penstock.protocols.rest.problems import invalid
from penstock.protocols.rest.shapes import (
    ChannelCounts,
    ChannelList,
    DeadLetters,
    DeadLettersQuery,
    ErrorGroup,
    ErrorGroups,
    ErrorGroupsQuery,
    NamedCounts,
    NewChannel,
    NewQueue,
    NewRedrive,
    Purged,
    QueueCounts,
    QueueCountsList,
    QueueDescription,
    QueueList,
    QueueSettings,
    QueuesQuery,
    Redrive,
    RedriveList,
    RedrivesQuery,
    ServerStats,
)
from penstock.server.auth import TO_SEE, check_labels, restrict
from penstock.server.node import Services
from penstock.server.shards import Shards
from penstock.server.tally import COUNTS, Tally

_QUEUES_PER_CALL = 1_000
_QUEUES_PER_CALL_MIN = 200
"""Who may see few queues has many looked at for one name."""


class Queues(Resource):
    """Queues."""

    tag = "queues"

    @operation("POST", "/v1/queues", status=201, is_change=True)
    async def create_queue(self, caller: Caller, body: NewQueue) -> QueueDescription:
        """Create a queue.

        If the queue exists with the same settings, this succeeds. With other settings the answer is 409.
        """
        caller.need(body.name, CreateQueue)
        changes = _permitted_changes(caller, body.settings, "settings.")
        config = QueueConfig().changed(changes | {"kind": kind_of(body.name, changes.get("kind"))})
        await self.shard.call(CreateQueue(name=body.name, config=config, channels=tuple(body.channels)))
        return await self._described(body.name)

    @operation("GET", "/v1/queues")
    async def list_queues(self, caller: Caller, query: QueuesQuery) -> QueueList:
        """List the names of queues, in order.

        Queues on which the caller has no right are left out.
        """
        page, following = await page_of_names(self.shard, query, caller.principal.may_see)
        return QueueList(queues=page, next=following)

    @operation("GET", "/v1/queues/{queue}", live_s=1)
    async def describe_queue(self, caller: Caller, queue: str) -> QueueDescription:
        """Describe a queue: its settings, and exact counts."""
        return await self._described(caller.need(queue, *TO_SEE))

    @operation("PATCH", "/v1/queues/{queue}", is_change=True)
    async def change_queue(self, caller: Caller, queue: str, body: QueueSettings) -> QueueDescription:
        """Change some settings of a queue. The others stay as they are."""
        caller.need(queue, ChangeQueue)
        changes = _permitted_changes(caller, body)
        await self.shard.call(ChangeQueue(name=queue, changes=changes))
        return await self._described(queue)

    @operation("DELETE", "/v1/queues/{queue}", is_change=True)
    async def delete_queue(self, caller: Caller, queue: str) -> None:
        """Delete a queue with its messages, channels and consumers."""
        await self.shard.call(DeleteQueue(name=caller.need(queue, DeleteQueue)))

    @operation("POST", "/v1/queues/{queue}/purge", is_change=True)
    async def purge_queue(self, caller: Caller, queue: str) -> Purged:
        """Delete all messages of a queue, also those in flight."""
        return Purged(purged=await self.shard.call(PurgeQueue(name=caller.need(queue, PurgeQueue))))

    async def _described(self, name: str) -> QueueDescription:
        info: QueueInfo = await self.shard.call(DescribeQueue(name=name))
        stats: Stats = await self.shard.call(QueueStats(name=name))
        return QueueDescription(
            name=name,
            settings=settings_of(info.config),
            created_at=info.created_ms / 1_000,
            changed_at=info.changed_ms / 1_000,
            stats=_counts_of(stats),
        )


class Channels(Resource):
    """Channels: each gets every message of its queue."""

    tag = "channels"

    @operation("POST", "/v1/queues/{queue}/channels", status=201, is_change=True)
    async def create_channel(self, caller: Caller, queue: str, body: NewChannel) -> ChannelCounts:
        """Create a channel. If it exists, this succeeds."""
        caller.need(queue, CreateChannel)
        start = body.start if isinstance(body.start, str) else milliseconds(body.start, "start")
        assert start is not None
        await self.shard.call(CreateChannel(queue=queue, channel=body.name, start=start))
        return await self._counts(queue, body.name)

    @operation("GET", "/v1/queues/{queue}/channels")
    async def list_channels(self, caller: Caller, queue: str) -> ChannelList:
        """List the channels of a queue, with exact counts."""
        stats: Stats = await self.shard.call(QueueStats(name=caller.need(queue, *TO_SEE)))
        return ChannelList(channels=[_channel_counts(channel) for channel in stats.channels.values()])

    @operation("GET", "/v1/queues/{queue}/channels/{channel}")
    async def describe_channel(self, caller: Caller, queue: str, channel: str) -> ChannelCounts:
        """Describe a channel, with exact counts."""
        return await self._counts(caller.need(queue, *TO_SEE), channel)

    @operation("DELETE", "/v1/queues/{queue}/channels/{channel}", is_change=True)
    async def delete_channel(self, caller: Caller, queue: str, channel: str) -> None:
        """Delete a channel, and the messages that only it still needed."""
        await self.shard.call(DeleteChannel(queue=caller.need(queue, DeleteChannel), channel=channel))

    @operation("POST", "/v1/queues/{queue}/channels/{channel}/pause", is_change=True)
    async def pause_channel(self, caller: Caller, queue: str, channel: str) -> ChannelCounts:
        """Stop delivering a channel's messages."""
        await self.shard.call(PauseChannel(queue=caller.need(queue, PauseChannel), channel=channel))
        return await self._counts(queue, channel)

    @operation("POST", "/v1/queues/{queue}/channels/{channel}/unpause", is_change=True)
    async def unpause_channel(self, caller: Caller, queue: str, channel: str) -> ChannelCounts:
        """Deliver a channel's messages again."""
        await self.shard.call(PauseChannel(queue=caller.need(queue, PauseChannel), channel=channel, paused=False))
        return await self._counts(queue, channel)

    @operation("POST", "/v1/queues/{queue}/channels/{channel}/purge", is_change=True)
    async def purge_channel(self, caller: Caller, queue: str, channel: str) -> Purged:
        """Delete the messages of a channel, also those in flight. Other channels keep theirs."""
        command = PurgeChannel(queue=caller.need(queue, PurgeChannel), channel=channel)
        return Purged(purged=await self.shard.call(command))

    async def _counts(self, queue: str, channel: str) -> ChannelCounts:
        stats: Stats = await self.shard.call(QueueStats(name=queue))
        found = stats.channels.get(channel)
        if found is None:
            raise ChannelNotFound(f"queue {queue!r} has no channel {channel!r}: create it first")
        return _channel_counts(found)


class Server(Resource):
    """The whole server."""

    tag = "server"

    def __init__(self, services: Services, version: str) -> None:
        super().__init__(services)
        self._version = version

    @operation("GET", "/v1/stats")
    async def server_stats(self, caller: Caller) -> ServerStats:
        """Count the whole server: totals over all queues that the caller may read."""
        tally = Tally()
        await tally.take(self.shard, caller.principal, local=False)
        counts = {name: tally.counts[name] for name in COUNTS if name in ServerStats.__struct_fields__}
        return ServerStats(version=self._version, queues=tally.queues, sessions=len(self.broker.sessions), **counts)

    @operation("GET", "/v1/stats/queues", live_s=3)
    async def queue_stats(self, caller: Caller, query: QueuesQuery) -> QueueCountsList:
        """Count each queue that the caller may read, in the order of their names, a page at a time."""
        names, following = await page_of_names(
            self.shard, query, lambda name: caller.principal.may(name, DescribeQueue)
        )
        found: list[NamedCounts] = []
        for name in names:
            with contextlib.suppress(QueueNotFound, QueueDamaged):
                found.append(NamedCounts(name=name, stats=_counts_of(await self.shard.call(QueueStats(name=name)))))
        return QueueCountsList(queues=found, next=following)


async def page_of_names(
    shard: Shards, query: QueuesQuery, may_see: Callable[[str], bool]
) -> tuple[list[str], str | None]:
    """Names of queues that the caller may know of, in order; and after which one to go on, if there are more.

    A queue that is there all the time is on one page, whatever comes and goes beside it.
    """
    found: list[str] = []
    after = query.after
    limit = min(max(query.limit + 1, _QUEUES_PER_CALL_MIN), _QUEUES_PER_CALL)
    while len(found) <= query.limit:
        names: list[str] = await shard.call(ListQueues(prefix=query.prefix, after=after, limit=limit))
        found += [name for name in names if may_see(name)]
        if len(names) < limit:
            break
        after = names[-1]
    page = found[: query.limit]
    return page, page[-1] if len(found) > len(page) else None


# -- settings ----------------------------------------------------------------------------------------------------------


def _permitted_changes(caller: Caller, settings: QueueSettings, prefix: str = "") -> dict[str, Any]:
    """The settings that are given, as the core names them. Where dead letters go is a matter of that queue as well.

    Labels are the server's.
    """
    given = {name: getattr(settings, name) for name in SETTINGS}
    changes = read_changes({name: value for name, value in given.items() if value is not UNSET}, prefix)
    check_labels(caller.principal, changes.get("labels"))
    if changes.get("dead_letter") is not None:
        caller.need(changes["dead_letter"], ChangeQueue)
    return changes


def settings_of(config: QueueConfig) -> QueueSettings:
    """All settings of a queue, as the API has them."""
    return QueueSettings(**{each.name: each.given(getattr(config, each.field)) for each in SETTINGS.values()})


# -- counts ------------------------------------------------------------------------------------------------------------


def _counts_of(stats: Stats) -> QueueCounts:
    return QueueCounts(
        messages=stats.messages,
        bytes=stats.bytes,
        delayed=stats.delayed,
        sent=stats.sent,
        quarantined=stats.quarantined,
        oldest_sent_at=seconds_of(stats.oldest_ms),
        end_offset=stats.next_sequence,
        channels=[_channel_counts(channel) for channel in stats.channels.values()],
        consumers=stats.consumers,
    )


def _channel_counts(channel: ChannelStats) -> ChannelCounts:
    return ChannelCounts(
        name=channel.name,
        ready=channel.ready,
        leased=channel.leased,
        delayed=channel.delayed,
        acked=channel.acked,
        failed=channel.failed,
        dead=channel.dead,
        paused=channel.paused,
        oldest_sent_at=seconds_of(channel.oldest_ms),
        waiting_receivers=channel.waiting_receivers,
    )


# -- dead letters ------------------------------------------------------------------------------------------------------

_STEP_COUNTS_FOR = 400
"""A step that found nothing has looked at some megabytes all the same."""
_GROUPED_AT_A_TIME = 100
_GROUPED_MAX = 20_000
"""Dead letters that one request looks at."""
_GROUPS_MAX = 200
_ERRORS_KNOWN_MAX = 1_000
"""Of so many errors it is remembered which group they are in."""
_SAMPLE_LENGTH_MAX = 4_000
"""Of a body; of base64 as well, and it stays base64 because it can be divided by 4."""


class DeadLetterQueues(Resource):
    """Messages that failed for good."""

    tag = "dead letters"

    def __init__(self, services: Services, messages: Messages) -> None:
        super().__init__(services)
        self._messages = messages

    @operation("GET", "/v1/queues/{queue}/dead-letters")
    async def list_dead_letters(self, caller: Caller, queue: str, query: DeadLettersQuery) -> DeadLetters:
        """List the dead letters of a queue, each with all its failed deliveries and their errors.

        They are in the queue's dead-letter queue, on which the caller needs the right `read`. A page may be shorter
        than `limit` although there are more messages: continue while `next` is given.
        """
        caller.need(queue, Browse)
        target = self.queue(queue).config.dead_letter or dead_letter_name(queue)
        caller.need(target, Browse)
        await self.shard.know(target)
        dead = self.broker.queues.get(target)
        if dead is None:
            self.broker.refuse_damaged(target)
            return DeadLetters(queue=target, messages=[], next=None)
        contains = None if query.contains is None else query.contains.encode()
        seen = await first_of(self, Browse(queue=target, after=query.after, limit=query.limit, contains=contains))
        page = self._messages.page(seen)
        found = [
            message
            for message in (seen_message(self.broker, dead.id, one) for one in page)
            if (message.origin is not None and message.origin.queue == queue)
            and (query.error is None or any(query.error in failure.error for failure in message.failures))
        ]
        return DeadLetters(
            queue=target,
            messages=await masks_of(self.services).hide(found),
            next=page[-1].sequence if len(page) < len(seen) or len(seen) == query.limit else None,
        )

    @operation("GET", "/v1/queues/{queue}/dead-letters/groups")
    async def group_dead_letters(self, caller: Caller, queue: str, query: ErrorGroupsQuery) -> ErrorGroups:
        """Group the dead letters of a queue by their last error, with `#` for numbers, ids and quoted text.

        One request looks at 20,000 messages of the dead-letter queue. Continue while `next` is given, and add up the
        counts.
        """
        caller.need(queue, Browse)
        target = self.queue(queue).config.dead_letter or dead_letter_name(queue)
        caller.need(target, Browse)
        await self.shard.know(target)
        dead = self.broker.queues.get(target)
        if dead is None:
            self.broker.refuse_damaged(target)
            return ErrorGroups(queue=target, groups=[], looked_at=0, next=None)
        groups: dict[str, ErrorGroup] = {}
        names: dict[str, str] = {}
        masks = masks_of(self.services)
        after, looked_at, following = query.after, 0, None
        await caller.room_for(self.shard, target, _GROUPED_AT_A_TIME, self.services.settings)
        while True:
            seen: list[Seen] = await self.shard.call(Browse(queue=target, after=after, limit=_GROUPED_AT_A_TIME))
            failed = [(one, last) for one in seen if (last := _last_failure(one, queue)) is not None]
            if len(names) >= _ERRORS_KNOWN_MAX:
                names.clear()
            names |= await masks.groups_of({last.error for _, last in failed} - names.keys())
            for one, last in failed:
                name = names[last.error]
                if name not in groups and len(groups) >= _GROUPS_MAX:
                    name = "other errors"
                failed_at = last.failed_ms / 1_000
                group = groups.get(name)
                if group is None:
                    (sample,) = await masks.hide([seen_message(self.broker, dead.id, one)])
                    sample.body = sample.body[:_SAMPLE_LENGTH_MAX]
                    groups[name] = ErrorGroup(group=name, count=1, first_at=failed_at, last_at=failed_at, sample=sample)
                else:
                    group.count += 1
                    group.first_at, group.last_at = min(group.first_at, failed_at), max(group.last_at, failed_at)
            looked_at += len(seen)
            if len(seen) < _GROUPED_AT_A_TIME:
                break
            after = seen[-1].sequence
            if looked_at >= _GROUPED_MAX:
                following = after
                break
        found = sorted(groups.values(), key=lambda group: (-group.count, group.group))
        return ErrorGroups(queue=target, groups=found, looked_at=looked_at, next=following)


def _last_failure(one: Seen, queue: str) -> Failure | None:
    """What a message failed of last, if that was in this queue."""
    origin = origin_of(one)
    failures = failures_of(origin, one.failures, one.sequence)
    return failures[-1] if failures and origin is not None and origin.queue == queue else None


class Redrives(Resource):
    """Redrives: messages on their way back."""

    tag = "dead letters"

    @operation("POST", "/v1/redrives", status=201, is_change=True)
    async def start_redrive(self, caller: Caller, body: NewRedrive) -> Redrive:
        """Move dead letters back to the queues that they came from, or to another queue.

        It moves all of them, or those that match every condition that is given. A queue can have one redrive at a time.
        """
        caller.need(body.queue, StartRedrive)
        if body.target is not None:
            caller.need(body.target, StartRedrive)
        if body.ids is not None and body.sequences is not None:
            raise invalid("give ids or sequences, not both")
        if body.target is not None and body.discard:
            raise invalid("give discard or target, not both")
        await self.shard.know(body.queue)
        self.queue(body.queue)
        if body.target is not None and not body.create:
            await self.shard.know(body.target, now=True)
            if body.target not in self.broker.queues:
                self.broker.refuse_damaged(body.target)
                raise QueueNotFound(f"there is no queue {body.target!r}: check the name, or create it with the redrive")
        sequences = body.sequences
        if body.ids is not None:
            found = await sequences_of(self, body.queue, body.ids)
            absent = [text for text in body.ids if text not in found]
            if absent:
                raise MessageNotFound(f"queue {body.queue!r} has no message {absent[0]!r}")
            sequences = sorted(found.values())
        command = StartRedrive(
            queue=body.queue,
            target=body.target,
            sequences=sequences,
            contains=None if body.contains is None else body.contains.encode(),
            error=body.error,
            per_second=body.rate,
            group=body.group,
            discard=body.discard,
            check_only=body.dry_run,
            until_ms=milliseconds(body.until, "until"),
        )
        restrict(caller.principal, command)
        if body.group is not None and masks_of(self.services):
            await self._unmask(command)
        found_task = await self._described(await self.shard.call(command))
        if body.dry_run:
            await self._count(command, found_task)
        return found_task

    async def _count(self, command: StartRedrive, redrive: Redrive) -> None:
        """How many messages a redrive would be about."""
        conditions = (command.contains, command.error, command.group, command.sequences, command.origins)
        if all(each is None for each in conditions):
            return
        selected = None if command.sequences is None else set(command.sequences)
        redrive.to_move = looked_at = 0
        before = min(command.sequences, default=0) - 1 if command.sequences is not None else -1
        async for seen in browsed(self, command.queue, before, states=(State.READY,), contains=command.contains):
            redrive.to_move += sum(
                (selected is None or one.sequence in selected)
                and is_wanted(one, command.error, command.group, command.origins)
                for one in seen
            )
            if selected is not None and redrive.to_move == len(selected):
                break
            looked_at += max(len(seen), _STEP_COUNTS_FOR)
            if looked_at >= LOOKED_AT_MAX:
                redrive.counted_all = False
                break

    async def _unmask(self, command: StartRedrive) -> None:
        """A group of errors that was shown with masks: which messages it is about."""
        masks, names, looked_at = masks_of(self.services), set(), 0
        sequences: list[int] = []
        async for seen in browsed(self, command.queue, -1, states=(State.READY,)):
            failures = {one.sequence: failures_of(origin_of(one), one.failures, one.sequence) for one in seen}
            errors = {sequence: each[-1].error for sequence, each in failures.items() if each}
            groups = await masks.groups_of(errors.values())
            for sequence, error in errors.items():
                if groups[error] == command.group:
                    names.add(error_group(error))
                    sequences.append(sequence)
            looked_at += max(len(seen), _STEP_COUNTS_FOR)
            if looked_at >= LOOKED_AT_MAX:
                break
        if len(names) == 1:
            command.group = names.pop()
        else:  # errors that differ only in what is hidden
            command.group = None
            command.sequences = sorted(set(sequences) & set(command.sequences or sequences))

    @operation("GET", "/v1/redrives", live_s=1)
    async def list_redrives(self, caller: Caller, query: RedrivesQuery) -> RedriveList:
        """List redrives, newest first: those of queues that the caller may read or administer."""
        tasks: list[RedriveTask] = await self.shard.call(ListRedrives(queue=query.queue))
        mine = [task for task in tasks if caller.principal.may(task.queue, Browse, StartRedrive)]
        return RedriveList(redrives=[await self._described(task) for task in mine])

    @operation("GET", "/v1/redrives/{task}")
    async def describe_redrive(self, caller: Caller, task: str) -> Redrive:
        """Show how far a redrive is."""
        found = await self._task(caller, task)
        caller.need(found.queue, Browse, StartRedrive)
        return await self._described(found)

    @operation("POST", "/v1/redrives/{task}/cancel", is_change=True)
    async def cancel_redrive(self, caller: Caller, task: str) -> Redrive:
        """Stop a redrive. Messages that were moved stay moved."""
        found = await self._task(caller, task)
        caller.need(found.queue, CancelRedrive)
        return await self._described(await self.shard.call(CancelRedrive(task=found.task)))

    async def _task(self, caller: Caller, text: str) -> RedriveTask:
        """A redrive, of a queue that the caller may know of."""
        tasks: list[RedriveTask] = await self.shard.call(ListRedrives())
        for task in tasks:
            if str(task.task) == text and caller.principal.may_see(task.queue):
                return task
        raise TaskNotFound(f"there is no redrive {text[:50]!r}")

    async def _described(self, task: RedriveTask) -> Redrive:
        return Redrive(
            task=task.task,
            queue=task.queue,
            target=task.target,
            status=task.status,  # type: ignore[arg-type]
            moved=task.moved,
            skipped=task.skipped,
            to_move=task.to_move,
            started_at=task.started_ms / 1_000,
            error=task.error,
            rate=task.per_second,
            group=None if task.match_group is None else await masks_of(self.services).text(task.match_group),
            discard=task.discard,
            selected=None if task.sequences is None else len(task.sequences),
        )
