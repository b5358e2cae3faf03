"""Commands that are done once, however often they come: what a client over a network needs when an answer is lost.

A client names its commands: its own name, and a number that it counts up (`Once`). The reply to each is remembered,
committed together with what the command did, and given again when the same name comes again. With every command the
client says up to which number it has got its answers; what is below is forgotten. So little is remembered: about as
much as is in flight. A client that is silent for five minutes is forgotten: it must not repeat anything older.
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
from penstock.core.storage.records import DoneOnce, OnceClient

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
            raise InvalidRequest(f"command {once.number} of client {once.client!r} was a {done.command}: count on")
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
        """Forget a client."""
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
