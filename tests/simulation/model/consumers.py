"""Readers that go by offset, and lease nothing."""

from __future__ import annotations

from penstock.core import commands as c
from penstock.core import errors as e
from tests.simulation.model.ground import Ground
from tests.simulation.model.state import Consumer, Queue
from tests.simulation.model.verdict import Outcome, demand


class Consumers(Ground):
    """Rules of named consumers."""

    def _accept_ReadRecords(self, command: c.ReadRecords, outcome: Outcome) -> None:
        must = self._missing(command.queue)
        queue = self.queues.get(command.queue)
        consumer = queue.consumers.get(command.consumer or "") if queue else None
        unknown = command.consumer is not None and consumer is None
        if self._refused(outcome, must, [e.ConsumerNotFound] if unknown else []):
            return
        assert queue is not None
        if consumer is not None:
            consumer.active_ms = self.now_ms
        start = command.offset if command.offset is not None else consumer.offset if consumer else 0
        self._check_records(queue, start, command.limit, outcome)

    def _check_records(self, queue: Queue, start: int, limit: int, records: c.Records) -> None:
        got = [(run.chunk, index) for run in records.runs for index in range(run.start, run.stop)]
        sequences = [chunk.base + index for chunk, index in got]
        demand(sequences == sorted(set(sequences)), f"{queue.name}: records in the order {sequences}")
        demand(len(sequences) <= limit, f"{queue.name}: {len(sequences)} records, at most {limit} were wanted")
        for chunk, index in got:
            sequence = chunk.base + index
            message = queue.messages.get(sequence)
            demand(message is not None and sequence >= start, f"{queue.name}: no message {sequence} from {start} on")
            assert message is not None
            demand(bytes(chunk.body(index)) == message.body, f"{queue.name}: the body of {sequence} is not as sent")
        through = records.next_offset if sequences else records.end_offset
        missing = sorted(s for s in queue.stored if start <= s < through and s not in sequences)
        demand(not missing, f"{queue.name}: records from {start} lack {missing}: {sequences}")
        if sequences:
            demand(records.next_offset > sequences[-1], f"{queue.name}: next offset {records.next_offset}: {sequences}")
        if queue.next_sequence is not None:
            demand(records.end_offset == queue.next_sequence, f"{queue.name}: the end is at {records.end_offset}")

    def _accept_AckConsumer(self, command: c.AckConsumer, outcome: Outcome) -> None:
        must: list[type[Exception]] = self._missing(command.queue)
        queue = self.queues.get(command.queue)
        consumer = queue.consumers.get(command.consumer) if queue else None
        if consumer is not None and command.offset < consumer.offset and not command.allow_rewind:
            must.append(e.RewindRefused)
        if queue is not None and command.offset > (queue.next_sequence or 0):
            must.append(e.InvalidRequest)
        if self._refused(outcome, must):
            return
        assert queue is not None
        queue.consumers[command.consumer] = Consumer(command.offset, self.now_ms)
        demand(outcome == command.offset, f"the consumer is at {outcome}, not {command.offset}")
        self._may_be_gone(queue, list(queue.stored))

    def _accept_DeleteConsumer(self, command: c.DeleteConsumer, outcome: Outcome) -> None:
        queue = self.queues.get(command.queue)
        must = self._missing(command.queue)
        if queue is not None and command.consumer not in queue.consumers:
            must.append(e.ConsumerNotFound)
        if not self._refused(outcome, must):
            assert queue is not None
            del queue.consumers[command.consumer]
            self._may_be_gone(queue, list(queue.stored))
