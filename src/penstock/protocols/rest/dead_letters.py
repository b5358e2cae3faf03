"""Dead letters, with the reasons, and redrives, which send them back."""

from __future__ import annotations

from penstock.core.commands import (
    Browse,
    CancelRedrive,
    ListRedrives,
    RedriveTask,
    Seen,
    StartRedrive,
)
from penstock.core.errors import NotFound, TaskNotFound
from penstock.core.queues.config import dead_letter_name
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.contents import seen_message
from penstock.protocols.rest.messages import Messages
from penstock.protocols.rest.operations import Resource, operation
from penstock.protocols.rest.problems import invalid
from penstock.protocols.rest.shapes import (
    DeadLetters,
    DeadLettersQuery,
    NewRedrive,
    Redrive,
    RedriveList,
    RedrivesQuery,
)
from penstock.server.node import Services

_LOOKED_AT_A_TIME = 1_000


class DeadLetterQueues(Resource):
    """Messages that failed for good."""

    tag = "dead letters"

    def __init__(self, services: Services, messages: Messages) -> None:
        super().__init__(services)
        self._messages = messages

    @operation("GET", "/v1/queues/{queue}/dead-letters")
    async def list_dead_letters(self, caller: Caller, queue: str, query: DeadLettersQuery) -> DeadLetters:
        """List the messages of a queue that failed for good, each with every failed delivery and its error.

        They are in the queue's dead-letter queue, which needs the right to be read. A page may be shorter than `limit`
        although there are more: go on while `next` is given.
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
        seen: list[Seen] = await self.shard.call(
            Browse(queue=target, after=query.after, limit=query.limit, contains=contains)
        )
        page = self._messages.page(seen)
        found = [seen_message(self.broker, dead.id, one) for one in page]
        return DeadLetters(
            queue=target,
            messages=[
                message
                for message in found
                if (message.origin is not None and message.origin.queue == queue)
                and (query.error is None or any(query.error in failure.error for failure in message.failures))
            ],
            next=page[-1].sequence if len(page) < len(seen) or len(seen) == query.limit else None,
        )


class Redrives(Resource):
    """Redrives: messages on their way back."""

    tag = "dead letters"

    @operation("POST", "/v1/redrives", status=201)
    async def start_redrive(self, caller: Caller, body: NewRedrive) -> Redrive:
        """Send messages of a (dead-letter) queue back to where they came from, or elsewhere.

        All of them, or those that fit every condition that is given. One redrive of a queue at a time.
        """
        caller.need(body.queue, StartRedrive)
        if body.target is not None:
            caller.need(body.target, StartRedrive)
        if body.ids is not None and body.sequences is not None:
            raise invalid("give either ids or sequences")
        await self.shard.know(body.queue)
        self.queue(body.queue)
        sequences = body.sequences
        if body.ids is not None:
            sequences = await self._sequences_of(body.queue, body.ids)
        command = StartRedrive(
            queue=body.queue,
            target=body.target,
            sequences=sequences,
            contains=None if body.contains is None else body.contains.encode(),
            error=body.error,
            per_second=body.rate,
        )
        return _described(await self.shard.call(command))

    async def _sequences_of(self, queue: str, ids: list[str]) -> list[int]:
        """Where messages are, by their ids: a dead letter keeps the id that it had, so that one has to look."""
        wanted = set(ids)
        found: list[int] = []
        after = -1
        while wanted:
            seen: list[Seen] = await self.shard.call(Browse(queue=queue, after=after, limit=_LOOKED_AT_A_TIME))
            if not seen:
                raise NotFound(f"queue {queue!r} has no message {min(wanted)!r}")
            await self.shard.know(queue)
            queue_id = self.queue(queue).id
            for one in seen:
                message_id = seen_message(self.broker, queue_id, one).id
                if message_id in wanted:
                    wanted.discard(message_id)
                    found.append(one.sequence)
            after = seen[-1].sequence
        return found

    @operation("GET", "/v1/redrives")
    async def list_redrives(self, caller: Caller, query: RedrivesQuery) -> RedriveList:
        """List redrives, newest first: those of queues that the caller has a right on."""
        tasks: list[RedriveTask] = await self.shard.call(ListRedrives(queue=query.queue))
        return RedriveList(redrives=[_described(task) for task in tasks if caller.principal.may_see(task.queue)])

    @operation("GET", "/v1/redrives/{task}")
    async def describe_redrive(self, caller: Caller, task: str) -> Redrive:
        """Say how far a redrive is."""
        found = await self._task(task)
        caller.need(found.queue, Browse, StartRedrive)
        return _described(found)

    @operation("POST", "/v1/redrives/{task}/cancel")
    async def cancel_redrive(self, caller: Caller, task: str) -> Redrive:
        """Stop a redrive. What was moved stays moved."""
        found = await self._task(task)
        caller.need(found.queue, CancelRedrive)
        return _described(await self.shard.call(CancelRedrive(task=found.task)))

    async def _task(self, text: str) -> RedriveTask:
        tasks: list[RedriveTask] = await self.shard.call(ListRedrives())
        for task in tasks:
            if str(task.task) == text:
                return task
        raise TaskNotFound(f"there is no redrive {text[:50]!r}")


def _described(task: RedriveTask) -> Redrive:
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
    )
