"""A received message: read it, work on it, settle it."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.client.content import Content, FailedAttempt
from penstock.client.sync.caller import Caller
from penstock.client.times import Seconds, lease_length_ms, length_ms, seconds
from penstock.core.commands import Ack, Delivery, Extend, Release, Run, Settled, Span
from penstock.core.errors import PenstockError

_ERROR_LETTERS_MAX = 10_000
"""How much of an exception's text goes with a failed delivery: the history of a message is kept with it."""


class Message(Content):
    """A message under lease. As a context manager it acks on success, and releases with the error on failure."""

    __slots__ = ("_caller", "_delivery", "_given_back", "_lease_ends_ms", "_run", "_settled")

    def __init__(self, caller: Caller, delivery: Delivery, run: Run, index: int) -> None:
        self._identity = caller.identity  # a call of `Content` for each message would be much of what it costs
        self._queue_id = delivery.queue_id
        self._chunk = run.chunk
        self._index = index
        self._caller = caller
        self._delivery = delivery
        self._run = run
        self._lease_ends_ms = delivery.deadline_ms
        self._settled = False
        self._given_back = False

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self._delivery.queue

    @property
    def channel(self) -> str:
        """The channel it came through."""
        return self._delivery.channel

    @property
    def attempts(self) -> int:
        """How often it was handed out, this time included."""
        attempt = self._run.attempt
        return attempt if isinstance(attempt, int) else int(attempt[self._index - self._run.start])

    @property
    def first_received_at(self) -> float:
        """When it was handed out for the first time, in seconds since 1970."""
        return seconds(int(self._run.first_received_ms[self._index - self._run.start]))

    @property
    def lease_ends_at(self) -> float:
        """Until when it is this receiver's, in seconds since 1970."""
        return seconds(self._lease_ends_ms)

    @property
    def lease_ends_ms(self) -> int:
        """The same in milliseconds, as the server counts."""
        return self._lease_ends_ms

    @property
    def receipt(self) -> str:
        """What settles this delivery from anywhere else: `queue.ack(receipt)`, also after a restart."""
        delivery = self._delivery
        return self._identity.receipt(delivery.queue_id, delivery.channel_id, self.sequence, self.attempts)

    @property
    def history(self) -> list[FailedAttempt]:
        """Its failed deliveries so far, the oldest first."""
        return self._history(self._run.failures)

    @property
    def place(self) -> tuple[int, int]:
        """Its number in its queue, and how often it was handed out: this delivery and no other."""
        attempt = self._run.attempt
        return self._chunk.base + self._index, attempt if isinstance(attempt, int) else self.attempts

    @property
    def span(self) -> Span:
        """The message as commands name it."""
        sequence, attempt = self._chunk.base + self._index, self._run.attempt
        return Span(sequence, sequence, attempt if isinstance(attempt, int) else self.attempts)

    @property
    def is_settled(self) -> bool:
        """Whether this object was used to ack it, or to give it back."""
        return self._settled

    @property
    def is_given_back(self) -> bool:
        """Whether this object was used to give it back."""
        return self._given_back

    def extended_to(self, lease_ends_ms: int) -> None:
        """Somebody extended the lease, together with others."""
        self._lease_ends_ms = lease_ends_ms

    def ack(self) -> None:
        """The work is done: the message goes."""
        delivery = self._delivery
        command = Ack(queue=delivery.queue, channel=delivery.channel, spans=[self.span])
        Settled.check(self._caller.call(command))
        self._settled = True

    def release(self, *, delay: Seconds | None = None, error: str = "") -> None:
        """The work failed: the message goes back, at once or after a delay (None: as the queue's backoff says)."""
        delay_ms = length_ms(delay, "delay")
        command = Release(queue=self.queue, channel=self.channel, spans=[self.span], delay_ms=delay_ms, error=error)
        Settled.check(self._caller.call(command))
        self._settled = self._given_back = True

    def extend(self, lease: Seconds) -> None:
        """The work goes on: the lease ends so many seconds from now. 0 gives the message back."""
        lease_ms = lease_length_ms(lease)
        command = Extend(queue=self.queue, channel=self.channel, spans=[self.span], lease_ms=lease_ms)
        Settled.check(self._caller.call(command))
        self._lease_ends_ms = self._caller.now_ms() + lease_ms
        self._settled = self._given_back = lease_ms == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._settled:
            return
        if error is None:
            self.ack()
            return
        try:
            self.release(error=error_text(error))
        except PenstockError as refusal:
            error.add_note(f"message {self.id} could not be released: {refusal}")


def error_text(error: BaseException) -> str:
    """How an exception is reported with a failed delivery.

    >>> error_text(ValueError("no such order"))
    'ValueError: no such order'
    """
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as failure:  # a message must come back whatever its error is made of
        text = f"(its text cannot be had: {type(failure).__name__})"
    if len(text) > _ERROR_LETTERS_MAX:
        text = f"{text[:_ERROR_LETTERS_MAX]}... ({len(text)} letters)"
    return f"{name}: {text}".encode(errors="backslashreplace").decode() if text else name


def messages_of(caller: Caller, delivery: Delivery | None) -> list[Message]:
    """The messages of a delivery, one by one."""
    if delivery is None:
        return []
    return [Message(caller, delivery, run, index) for run in delivery.runs for index in range(run.start, run.stop)]
