"""Single messages by their ids: their whole life, and what an operator does to them.

An id says its queue and its sequence number. A message that was moved keeps its id: in its dead-letter queue, and where
a redrive brought it back, it is found by looking, as far as `LOOKED_AT_MAX` messages.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec

from penstock.core.commands import (
    MAIN,
    Browse,
    Changed,
    DeleteMessages,
    FindOffsets,
    Life,
    LookUp,
    NameQueue,
    Offsets,
    RescheduleMessages,
    Seen,
)
from penstock.core.delivery.receipt import absent, gone, no_message_id, open_message_id, sequence_in
from penstock.core.delivery.states import State
from penstock.core.errors import AccessDenied, MessageNotFound
from penstock.core.queues.config import dead_letter_name
from penstock.core.queues.origin import Origin
from penstock.core.queues.partition import PARTITION_SHIFT, sent_after
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.contents import life_of, milliseconds
from penstock.protocols.rest.masks import masks_of
from penstock.protocols.rest.operations import Resource, operation
from penstock.protocols.rest.problems import invalid
from penstock.protocols.rest.shapes import (
    SEQUENCE_MAX,
    ChangedMessages,
    MessageLife,
    NamedMessages,
    NamedMessagesIn,
    NewSchedule,
)

_LOOKED_AT_A_TIME = 200
_BYTES_AT_A_TIME = 4 * 1024 * 1024
_CHANGED_AT_A_TIME = 500
LOOKED_AT_MAX = 100_000
"""Messages that one request looks at to find ids."""


async def browsed(
    resource: Resource,
    queue: str,
    after: int,
    *,
    channel: str = MAIN,
    states: tuple[State, ...] = (State.READY, State.LEASED, State.DELAYED),
    contains: bytes | None = None,
) -> AsyncIterator[list[Seen]]:
    """A queue's messages after a number, in order: so many at a time, and so many bytes, however few of them fit."""
    while True:
        offsets: Offsets = await resource.shard.call(
            FindOffsets(queue=queue, after=after + 1, bytes_max=_BYTES_AT_A_TIME)
        )
        command = Browse(
            queue=queue,
            channel=channel,
            after=after,
            limit=_LOOKED_AT_A_TIME,
            states=states,
            contains=contains,
            end=offsets.cut,
        )
        seen: list[Seen] = await resource.shard.call(command)
        yield seen
        after = seen[-1].sequence if len(seen) == _LOOKED_AT_A_TIME else max(after, offsets.cut - 1)
        if after + 1 >= offsets.end:
            if offsets.partition + 1 >= offsets.partitions:
                return
            after = ((offsets.partition + 1) << PARTITION_SHIFT) - 1


async def first_of(resource: Resource, command: Browse) -> list[Seen]:
    """What a browse finds. What contains something is found in small steps, so that others get their turn."""
    if command.contains is None:
        seen: list[Seen] = await resource.shard.call(command)
        return seen
    found: list[Seen] = []
    async for some in browsed(
        resource,
        command.queue,
        command.after,
        channel=command.channel,
        states=command.states,
        contains=command.contains,
    ):
        found += some
        if len(found) >= command.limit:
            break
    return found[: command.limit]


async def sequences_of(resource: Resource, queue: str, ids: list[str]) -> dict[str, int]:
    """Where messages are in a queue, by their ids. What is not there is missing.

    The id of a message that was sent to the queue says it. One that was moved there has kept the id from before.
    """
    await resource.shard.know(queue)
    queue_id, realm = resource.queue(queue).id, resource.broker.meta.realm
    found: dict[str, int] = {}
    wanted: set[str] = set()
    for text in ids:
        opened = open_message_id(realm, text)
        if opened is not None and opened[0] == queue_id:
            found[text] = opened[1]
        else:
            wanted.add(text)
    return found | await _by_looking(resource, queue, wanted)


async def came_back(resource: Resource, queue: str, ids: list[str], channel: str = MAIN) -> dict[str, int]:
    """Where messages of a queue are now that a redrive brought back, by their ids. What is not found is missing."""
    queue_id, realm = resource.queue(queue).id, resource.broker.meta.realm
    numbers = [sequence_in(text, realm, queue_id) for text in ids]
    after = min((sent_after(number) for number in numbers if number is not None), default=-1)
    return await _by_looking(resource, queue, set(ids), channel, after)


