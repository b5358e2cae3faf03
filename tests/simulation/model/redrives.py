"""Messages that move from queue to queue: redrives, and arrivals that no reply names."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import msgspec

from penstock.core import commands as c
from penstock.core import errors as e
from penstock.core.delivery.states import State
from penstock.core.queues.origin import error_group
from tests.simulation.model.receiving import Receiving
from tests.simulation.model.sending import Sending
from tests.simulation.model.state import Copy, Message, Origin, Queue, Redrive
from tests.simulation.model.verdict import Outcome, demand

LOOKED_AT = 100
"""Among so many messages, a broker looks for one that failed elsewhere."""


class Redrives(Sending, Receiving):
    """Rules of messages that move."""

    def _accept_StartRedrive(self, command: c.StartRedrive, outcome: Outcome) -> None:
        is_running = any(each.queue == command.queue for each in self.redrives.values())
        source = self.queues.get(command.queue)
        wrong = self._is_wrong(command, source)
        main = source.channels.get(c.MAIN) if source else None
        ready = {s for s, copy in main.copies.items() if copy.state is State.READY} if main else set()
        has_dead_letters = any(source.messages[s].origin for s in sorted(ready)[:LOOKED_AT]) if source else False
        is_elsewhere = command.discard or command.target is not None
        may = [e.InvalidRequest] if is_running or not (is_elsewhere or has_dead_letters) else []
        must = self._missing(command.queue) or ([e.InvalidRequest] if wrong else [])
        if self._refused(outcome, must, may):
            return
        queue = self.queues[command.queue]
        allowed = set()
        for sequence, message in queue.messages.items():
            wanted = command.sequences is None or sequence in command.sequences
            wanted &= command.contains is None or command.contains in message.body
            failures = message.origin.failures if message.origin else []
            wanted &= command.error is None or any(command.error in failure.error for failure in failures)
            wanted &= command.origins is None or self._fits(message, command.origins)
            if wanted and (command.discard or self._redrive_target(command.target, message) is not None):
                allowed.add(sequence)
        if command.check_only:
            demand((outcome.task, outcome.status) == (0, "dry_run"), f"{outcome} should have started nothing")
            return
        due = allowed & ready
        if not is_elsewhere:
            due = {s for s in due if self._redrive_target(None, queue.messages[s]) in self.queues.keys() - {queue.name}}
        if command.group is not None:
            due = {s for s in due if self._last_error_is(queue, s, command.group)}
        self.redrives[outcome.task] = Redrive(
            command.queue, command.target, due, allowed, command.discard, command.group
        )

    def _is_wrong(self, command: c.StartRedrive, source: Queue | None) -> bool:
        """Whether it cannot be done, whatever is in the queue."""
        if command.target is None or source is None:
            return False
        makes_fifo = command.target.endswith(".fifo") and command.target not in self.queues
        return command.discard or command.target == command.queue or (makes_fifo and not source.config.is_fifo)

    def _fits(self, message: Message, patterns: list[str]) -> bool:
        return message.origin is not None and any(fnmatchcase(message.origin.queue, each) for each in patterns)

    def _may_go(self, queue: Queue, sequence: int, redrive: Redrive) -> bool:
        group = redrive.group
        return sequence in redrive.allowed and (group is None or self._last_error_is(queue, sequence, group))

    def _last_error_is(self, queue: Queue, sequence: int, group: str) -> bool:
        origin = queue.messages[sequence].origin
        copy = queue.channels[c.MAIN].copies[sequence]
        failures = (origin.failures if origin else []) + copy.history
        return bool(failures) and error_group(failures[-1].error) == group

    def _redrive_target(self, target: str | None, message: Message) -> str | None:
        return target or (message.origin.queue if message.origin else None)

    def _accept_CancelRedrive(self, command: c.CancelRedrive, outcome: Outcome) -> None:
        if not self._refused(outcome, [], [e.TaskNotFound]):
            self.redrives.pop(command.task, None)

    def _accept_ListRedrives(self, command: c.ListRedrives, outcome: Outcome) -> None:
        self._refused(outcome, [])
        for task in outcome:
            known = self.redrives.get(task.task)
            if known is None or task.status == "running":
                continue
            source = self.queues.get(known.queue)
            left = [sequence for sequence in known.due if source and sequence in source.channels[c.MAIN].copies]
            demand(task.status != "done" or not left, f"{task} is done, but did not move {left}")
            del self.redrives[task.task]

    def expecting(self) -> list[str]:
        """The queues whose log has to be read, because messages may have arrived that no reply named."""
        names = {name for name, queue in self.queues.items() if queue.incoming}
        for redrive in self.redrives.values():
            source = self.queues.get(redrive.queue)
            for sequence in redrive.allowed if source and not redrive.discard else ():
                assert source is not None
                if sequence in source.messages:
                    names.add(self._redrive_target(redrive.target, source.messages[sequence]) or "")
        return sorted(name for name in names if name in self.queues)

    def missing_targets(self) -> list[str]:
        """Queues that are not there, and would be made by a redrive to them."""
        names = set()
        for redrive in self.redrives.values():
            source = None if redrive.discard else self.queues.get(redrive.queue)
            messages = [source.messages.get(sequence) for sequence in redrive.allowed] if source else []
            names |= {self._redrive_target(redrive.target, message) for message in messages if message}
        return sorted(name for name in names if name is not None and name not in self.queues)

    def discarding(self) -> list[str]:
        """Queues whose dead letters are being deleted, without a reply that names them."""
        return [one.queue for one in self.redrives.values() if one.discard and self._has_main(one.queue)]

    def _has_main(self, name: str) -> bool:
        return name in self.queues and c.MAIN in self.queues[name].channels

    def kept(self, name: str, seen: list[c.Seen]) -> None:
        """What a queue still shows, from which messages are being deleted."""
        source, left = self.queues[name], {one.sequence for one in seen}
        gone = [copy for copy in source.channels[c.MAIN].ordered() if copy.message.sequence not in left]
        redrives = [one for one in self.redrives.values() if one.discard and one.queue == name]
        for copy in gone:
            sequence, is_held = copy.message.sequence, copy.state is State.LEASED
            if not is_held and any(self._may_go(source, sequence, one) for one in redrives):
                self._redriven(source, copy)
                self.deleted += 1
            else:  # it may have been retention by size, which has its own rules
                because = "somebody held it" if is_held else "nobody asked for that"
                demand(source.config.retention_bytes is not None, f"{name}: {sequence} was deleted, and {because}")

    def appeared(self, info: c.QueueInfo) -> None:
        """A queue that a redrive made."""
        self._new_queue(info.name, info.config, info.channels)

    def arrived(self, name: str, records: c.Records) -> None:
        """What the log of a queue holds after the last message that the model knows."""
        queue = self.queues[name]
        queue.queue_id = records.queue_id
        for run in records.runs:
            for index in range(run.start, run.stop):
                sequence = run.chunk.base + index
                if queue.next_sequence is not None and sequence < queue.next_sequence:
                    continue
                message = self._match_incoming(queue, run.chunk, index)
                message.sequence = sequence
                self._check_origin(f"{name}: {sequence}", run.chunk.origin(index), message)
                got = (bytes(run.chunk.body(index)), run.chunk.attributes(index), run.chunk.group(index))
                demand(got == (message.body, message.attributes, message.group), f"{name}: {got} is not {message}")
                self._enqueue(queue, message)
        demand(not queue.incoming, f"{name}: messages did not arrive: {queue.incoming}")

    def _match_incoming(self, queue: Queue, chunk: Any, index: int) -> Message:
        packed = chunk.origin(index)
        origin = msgspec.msgpack.decode(packed) if packed is not None else None
        key = (origin["queue"], origin["channel"], origin["sequence"], origin["sent_ms"]) if origin else None
        body = bytes(chunk.body(index))
        for position, message in enumerate(queue.incoming):
            if message.origin is not None and message.origin.key() == key and message.body == body:
                return queue.incoming.pop(position)
        moved = self._match_redriven(queue, key, body)
        demand(moved is not None, f"{queue.name}: nobody sent {body!r} with origin {origin}; due: {queue.incoming}")
        assert moved is not None
        return moved

    def _match_redriven(self, target: Queue, key: tuple[str, str, int, int] | None, body: bytes) -> Message | None:
        for redrive in self.redrives.values():
            source = self.queues.get(redrive.queue)
            if source is None or redrive.discard or not self._has_main(redrive.queue):
                continue
            for sequence in sorted(redrive.allowed):
                message = source.messages.get(sequence)
                if message is None or self._redrive_target(redrive.target, message) != target.name:
                    continue
                copy = source.channels[c.MAIN].copies.get(sequence)
                if copy is None or copy.state is State.LEASED or not self._may_go(source, sequence, redrive):
                    continue
                origin = message.origin or self._first_origin(source, copy)
                if message.body != body or origin.key() != key:
                    continue
                self._redriven(source, copy)
                priority = origin.priority
                return Message(-1, body, message.attributes, message.group, priority, self.now_ms, 0, origin)
        return None

    def _first_origin(self, source: Queue, copy: Copy) -> Origin:
        """What a message that never failed for good tells of itself when it is moved."""
        sequence, sent_ms = copy.message.sequence, copy.message.sent_ms
        identity = (source.queue_id or 0, sequence)
        return Origin(source.name, c.MAIN, sequence, identity, sent_ms, copy.attempts, 0, [])

    def _redriven(self, source: Queue, copy: Copy) -> None:
        """A message left its queue; its chunk may stay for others."""
        sequence = copy.message.sequence
        self._done(source, source.channels[c.MAIN], copy)
        for redrive in self.redrives.values():
            if redrive.queue == source.name:
                redrive.due.discard(sequence)
                redrive.allowed.discard(sequence)
