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
import threading
import time
from types import TracebackType
from typing import Self

from penstock.client.acknowledging import merged_spans
from penstock.client.aio.caller import AsyncCaller, AsyncTelling
from penstock.client.aio.message import AsyncMessage, error_text, messages_of
from penstock.client.content import Body, SentMessage, SentMessages, encode_body
from penstock.client.puts import Puts
from penstock.client.times import Moment, Seconds, length_ms, moment_ms
from penstock.core.commands import MAIN, Ack, CommitWork, Delivery, GiveBack, Receive, Release, Send, Sent, Span
from penstock.core.errors import InvalidRequest
from penstock.core.queues.attributes import Attributes, encode_attributes

_LOG = logging.getLogger("penstock.client")
_ROLLBACK_SECONDS = 1.0
"""How long a rollback waits for the server, which may be gone: leases that are not released run out."""
_Taken = dict[tuple[str, str], list[Span]]
"""What was taken, by queue and channel."""


class AsyncUnitOfWork:
    """Take from any queues, put to any queues, then `commit`. May be shared: it locks for itself."""

    def __init__(self, caller: AsyncCaller, session: int = 0) -> None:
        self._caller = caller
        self._session = session
        self._lock = threading.Lock()
        self._state = "open"
        self._taken: _Taken = {}
        self._puts = self._no_puts()

    def _no_puts(self) -> Puts:
        return Puts(getattr(self._caller, "frame_bytes_max", None))

    @property
    def state(self) -> str:
        """`open`, `committing`, `committed` or `rolled back`."""
        return self._state

    async def take(
        self, queue: str, *, channel: str = MAIN, wait: Seconds | None = None, lease: Seconds | None = None
    ) -> AsyncMessage | None:
        """Lease one message for this unit; None if there is none. The commit acknowledges it."""
        messages = await self.take_many(queue, 1, channel=channel, wait=wait, lease=lease)
        return messages[0] if messages else None

    async def take_many(
        self,
        queue: str,
        max: int,
        *,
        channel: str = MAIN,
        wait: Seconds | None = None,
        lease: Seconds | None = None,
    ) -> list[AsyncMessage]:
        """Lease up to `max` messages for this unit."""
        self._check_open()
        command = Receive(
            queue=queue,
            channel=channel,
            limit=max,
            wait_ms=length_ms(wait, "wait"),
            lease_ms=length_ms(lease, "lease"),
            session=self._session,
        )
        delivery: Delivery | None = await self._caller.call(command)
        if delivery is None or not delivery.runs:
            return []
        spans = [span for run in delivery.runs for span in run.spans()]
        if not self.hold(queue, channel, spans):
            await self._return(queue, channel, spans, None, time.monotonic() + _ROLLBACK_SECONDS)
            self._check_open()
        return messages_of(self._caller, delivery)

    def put(
        self,
        queue: str,
        body: Body,
        *,
        attributes: Attributes | None = None,
        group: str | None = None,
        dedup_id: str | None = None,
        priority: int = 0,
        delay: Seconds | None = None,
        due: Moment | None = None,
    ) -> None:
        """Hold a message until the commit. Nobody sees it before, and nothing goes over the network.

        `BatchTooLarge` if the unit would become larger than one commit may be.
        """
        if not isinstance(queue, str):
            raise InvalidRequest(f"queue is {queue!r}: it must be text")
        encoded = encode_attributes(attributes)
        send = Send(
            queue=queue,
            bodies=[encode_body(body)],
            attributes=None if encoded is None else [encoded],
            groups=None if group is None else [group],
            dedup_ids=None if dedup_id is None else [dedup_id],
            priority=priority,
            delay_ms=length_ms(delay, "delay"),
            due_ms=moment_ms(due, "due"),
        )
        with self._lock:
            self._check_open()
            self._puts.add(send)

    async def commit(self) -> list[SentMessage]:
        """Acknowledge all takes and send all puts, in one commit. Returns what became of the puts, in order.

        `WorkRefused` if something that was taken can no longer be settled: nothing is done then.
        """
        command = self.begin_commit()
        try:
            replies: list[Sent] = await self._caller.call(command) if command.acks or command.sends else []
        except BaseException:
            self.end_commit("open")
            raise
        self.end_commit("committed")
        sent = [SentMessages(self._caller.identity, reply) for reply in replies]
        return [sent[index][position] for index, position in self._puts.places]

    async def rollback(self, *, error: str | None = None) -> None:
        """Forget the puts and give the takes back, as if they had not been taken; with an error, as failed deliveries.

        Never fails: a lease that cannot be given back runs out. A server that does not answer is waited for no longer
        than a second.
        """
        until = time.monotonic() + _ROLLBACK_SECONDS
        for (queue, channel), spans in self.abandon().items():
            await self._return(queue, channel, spans, error, until)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.rollback(error=None if error is None else error_text(error))

    # -- for who drives units, as a listener does --

    def hold(self, queue: str, channel: str, spans: list[Span]) -> bool:
        """Messages that were received for this unit: the commit acknowledges them. False if the unit is over."""
        with self._lock:
            if self._state != "open":
                return False
            self._taken.setdefault((queue, channel), []).extend(spans)
            return True

    def let_go(self, queue: str, channel: str, span: Span) -> None:
        """A message that was held is settled already: the commit leaves it alone."""
        with self._lock:
            spans = self._taken.get((queue, channel), [])
            if span in spans:
                spans.remove(span)
            if not spans:
                self._taken.pop((queue, channel), None)

    def begin_commit(self) -> CommitWork:
        """The command that commits this unit. Whoever carries it out says `end_commit`."""
        with self._lock:
            self._check_open()
            self._state = "committing"
            acks = [
                Ack(queue=queue, channel=channel, spans=merged_spans(spans))
                for (queue, channel), spans in self._taken.items()
            ]
            return CommitWork(acks=acks, sends=list(self._puts.sends))

    def end_commit(self, state: str) -> None:
        """The commit was done (`committed`), or was not and may be tried again (`open`)."""
        self._state = state

    def abandon(self) -> _Taken:
        """Roll back as far as no command is needed: what is returned has still to be given back, or released."""
        with self._lock:
            if self._state != "open":
                return {}
            self._state = "rolled back"
            taken, self._taken = self._taken, {}
            self._puts = self._no_puts()
            return taken

    def _check_open(self) -> None:
        if self._state != "open":
            raise InvalidRequest(f"the unit of work is {self._state}: start another one")

    async def _return(self, queue: str, channel: str, spans: list[Span], error: str | None, until: float) -> None:
        spans = merged_spans(spans)
        command: GiveBack | Release
        if error is None:
            command = GiveBack(queue=queue, channel=channel, spans=spans)
        else:
            command = Release(queue=queue, channel=channel, spans=spans, error=error)
        try:
            if isinstance(self._caller, AsyncTelling):
                await self._caller.tell(command, max(0.0, until - time.monotonic()))
            else:
                await self._caller.call(command)
        except Exception as failure:  # whatever it is: a rollback succeeds
            _LOG.debug(
                "messages of %r could not be released, and are delivered again when their lease ends: %s",
                queue,
                failure,
            )
