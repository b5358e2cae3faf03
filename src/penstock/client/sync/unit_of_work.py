"""A unit of work: what it takes and what it puts happen together, or not at all.

Takes are leases, and puts are held here until the commit, which is a single command: acknowledge all takes and send
all puts. A unit that is not committed rolls back: its puts are forgotten, and its takes given back as they were, which
is no failed delivery. With an error they are released, which is one. If the process dies, the end of its session, or
of the leases, is the rollback. Puts to one queue keep their order.

A commit that fails leaves the unit open: it can be tried again (after `NotSent`, or when the disk has space again), or
rolled back. Whether a commit was done that failed with `OutcomeUnknown` or `CommitFailed` is not known; rolling back
is right in both cases, since what was acknowledged cannot be released.
"""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import Self

from penstock.client.content import SentMessage, SentMessages, error_text, most
from penstock.client.puts import OpenUnit
from penstock.client.sync.caller import Caller, Telling
from penstock.client.sync.message import Message, messages_of
from penstock.client.times import Seconds, length_ms
from penstock.core.commands import (
    MAIN,
    Delivery,
    GiveBack,
    Receive,
    Release,
    Sent,
    Span,
)
from penstock.core.delivery.runs import merged_spans

_LOG = logging.getLogger("penstock.client")
_ROLLBACK_SECONDS = 1.0
"""How long a rollback waits for the server, which may be gone: leases that are not released run out."""


class UnitOfWork(OpenUnit):
    """Take messages from any queues, put messages to any queues, then `commit`. Threads may share it."""

    _caller: Caller

    def take(
        self, queue: str, *, channel: str = MAIN, wait: Seconds | None = None, lease: Seconds | None = None
    ) -> Message | None:
        """Lease one message for this unit, or None if there is none. The commit acknowledges it."""
        messages = self.take_many(queue, 1, channel=channel, wait=wait, lease=lease)
        return messages[0] if messages else None

    def take_many(
        self,
        queue: str,
        max: int,
        *,
        channel: str = MAIN,
        wait: Seconds | None = None,
        lease: Seconds | None = None,
    ) -> list[Message]:
        """Lease up to `max` messages for this unit. The commit acknowledges them."""
        self._check_open()
        command = Receive(
            queue=queue,
            channel=channel,
            limit=most(max),
            wait_ms=length_ms(wait, "wait"),
            lease_ms=length_ms(lease, "lease"),
            session=self._session,
        )
        delivery: Delivery | None = self._caller.call(command)
        if delivery is None or not delivery.runs:
            return []
        spans = delivery.spans()
        if not self.hold(queue, channel, spans):
            self._return(queue, channel, spans, None, time.monotonic() + _ROLLBACK_SECONDS)
            self._check_open()
        return messages_of(self._caller, delivery)

    def commit(self) -> list[SentMessage]:
        """Acknowledge all takes and send all puts, in one commit. Returns the messages sent, in the order of the puts.

        Raises `WorkRefused`, and does nothing, if a message that was taken can no longer be settled.
        """
        command = self.begin_commit()
        try:
            replies: list[Sent] = self._caller.call(command) if command.acks or command.sends else []
        except BaseException:
            self.end_commit("open")
            raise
        self.end_commit("committed")
        sent = [SentMessages(self._caller.identity, reply) for reply in replies]
        return [sent[index][position] for index, position in self._puts.places]

    def rollback(self, *, error: str | None = None) -> None:
        """Drop the puts and give the takes back. With an `error`, the takes count as failed deliveries.

        This never fails: a lease that cannot be given back runs out. If the server does not answer, it waits for a
        second at most.
        """
        until = time.monotonic() + _ROLLBACK_SECONDS
        for (queue, channel), spans in self.abandon().items():
            self._return(queue, channel, spans, error, until)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.rollback(error=None if error is None else error_text(error))

    def _return(self, queue: str, channel: str, spans: list[Span], error: str | None, until: float) -> None:
        spans = merged_spans(spans)
        command: GiveBack | Release
        if error is None:
            command = GiveBack(queue=queue, channel=channel, spans=spans)
        else:
            command = Release(queue=queue, channel=channel, spans=spans, error=error)
        try:
            if isinstance(self._caller, Telling):
                self._caller.tell(command, max(0.0, until - time.monotonic()))
            else:
                self._caller.call(command)
        except Exception as failure:  # whatever it is: a rollback succeeds
            _LOG.debug(
                "messages of %r could not be released, and are delivered again when their lease ends: %s",
                queue,
                failure,
            )
