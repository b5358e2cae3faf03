"""Commands that are done once, however often they come: what a client over a network needs when an answer is lost.

A client names its commands: its own name, and a number that it counts up (`Once`). The reply to each is remembered,
committed together with what the command did, and given again when the same name comes again. With every command the
client says up to which number it has got its answers; what is below is forgotten. So little is remembered: about as
much as is in flight. A client that is silent for five minutes is forgotten: it must not repeat anything older.

Marks: which numbered work of a name was done last, so that none is done twice, however much later it comes again.

A mark is for work that its owner numbers and may repeat after any crash (a Spark stream's batches). It is one small
record for each name, replaced by the next number, in the same commit as the work itself.

The outboxes of other shards have marks of their own, in a name space of their own: none of them is ever forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from penstock.core import commands
from penstock.core.commands import Command, Once
from penstock.core.errors import InvalidRequest, OverLimit, PenstockError
from penstock.core.packed_error import PackedError, pack_error, unpack_error
from penstock.core.queues.config import DEDUP_WINDOW_MS
from penstock.core.storage import keys
from penstock.core.storage.changes import Changes
from penstock.core.storage.keys import Kind
from penstock.core.storage.records import DoneOnce, Mark, OnceClient

NAMES_MAX = 100_000
NAME_LENGTH_MAX = 256
_NAMES, _OUTBOXES = 0, 1


class Marks:
    """The last number of every name. Past `NAMES_MAX` names, the one that was silent longest is forgotten.

    >>> marks, changes = Marks(), Changes()
    >>> marks.last("stream"), marks.set("stream", 7, 0, changes), marks.last("stream")
    (-1, None, 7)
    """

    def __init__(self) -> None:
        self._known: dict[str, Mark] = {}
        self._outboxes: dict[str, Mark] = {}

    def last_of_outbox(self, name: str) -> int:
        """The highest number of an outbox that was done here; -1 when there is none."""
        mark = self._outboxes.get(name)
        return -1 if mark is None else mark.number

    def set_outbox(self, name: str, number: int, now_ms: int, changes: Changes) -> None:
        self._outboxes[name] = mark = Mark(number, now_ms)
        changes.put_record(keys.record(Kind.MARK, _OUTBOXES, name.encode()), msgspec.msgpack.encode(mark))

    def last(self, name: str) -> int:
        """The highest number that was done; -1 when there is none."""
        mark = self._known.get(name)
        return -1 if mark is None else mark.number

    def done_ms(self, name: str) -> int:
        """When the last work of a name was done; 0 when there is none."""
        mark = self._known.get(name)
        return 0 if mark is None else mark.done_ms

    @staticmethod
    def check(name: str, number: int) -> None:
        """Raise what is wrong with a mark."""
        if not 1 <= len(name) <= NAME_LENGTH_MAX or not name.isprintable():
            raise InvalidRequest(f"a mark's name has 1 to {NAME_LENGTH_MAX} printable characters: {name[:50]!r}")
        if not 0 <= number < 1 << 63:
            raise InvalidRequest(f"a mark's number is {number}: it must be from 0 to 2^63 - 1")

    def set(self, name: str, number: int, now_ms: int, changes: Changes) -> None:
        self._known.pop(name, None)
        self._known[name] = mark = Mark(number, now_ms)
        changes.put_record(_key(name), msgspec.msgpack.encode(mark))
        while len(self._known) > NAMES_MAX:
            oldest = next(iter(self._known))
            del self._known[oldest]
            changes.delete_record(_key(oldest))

    def restore(self, records: list[tuple[bytes, bytes]]) -> None:
        found: dict[int, list[tuple[str, Mark]]] = {_NAMES: [], _OUTBOXES: []}
        for key, data in records:
            found[keys.number_of(key)].append((key[9:].decode(), msgspec.msgpack.decode(data, type=Mark)))
        self._known = dict(sorted(found[_NAMES], key=lambda item: item[1].done_ms))
        self._outboxes = dict(found[_OUTBOXES])

    def snapshot(self) -> dict[str, tuple[int, int]]:
        """All that is stored of them, comparable."""
        outboxes = {f"\0{name}": mark for name, mark in sorted(self._outboxes.items())}
        return {name: (mark.number, mark.done_ms) for name, mark in (self._known | outboxes).items()}


def _key(name: str) -> bytes:
    return keys.record(Kind.MARK, _NAMES, name.encode())


CLIENTS_MAX = 100_000
UNANSWERED_MAX = 20_000
CLIENT_LENGTH_MAX = 64
_NUMBER_MAX: Final = (1 << 63) - 1
_PREFIX: Final = keys.record(Kind.ONCE)


def _pack_custom(value: Any) -> Any:
    assert isinstance(value, PenstockError), f"{type(value).__name__} cannot be remembered"
    return pack_error(value)


def _unpack_custom(kind: type, value: Any) -> Any:
    return unpack_error(msgspec.convert(value, PackedError))


_encode = msgspec.msgpack.Encoder(enc_hook=_pack_custom).encode
_decoders: dict[type[Command], Callable[[bytes], Any]] = {
    kind: msgspec.msgpack.Decoder(kind.traits.reply, dec_hook=_unpack_custom).decode
    for kind in commands.COMMANDS
    if kind.traits.may_be_named
}


class OnceMemory:
    """What was done for clients that name their commands.

    >>> memory = OnceMemory()
    >>> once, send = Once("c1", 5), commands.Send(queue="orders", bodies=[b"x"])
    >>> memory.check(once, send)
    >>> memory.remember(once, send, commands.Sent(1, 42, 1), now_ms=0)
    True
    >>> memory.recall(once, send)
    (Sent(queue_id=1, first=42, count=1, sequences=None, duplicates=[]),)
    """

    def __init__(self) -> None:
        self._clients: dict[str, OnceClient] = {}
        self.unsaved: dict[str, None] = {}
        """Clients of whom something is new since the last commit."""

    def knows(self, once: Once) -> bool:
        """Whether a command of this name was done."""
        client = self._clients.get(once.client)
        return client is not None and once.number in client.done

    def recall(self, once: Once, command: Command) -> tuple[Any] | None:
        """The reply that a command of this name got, in a tuple; None if none was done."""
        client = self._clients.get(once.client)
        if client is None:
            return None
        done = client.done.get(once.number)
        if done is None:
            return None
        if done.command != type(command).__name__:
            raise InvalidRequest(
                f"command {once.number} of client {once.client!r} was a {done.command}: use a new number"
            )
        return (_decoders[type(command)](done.reply),)

    def check(self, once: Once, command: Command) -> None:
        """Raise what is wrong with a name, before anything is done."""
        if type(command) not in _decoders:
            raise InvalidRequest(f"{type(command).__name__} may come any number of times: it takes no name")
        name, number, answered = once
        client = self._clients.get(name)
        if client is None:
            self._check_name(name)
        if not 0 <= answered <= number <= _NUMBER_MAX:
            raise InvalidRequest(f"command {number} cannot come when all below {answered} are answered")
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                raise OverLimit(f"{CLIENTS_MAX} clients were here in the last five minutes: try again later")
            return
        if number < client.answered:
            raise InvalidRequest(f"command {number} of client {name!r} was answered before")
        if len(client.done) >= UNANSWERED_MAX and answered <= client.answered:
            raise OverLimit(f"{UNANSWERED_MAX} answers are kept for client {name!r}: say which have come")

    @staticmethod
    def _check_name(name: str) -> None:
        if not 1 <= len(name) <= CLIENT_LENGTH_MAX or not name.isascii():
            raise InvalidRequest(f"a client's name has 1 to {CLIENT_LENGTH_MAX} ASCII characters")

    def remember(self, once: Once, command: Command, reply: Any, now_ms: int) -> bool:
        """A command was done. Returns whether it is the client's first."""
        name, number, answered = once
        client = self._clients.get(name)
        is_new = client is None
        if client is None:
            client = self._clients[name] = OnceClient(now_ms, done={})
        client.seen_ms = now_ms
        done = client.done
        if answered > client.answered:
            client.answered = answered
            for earlier in list(done):
                if earlier < answered:
                    del done[earlier]
        done[number] = DoneOnce(type(command).__name__, _encode(reply))
        self.unsaved[name] = None
        return is_new

    def expires_ms(self, name: str) -> int | None:
        """When a client is forgotten, if it stays silent; None if it is already."""
        client = self._clients.get(name)
        return None if client is None else client.seen_ms + DEDUP_WINDOW_MS

    def forget(self, name: str, changes: Changes) -> None:
        if self._clients.pop(name, None) is not None:
            self.unsaved.pop(name, None)
            changes.records[_PREFIX + name.encode()] = None

    # -- stored form --

    def save(self, changes: Changes) -> None:
        """Write what is new since the last commit."""
        for name in self.unsaved:
            changes.records[_PREFIX + name.encode()] = _encode(self._clients[name])
        self.unsaved.clear()

    def restore(self, key: bytes, data: bytes, now_ms: int) -> str:
        """Take a client back from its record. Returns its name."""
        name = key[len(_PREFIX) :].decode()
        client = self._clients[name] = msgspec.msgpack.decode(data, type=OnceClient)
        if client.seen_ms > now_ms:  # the clock was ahead
            client.seen_ms = now_ms
            self.unsaved[name] = None
        return name

    def snapshot(self) -> dict[str, Any]:
        """All that is stored, comparable."""
        return {name: msgspec.to_builtins(client) for name, client in sorted(self._clients.items())}
