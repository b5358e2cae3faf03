"""The redelivery policy: what becomes of a message whose delivery has failed."""

from __future__ import annotations

from penstock.core import commands as c
from penstock.core.delivery.states import State
from penstock.core.queues.config import QueueConfig, dead_letter_name
from tests.simulation.model.ground import Ground
from tests.simulation.model.state import Channel, Copy, Failed, Message, Origin, Place, Queue

DEAD_LETTER_RETENTION_MS = 14 * 24 * 3_600_000


class Failing(Ground):
    """Rules of failed deliveries."""

    def _fail(self, queue: Queue, channel: Channel, copy: Copy, delay_ms: int | None, error: str) -> None:
        """The redelivery policy."""
        config = queue.config
        session = self.sessions.get(copy.session)
        name = session.name if session else ""
        copy.history.append(Failed(copy.attempts, copy.received_ms, self.now_ms, name, error))
        copy.session = 0
        channel.failed += 1
        if config.receives_max and copy.attempts >= config.receives_max:
            self._dead_letter(queue, channel, copy)
            return
        is_first = copy.attempts == 1
        tick_ms = 1
        if delay_ms is None:
            delay_ms = 0 if is_first else config.backoff.delay_ms(copy.attempts - 1, copy.message.sequence)
            tick_ms = config.backoff.tick_ms
        copy.state = State.DELAYED if delay_ms else State.READY
        copy.deadline_ms = -(-(self.now_ms + delay_ms) // tick_ms) * tick_ms if delay_ms else 0
        stays = config.is_fifo or (is_first and not delay_ms and copy.place is not Place.RETRY)
        copy.place = Place.AGAIN if stays else Place.RETRY
        if not stays:
            self._may_be_gone(queue, [copy.message.sequence])

    def _dead_letter(self, queue: Queue, channel: Channel, copy: Copy) -> None:
        name = queue.config.dead_letter or dead_letter_name(queue.name)
        target = self.queues.get(name)
        if target is None:
            config = QueueConfig(
                kind=queue.config.kind,
                max_receives=0,
                retention_ms=DEAD_LETTER_RETENTION_MS,
                message_bytes_max=queue.config.message_bytes_max,
            )
            target = self._new_queue(name, config, [c.MAIN])
        message, before = copy.message, copy.message.origin
        assert queue.queue_id is not None
        origin = Origin(
            queue=queue.name,
            channel=channel.name,
            sequence=message.sequence,
            identity=before.identity if before else (queue.queue_id, message.sequence),
            sent_ms=before.sent_ms if before else message.sent_ms,
            attempts=copy.attempts,
            priority=message.priority,
            failures=(before.failures if before else []) + copy.history,
        )
        target.incoming.append(
            Message(
                sequence=-1,
                body=message.body,
                attributes=message.attributes,
                group=message.group,
                priority=0,
                sent_ms=self.now_ms,
                due_ms=0,
                origin=origin,
            )
        )
        channel.dead += 1
        self._done(queue, channel, copy)
