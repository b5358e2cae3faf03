"""One message with all that is known of it: what `Queue.look_up` and `Penstock.find_message` return."""

from __future__ import annotations

import time

from penstock.client.content import FailedAttempt, Identity, failed_attempts
from penstock.client.times import seconds
from penstock.core.commands import ChannelLife, Life
from penstock.core.queues.attributes import AttributeValue, decode_attributes
from penstock.core.queues.origin import LifeEvent, Origin, events_of, failures_of


class MessageLife:
    """A message as it is now: where it stands in each channel, who holds it, when it is due, what happened."""

    __slots__ = ("_identity", "_life")

    def __init__(self, identity: Identity, life: Life) -> None:
        self._identity = identity
        self._life = life

    @property
    def id(self) -> str:
        """The message's id: the same for life, also in the dead-letter queue and back."""
        origin = self.origin
        return self._identity.message_id(self._life.queue_id, self.sequence) if origin is None else origin.id

    @property
    def queue(self) -> str:
        """The queue in which it is now."""
        return self._life.queue

    @property
    def sequence(self) -> int:
        """The message's number in that queue."""
        return self._life.sequence

    @property
    def body(self) -> bytes:
        """What was sent."""
        return self._life.body

    @property
    def text(self) -> str:
        """The body as text (UTF-8)."""
        return self.body.decode()

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        """The attributes it was sent with."""
        return decode_attributes(self._life.attributes)

    @property
    def group(self) -> str | None:
        """The group it belongs to, if any."""
        return self._life.group

    @property
    def priority(self) -> int:
        """0 to 9; the highest goes first."""
        return self._life.priority

    @property
    def sent_at(self) -> float:
        """When it was first sent, in seconds since 1970."""
        origin = self.origin
        return seconds(self._life.sent_ms if origin is None else origin.sent_ms)

    @property
    def origin(self) -> Origin | None:
        """Where it came from, if it was moved here from another queue."""
        return None if self._life.origin is None else Origin.decode(self._life.origin)

    @property
    def channels(self) -> list[ChannelLife]:
        """Where it stands in each channel. Times are milliseconds, as the store has them."""
        return self._life.channels

    @property
    def history(self) -> list[FailedAttempt]:
        """Its failed deliveries, the oldest first, in every channel and in the queue that it came from."""
        found = list(failures_of(self.origin, [], self.sequence))
        before = [] if self.origin is None else failed_attempts(found, self.origin.sequence)
        return before + [one for each in self.channels for one in failed_attempts(each.failures, self.sequence)]

    @property
    def events(self) -> list[LifeEvent]:
        """Everything that happened to it, and will, the oldest first."""
        return events_of(self._life)

    def lines(self, now: float | None = None) -> list[str]:
        """Its life, for people, a line for each event."""
        return [told(event, time.time() if now is None else now) for event in self.events]

    def __repr__(self) -> str:
        return f"<MessageLife {self.id} in {self.queue!r}>"


def told(event: LifeEvent, now: float) -> str:
    """An event as a line.

    >>> told(LifeEvent(0, "failed", "orders", "main", 2, "timeout"), 10.0)
    '1970-01-01 00:00:00.000Z  orders/main  attempt 2  failed: timeout'
    """
    at = event.at_ms / 1_000
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)) + f".{event.at_ms % 1_000:03}Z"
    place = event.queue if event.channel is None else f"{event.queue}/{event.channel}"
    attempt = "" if event.attempt is None else f"attempt {event.attempt}  "
    text = f"failed: {event.text}" if event.what == "failed" else event.text
    return f"{moment}  {place}  {attempt}{text}" + (" (to come)" if at > now else "")
