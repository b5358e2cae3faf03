"""Sending: what is refused, what is a duplicate, where a message goes."""

from __future__ import annotations

import hashlib
from collections import Counter

from penstock.core import commands as c
from penstock.core import errors as e
from penstock.core.delivery.states import State
from penstock.core.queues.config import DEDUP_WINDOW_MS, DELAY_MS_MAX, PRIORITY_MAX, QueueConfig
from tests.simulation.model.ground import Ground
from tests.simulation.model.state import Channel, Copy, Message, Place, Queue
from tests.simulation.model.verdict import Outcome, demand


class Sending(Ground):
    """Rules of messages that come in."""

    def _send_faults(self, command: c.Send) -> list[type[Exception]]:
        queue = self.queues.get(command.queue)
        config = queue.config if queue else QueueConfig()
        faults: list[type[Exception]] = [] if queue or command.create else [e.QueueNotFound]
        if not 0 <= command.priority <= PRIORITY_MAX or (config.is_fifo and command.priority):
            faults.append(e.InvalidRequest)
        if command.delay_ms is not None and not 0 <= command.delay_ms <= DELAY_MS_MAX:
            faults.append(e.InvalidRequest)
        for beside in (command.attributes, command.groups, command.dedup_ids):
            if beside is not None and len(beside) != len(command.bodies):
                return [*faults, e.InvalidRequest]
        for index, body in enumerate(command.bodies):
            size = len(body) + len((command.attributes[index] if command.attributes else None) or b"")
            if size > config.message_bytes_max:
                faults.append(e.MessageTooLarge)
            if config.is_fifo and not (command.groups and command.groups[index]):
                faults.append(e.InvalidRequest)
            if config.is_fifo and not config.content_dedup and not (command.dedup_ids and command.dedup_ids[index]):
                faults.append(e.InvalidRequest)
        return faults

    def _accept_Send(self, command: c.Send, outcome: Outcome) -> None:
        faults = self._send_faults(command) or self._rate_faults([command])
        if not self._refused(outcome, faults):
            self._sent(command, outcome)

    def _rate_faults(self, sends: list[c.Send]) -> list[type[Exception]]:
        """Whether a queue, or a group of one, would get more messages in this second than it may."""
        counts: Counter[tuple[str, str | None]] = Counter()
        for send in sends:
            counts.update((send.queue, scope) for scope in self._rate_scopes(send))
        for (name, scope), count in counts.items():
            limit = self.queues[name].config.throughput_per_second
            if limit is not None and self._rate_used(self.queues[name], scope) + count > limit:
                return [e.Throttled]
        return []

    def _rate_scopes(self, send: c.Send) -> list[str | None]:
        """For each message of a send, what its queue's rate is counted by."""
        queue = self.queues.get(send.queue)
        if queue is None or queue.config.throughput_per_second is None:
            return []
        return [group if queue.config.throughput_scope == "group" else None for group in send.groups or []]

    def _rate_used(self, queue: Queue, scope: str | None) -> int:
        second, used = queue.rate.get(scope, (0, 0))
        return used if second == self.now_ms // 1_000 else 0

    def _count_rate(self, send: c.Send) -> None:
        for scope in self._rate_scopes(send):
            queue = self.queues[send.queue]
            queue.rate[scope] = (self.now_ms // 1_000, self._rate_used(queue, scope) + 1)

    def _sent(self, command: c.Send, sent: c.Sent) -> None:
        queue = self.queues.get(command.queue) or self._new_queue(command.queue, QueueConfig(), command.channels)
        demand(queue.queue_id in (None, sent.queue_id), f"the id of {queue.name} changed")
        queue.queue_id = sent.queue_id
        self._count_rate(command)
        due_ms = self._due_ms(queue, command)
        duplicates = []
        for index, body in enumerate(command.bodies):
            sequence = sent.sequence(index)
            original = self._original(queue, command, index, sequence)
            if original is not None:
                demand(sequence == original, f"a duplicate of {original} was answered with {sequence}")
                duplicates.append(index)
                continue
            message = Message(
                sequence=sequence,
                body=body,
                attributes=command.attributes[index] if command.attributes else None,
                group=command.groups[index] if command.groups else None,
                priority=command.priority,
                sent_ms=self.now_ms,
                due_ms=due_ms,
            )
            key = self._dedup_key(queue, command, index)
            if key is not None:
                queue.dedup[key] = (sequence, self.now_ms)
            self._enqueue(queue, message)
        demand(sent.duplicates == duplicates, f"duplicates were {sent.duplicates}, not {duplicates}")
        demand(sent.count == len(command.bodies), f"sent {sent.count} of {len(command.bodies)}")

    def _due_ms(self, queue: Queue, command: c.Send) -> int:
        """When a message comes due; 0 for at once."""
        if command.delay_ms is None and command.due_ms is not None:
            return command.due_ms if command.due_ms > self.now_ms else 0
        delay_ms = queue.config.delay_ms if command.delay_ms is None else command.delay_ms
        return self.now_ms + delay_ms if delay_ms else 0

    def _dedup_key(self, queue: Queue, command: c.Send, index: int) -> tuple[str | None, str] | None:
        dedup_id = command.dedup_ids[index] if command.dedup_ids else None
        if dedup_id is None and queue.config.is_fifo and queue.config.content_dedup:
            dedup_id = "sha256:" + hashlib.sha256(command.bodies[index]).hexdigest()
        if dedup_id is None:
            return None
        group = command.groups[index] if command.groups and queue.config.dedup_scope == "group" else None
        return (group, dedup_id)

    def _original(self, queue: Queue, command: c.Send, index: int, sequence: int) -> int | None:
        key = self._dedup_key(queue, command, index)
        known = queue.dedup.get(key) if key is not None else None
        if known is None:
            return None
        age_ms = self.now_ms - known[1]
        if age_ms == DEDUP_WINDOW_MS or self.went_back:
            return known[0] if sequence == known[0] else None
        return known[0] if age_ms < DEDUP_WINDOW_MS else None

    def _enqueue(self, queue: Queue, message: Message) -> None:
        expected = queue.next_sequence
        demand(expected in (None, message.sequence), f"{queue.name} gave out {message.sequence}, not {expected}")
        queue.next_sequence = message.sequence + 1
        queue.sent += 1
        queue.messages[message.sequence] = message
        queue.stored.add(message.sequence)
        for channel in queue.channels.values():
            if not queue.is_held(message.sequence):
                self._offer(channel, message)

    def _offer(self, channel: Channel, message: Message) -> None:
        if message.due_ms > self.now_ms:
            channel.copies[message.sequence] = Copy(message, State.DELAYED, Place.DUE, deadline_ms=message.due_ms)
        else:
            place = Place.DUE if message.due_ms else Place.FRESH
            channel.copies[message.sequence] = Copy(message, State.READY, place)