async def _by_looking(
    resource: Resource, queue: str, wanted: set[str], channel: str = MAIN, after: int = -1
) -> dict[str, int]:
    """Where messages are that were moved to a queue, by the ids that they kept."""
    found: dict[str, int] = {}
    looked_at = 0
    if wanted:
        async for seen in browsed(resource, queue, after, channel=channel):
            for one in seen:
                data = one.chunk.origin(one.index)
                if data is not None and (text := Origin.decode(data).id) in wanted:
                    found[text] = one.sequence
            looked_at += len(seen)
            if len(found) == len(wanted) or looked_at >= LOOKED_AT_MAX:
                break
    return found


class SingleMessages(Resource):
    """Messages by their ids."""

    tag = "messages"

    @operation("GET", "/v1/messages/{message}")
    async def find_message(self, caller: Caller, message: str) -> MessageLife:
        """Find a message by its id alone, and show its whole life: in its queue, or among its dead letters."""
        opened = open_message_id(self.broker.meta.realm, message)
        if opened is None:
            raise invalid(no_message_id(message))
        queue_id, sequence = opened
        name: str | None = await self.shard.call(NameQueue(queue_id=queue_id))
        if name is None:
            raise MessageNotFound(f"there is no message {message!r}: its queue is gone, or never existed")
        if not caller.principal.may_see(name):  # nor may it be told its name
            raise AccessDenied(f"{caller.principal.name!r} has no right on the queue of this message")
        caller.need(name, LookUp)
        await self.shard.know(name)
        life = await self._life(name, sequence)
        if life is None or life.is_done:
            target = self.queue(name).config.dead_letter or dead_letter_name(name)
            await self.shard.know(target)
            for place in (target, name):  # a redrive brings it back, with a new number
                if place in self.broker.queues and caller.principal.may(place, LookUp):
                    places = await came_back(self, place, [message])
                    if message in places:
                        life = await self._life(place, places[message]) or life
                        break
        if life is None:
            raise MessageNotFound(gone(message, name, sequence))
        (shown,) = await masks_of(self.services).hide([life_of(self.broker, life)])
        return shown

    @operation("GET", "/v1/queues/{queue}/messages/{message}", live_s=1)
    async def describe_message(self, caller: Caller, queue: str, message: str) -> MessageLife:
        """Show a message's whole life: its state in each channel, every failure, who holds it, when it is due.

        Name it by its id or by its sequence number.
        """
        caller.need(queue, LookUp)
        sequence = await self._sequence(queue, message)
        life = await self._life(queue, sequence)
        if (life is None or life.is_done) and not _is_number(message):
            again = await came_back(self, queue, [message])
            if message in again:
                life = await self._life(queue, again[message]) or life
        if life is None:
            raise MessageNotFound(absent(message, queue))
        (shown,) = await masks_of(self.services).hide([life_of(self.broker, life)])
        return shown

    @operation("DELETE", "/v1/queues/{queue}/messages/{message}", is_change=True)
    async def delete_message(self, caller: Caller, queue: str, message: str) -> ChangedMessages:
        """Delete a message in every channel, even if somebody holds it."""
        caller.need(queue, DeleteMessages)
        sequence = await self._sequence(queue, message)
        ids = {} if _is_number(message) else {message: sequence}
        changed = await self._changed(caller, DeleteMessages(queue=queue, sequences=[sequence]), ids)
        if changed.missing:
            raise MessageNotFound(absent(message, queue))
        return changed

    @operation("POST", "/v1/queues/{queue}/messages/delete", is_change=True)
    async def delete_messages(self, caller: Caller, queue: str, body: NamedMessages) -> ChangedMessages:
        """Delete messages by id or sequence number, in one channel or in all, even if somebody holds them."""
        caller.need(queue, DeleteMessages)
        sequences, ids = await self._sequences(queue, body)
        command = DeleteMessages(queue=queue, sequences=sequences, channel=body.channel)
        return await self._changed(caller, command, ids, body.ids or [])

    @operation("POST", "/v1/queues/{queue}/messages/release", is_change=True)
    async def release_named_messages(self, caller: Caller, queue: str, body: NamedMessagesIn) -> ChangedMessages:
        """Make messages ready now. Delays end, and so do leases, which counts as a failed delivery."""
        caller.need(queue, RescheduleMessages)
        sequences, ids = await self._sequences(queue, body)
        error = f"released by {caller.principal.name}"
        command = RescheduleMessages(queue=queue, sequences=sequences, channel=body.channel, error=error)
        return await self._changed(caller, command, ids, body.ids or [])

    @operation("POST", "/v1/queues/{queue}/messages/reschedule", is_change=True)
    async def reschedule_messages(self, caller: Caller, queue: str, body: NewSchedule) -> ChangedMessages:
        """Make messages due at another time. Leases end first, which counts as a failed delivery."""
        caller.need(queue, RescheduleMessages)
        if (body.due is None) == (body.delay is None):
            raise invalid("give due or delay, not both")
        due_ms, delay_ms = milliseconds(body.due, "due") or 0, milliseconds(body.delay, "delay")
        sequences, ids = await self._sequences(queue, body)
        error = f"rescheduled by {caller.principal.name}"
        command = RescheduleMessages(
            queue=queue, sequences=sequences, channel=body.channel, due_ms=due_ms, error=error, delay_ms=delay_ms
        )
        return await self._changed(caller, command, ids, body.ids or [])

    async def _life(self, queue: str, sequence: int) -> Life | None:
        if sequence > SEQUENCE_MAX:
            return None
        found: list[Life] = await self.shard.call(LookUp(queue=queue, sequences=[sequence]))
        return found[0] if found else None

    async def _changed(
        self,
        caller: Caller,
        command: DeleteMessages | RescheduleMessages,
        places: dict[str, int],
        ids: Sequence[str] = (),
    ) -> ChangedMessages:
        """Change messages. What is done under the number in its id is looked for: a redrive may have brought it."""
        missing: list[str | int] = [text for text in ids if text not in places]
        numbers = itertools.count()
        count, done = await self._change(caller, command, command.sequences, numbers)
        again: dict[str, int] = {}
        if texts := [text for text, sequence in places.items() if sequence in done]:
            again = await came_back(self, command.queue, texts, command.channel or MAIN)
        if again:
            done.difference_update(places[text] for text in again)
            more, still_done = await self._change(caller, command, sorted(again.values()), numbers)
            count += more
            done |= still_done
        return ChangedMessages(changed=count, missing=[*missing, *sorted(done)])

    async def _change(
        self,
        caller: Caller,
        command: DeleteMessages | RescheduleMessages,
        sequences: list[int],
        numbers: Iterator[int],
    ) -> tuple[int, set[int]]:
        """Change messages, so many at a time that others get their turn: how many there were, and which were done."""
        count, done = 0, set[int]()
        for start in range(0, len(sequences), _CHANGED_AT_A_TIME):
            part = msgspec.structs.replace(command, sequences=sequences[start : start + _CHANGED_AT_A_TIME])
            changed: Changed = await self.shard.call(caller.named(part, next(numbers)))
            count += changed.count
            done.update(changed.missing)
        return count, done

    async def _sequences(self, queue: str, named: NamedMessagesIn | NamedMessages) -> tuple[list[int], dict[str, int]]:
        """The sequence numbers of messages, and of which id each is, if ids are given."""
        if (named.ids is None) == (named.sequences is None):
            raise invalid("give ids or sequences, not both")
        if named.sequences is not None:
            return named.sequences, {}
        assert named.ids is not None
        found = await sequences_of(self, queue, named.ids)
        return sorted(found.values()), found

    async def _sequence(self, queue: str, message: str) -> int:
        if _is_number(message):
            return int(message)
        if open_message_id(0, message) is None:
            raise invalid(no_message_id(message))
        sequence = (await sequences_of(self, queue, [message])).get(message)
        if sequence is None or sequence > SEQUENCE_MAX:
            raise MessageNotFound(absent(message, queue))
        return sequence


def _is_number(message: str) -> bool:
    return message.isascii() and message.isdigit() and len(message) < 20
