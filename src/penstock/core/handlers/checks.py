"""What commands of several kinds are checked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import InvalidName, InvalidRequest, QueueReplaced
from penstock.core.queues.config import LEASE_MS_MAX, out_of_range

if TYPE_CHECKING:
    from penstock.core.queues.queue import Queue

LIMIT_MAX: Final = 1_000_000
"""How many messages one command may ask for."""
_TEXT_LENGTH_MAX: Final = 128


def check_limit(limit: int) -> None:
    """How many messages are asked for."""
    if not 1 <= limit <= LIMIT_MAX:
        raise InvalidRequest(f"limit is {limit}: it must be from 1 to {LIMIT_MAX}")


def check_lease(lease_ms: int | None) -> None:
    """How long messages are to be held; None: as long as the queue says."""
    if lease_ms is not None and not 0 <= lease_ms <= LEASE_MS_MAX:
        raise InvalidRequest(out_of_range("lease_ms", lease_ms, 0, LEASE_MS_MAX))


def check_queue_id(queue: Queue | None, name: str, queue_id: int) -> None:
    """Whether the queue that has a name is the one that was meant."""
    if queue is None or queue.id != queue_id:
        here = "it is gone" if queue is None else "another one has its name"
        raise QueueReplaced(f"queue {name!r} is not the one that was meant: {here}; nothing was done")


def plain(value: Any) -> str | bytes | int | float:
    """Text, bytes or a number of a class of its own as just that: what is written is never anything else.

    >>> class Name(str): ...
    >>> type(plain(Name("orders")))
    <class 'str'>
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes(memoryview(value))
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def known_fields(command: list[Any], lengths: Mapping[str, int]) -> list[Any]:
    """A command as a later build writes it, an array, without the fields at its end that this build does not know.

    What such a field says must not be passed over; so it has to say nothing (null, false, 0, or empty).

    >>> known_fields(["QueueStats", "orders", None, 0, None, False], {"QueueStats": 4})
    ['QueueStats', 'orders', None, 0]
    >>> known_fields(["QueueStats", "orders", None, 0, "exactly"], {"QueueStats": 4})
    Traceback (most recent call last):
        ...
    penstock.core.errors.InvalidRequest: QueueStats: 'exactly', after its last field, is not known here: the sender ...
    """
    name, *_ = command
    for each in command[lengths[name] :]:
        if each:
            raise InvalidRequest(
                f"{name}: {each!r:.40}, after its last field, is not known here: the sender is a newer build"
            )
    return command[: lengths[name]]


def clean(text: str) -> str:
    """Text that can be written: what is not valid in it is replaced, because it only explains."""
    return text.encode("utf-8", "replace").decode()


def check_offset(queue: Queue, offset: int) -> None:
    """A place in a queue: from its first message to behind its last one."""
    if not 0 <= offset <= queue.next_sequence:
        raise InvalidRequest(
            f"offset is {offset}: it must be from 0 to {queue.next_sequence}, the end of queue {queue.name!r}"
        )


def check_text(name: str, what: str) -> None:
    """A group, a dedup id, an attempt id: short, and text that can be written."""
    if not 1 <= len(name) <= _TEXT_LENGTH_MAX:
        raise InvalidName(f"a {what} has 1 to {_TEXT_LENGTH_MAX} characters; this one has {len(name)}: {name[:50]!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidName(f"a {what} must be valid text; {name[:50]!r} is not") from None
