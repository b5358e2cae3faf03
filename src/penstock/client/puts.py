"""What waits for the commit of a unit of work: messages, gathered into as few sends as keep the order, and leases."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from penstock.client.content import Body, encode_body
from penstock.client.times import Moment, Seconds, length_ms, moment_ms
from penstock.core.commands import Ack, CommitWork, Send, Span
from penstock.core.delivery.runs import merged_spans
from penstock.core.errors import BatchTooLarge, InvalidRequest
from penstock.core.queues.attributes import Attributes, encode_attributes
from penstock.core.queues.config import BATCH_BYTES_MAX

_LISTS = ("attributes", "groups", "dedup_ids")
"""What runs beside the bodies of a send."""

_HEADS_SHARE = 16
"""Of a frame, what is left for acknowledgements and everything else that goes with the messages."""
_MESSAGE_OVERHEAD_BYTES = 32
"""What a message takes in a frame beside its body, attributes, group and dedup id, at most; with its send except the
queue's name, if it is the first of one."""


class Puts:
    """Sends that were asked for and not made yet.

    >>> puts = Puts()
    >>> for queue, body in (("a", b"1"), ("b", b"2"), ("a", b"3")):
    ...     puts.add(Send(queue=queue, bodies=[body]))
    >>> [(send.queue, send.bodies) for send in puts.sends]
    [('a', [b'1', b'3']), ('b', [b'2'])]
    >>> puts.places
    [(0, 0), (1, 0), (0, 1)]
    """

    def __init__(self, frame_bytes_max: int | None = None) -> None:
        self._frame_bytes_max = None if frame_bytes_max is None else frame_bytes_max - frame_bytes_max // _HEADS_SHARE
        """How large they may become on their way to a server; None if they go nowhere."""
        self._frame_bytes = 0
        self.sends: list[Send] = []
        self.places: list[tuple[int, int]] = []
        """For each message, in the order of their coming: which send, and where in it."""
        self.bytes = 0
        self._last: dict[str, int] = {}
        """Queue -> its latest send, which alone may grow: an earlier one would overtake it."""

    def add(self, send: Send) -> None:
        """Hold one more send; `BatchTooLarge` if one commit could not carry it together with the others."""
        index = self._last.get(send.queue)
        is_another = index is None or _options(self.sends[index]) != _options(send)
        size = sum(map(len, send.bodies)) + sum(len(each or b"") for each in send.attributes or ())
        frame_size = size + _frame_overhead(send) + (len(send.queue) if is_another else 0)
        is_too_long = self._frame_bytes_max is not None and self._frame_bytes + frame_size > self._frame_bytes_max
        if self.bytes + size > BATCH_BYTES_MAX or is_too_long:
            found = self._frame_bytes + frame_size if is_too_long else self.bytes + size
            most = self._frame_bytes_max if is_too_long else BATCH_BYTES_MAX
            raise BatchTooLarge(
                f"with this put, the unit of work would have {found} bytes, and a commit carries at most {most}: "
                "commit first, and put the rest into another one"
            )
        self.bytes += size
        self._frame_bytes += frame_size
        if index is None or is_another:
            index = self._last[send.queue] = len(self.sends)
            self.sends.append(_copy(send))
            start = 0
        else:
            start = _append(self.sends[index], send)
        self.places += [(index, start + each) for each in range(len(send.bodies))]


def merged(sends: Iterable[Send]) -> list[Send]:
    """As few sends as keep the order within each queue.

    >>> [send.bodies for send in merged([Send(queue="a", bodies=[b"1"]), Send(queue="a", bodies=[b"2"])])]
    [[b'1', b'2']]
    """
    puts = Puts()
    for send in sends:
        puts.add(send)
    return puts.sends


def _frame_overhead(send: Send) -> int:
    """How many bytes the messages of a send need in a frame beside their bodies and attributes."""
    texts = (text for texts in (send.groups, send.dedup_ids) for text in texts or () if isinstance(text, str))
    return len(send.bodies) * _MESSAGE_OVERHEAD_BYTES + sum(4 * len(text) for text in texts)


def _options(send: Send) -> tuple[Any, ...]:
    """What messages of one send have in common."""
    return send.priority, send.delay_ms, send.due_ms


def _copy(send: Send) -> Send:
    """A send that may grow, and leaves the given one as it is."""
    copied = Send(
        queue=send.queue,
        bodies=list(send.bodies),
        priority=send.priority,
        delay_ms=send.delay_ms,
        due_ms=send.due_ms,
    )
    for name in _LISTS:
        values = getattr(send, name)
        setattr(copied, name, None if values is None else list(values))
    return copied


def _append(target: Send, send: Send) -> int:
    """Put the messages of a send behind those of another one. Returns where they start."""
    start = len(target.bodies)
    assert isinstance(target.bodies, list)
    target.bodies.extend(send.bodies)
    for name in _LISTS:
        old, new = getattr(target, name), getattr(send, name)
        if old is None and new is None:
            continue
        if old is None:
            old = [None] * start
            setattr(target, name, old)
        old.extend([None] * len(send.bodies) if new is None else new)
    return start


def together(commands: list[CommitWork]) -> CommitWork:
    """One command that does what all of them do."""
    if len(commands) == 1:
        return commands[0]
    spans: dict[tuple[str, str], list[Span]] = {}
    sends: list[Send] = []
    for command in commands:
        sends += command.sends
        for ack in command.acks:
            spans.setdefault((ack.queue, ack.channel), []).extend(ack.spans)
    acks = [Ack(queue=queue, channel=channel, spans=merged_spans(taken)) for (queue, channel), taken in spans.items()]
    return CommitWork(acks=acks, sends=merged(sends))


Taken = dict[tuple[str, str], list[Span]]
"""What was taken, by queue and channel."""


class OpenUnit:
    """What a unit of work holds until it is committed, or rolled back."""

    def __init__(self, caller: Any, session: int = 0) -> None:
        self._caller = caller
        self._session = session
        self._lock = threading.Lock()
        self._state = "open"
        self._taken: Taken = {}
        self._puts = self._no_puts()

    def _no_puts(self) -> Puts:
        return Puts(getattr(self._caller, "frame_bytes_max", None))

    @property
    def state(self) -> str:
        """`open`, `committing`, `committed` or `rolled back`."""
        return self._state

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

        Raises `BatchTooLarge` if the unit would become larger than one commit may be.
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

    def abandon(self) -> Taken:
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
