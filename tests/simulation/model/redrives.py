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
from tests.simulation.model.state import Copy, Message, Queue, Redrive
from tests.simulation.model.verdict import Outcome, demand


class Redrives(Sending, Receiving):
    """Rules of messages that move."""

    def _accept_StartRedrive(self, command: c.StartRedrive, outcome: Outcome) -> None:
        is_running = any(each.queue == command.queue for each in self.redrives.values())
        source = self.queues.get(command.queue)
        main = source.channels.get(c.MAIN) if source else None
        ready = {s for s, copy in main.copies.items() if copy.state is State.READY} if main else set()
        has_dead_letters = any(source.messages[s].origin for s in ready) if source else False
        may = [e.InvalidRequest] if is_running or (command.target is None and not has_dead_letters) else []
        if self._refused(outcome, self._missing(command.queue), may):
            return
        queue = self.queues[command.queue]
        allowed = set()
        for sequence, message in queue.messages.items():
            wanted = command.sequences is None or sequence in command.sequences
            wanted &= command.contains is None or command.contains in message.body
            failures = message.origin.failures if message.origin else []
            wanted &= command.error is None or any(command.error in failure.error for failure in failures)
            wanted &= command.origins is None or self._fits(message, command.origins)
            if wanted and self._redrive_target(command.target, message) is not None:
                allowed.add(sequence)
        if command.check_only:
            demand((outcome.task, outcome.status) == (0, "dry_run"), f"{outcome} should have started nothing")
            return
        due = {s for s in allowed & ready if self._redrive_target(command.target, queue.messages[s]) in self.queues}
        if command.group is not None:
            due = {s for s in due if self._last_error_is(queue, s, command.group)}
        self.redrives[outcome.task] = Redrive(command.queue, command.target, due, allowed)

    def _fits(self, message: Message, patterns: list[str]) -> bool:
        return message.origin is not None and any(fnmatchcase(message.origin.queue, each) for each in patterns)

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
            for sequence in redrive.allowed if source else ():
                assert source is not None
                if sequence in source.messages:
                    names.add(self._redrive_target(redrive.target, source.messages[sequence]) or "")
        return sorted(name for name in names if name in self.queues)

    def missing_targets(self) -> list[str]:
        """Queues that are not there, and would be made by a redrive to them."""
        names = set()
        for redrive in self.redrives.values():
            source = self.queues.get(redrive.queue)
            messages = [source.messages.get(sequence) for sequence in redrive.allowed] if source else []
            names |= {self._redrive_target(redrive.target, message) for message in messages if message}
        return sorted(name for name in names if name is not None and name not in self.queues)

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
            if source is None:
                continue
            for sequence in sorted(redrive.allowed):
                message = source.messages.get(sequence)
                if message is None or self._redrive_target(redrive.target, message) != target.name:
                    continue
                if message.body != body or (message.origin.key() if message.origin else None) != key:
                    continue
                copy = source.channels[c.MAIN].copies.get(sequence)
                if copy is None or copy.state is State.LEASED:
                    continue
                self._redriven(source, copy)
                priority = message.origin.priority if message.origin else message.priority
                return Message(-1, body, message.attributes, message.group, priority, self.now_ms, 0, message.origin)
        return None

    def _redriven(self, source: Queue, copy: Copy) -> None:
        """A message left its queue; its chunk may stay for others."""
        sequence = copy.message.sequence
        self._done(source, source.channels[c.MAIN], copy)
        for redrive in self.redrives.values():
            if redrive.queue == source.name:
                redrive.due.discard(sequence)
                redrive.allowed.discard(sequence)
