"""Messages that wait for a commit: gathered into as few sends as keep the order within each queue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.core.commands import Send
from penstock.core.errors import BatchTooLarge
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
            most = self._frame_bytes_max if is_too_long else BATCH_BYTES_MAX
            raise BatchTooLarge(
                f"{size} bytes more would make {self.bytes + size} in one unit of work: commit before, and put the "
                f"rest into another one; a commit carries at most {most}"
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
