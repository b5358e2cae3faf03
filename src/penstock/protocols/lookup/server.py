"""The nodes' connections: each tells what it has, and that it is alive.

A connection is closed when it does not introduce itself in time, sends what cannot be followed, or is silent for longer
than a living node is. What it registered goes with it; a node that lives comes again and registers again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import cast

import msgspec

from penstock.protocols.lookup.registry import Identity, Load, Peer, Registry, TooManyNames
from penstock.protocols.lookup.wire import LOADS, CommandReader, LookupCommand, Refusal, response
from penstock.protocols.nsq.wire import is_name
from penstock.server.budget import FITS, backlog, room_for
from penstock.server.settings import LookupSettings

log = logging.getLogger("penstock.lookup")

IDENTIFY_TIMEOUT_S = 10.0
_SWEEP_S = 1.0
_BACKLOG = 1_024
_COMMANDS_AT_ONCE = 500
"""Followed for one node in one turn of the loop."""
_LOADS = msgspec.json.Decoder(dict[str, Load])
_IDENTITY = msgspec.json.Decoder(Identity)
_OK = response(b"OK")


class LookupAnswer(msgspec.Struct, frozen=True):
    """What a node hears of the service when it introduces itself."""

    tcp_port: int
    http_port: int
    version: str
    broadcast_address: str
    hostname: str
    commands: tuple[str, ...] = (LOADS,)
    """Those that nsqlookupd does not have."""


class LookupServer:
    """Listens for nodes. All in one event loop."""

    def __init__(self, settings: LookupSettings, registry: Registry) -> None:
        self._settings = settings
        self.registry = registry
        self.answer = b"{}"
        """To IDENTIFY."""
        self._connections: set[LookupConnection] = set()
        self._listener: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> int:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: LookupConnection(self),
            self._settings.host,
            self._settings.tcp_port,
            backlog=backlog(_BACKLOG),
            family=socket.AF_UNSPEC,
        )
        self._sweep()
        return int(self._listener.sockets[0].getsockname()[1])

    def introduce(self, answer: LookupAnswer) -> None:
        """What nodes shall hear, once the ports are known."""
        self.answer = msgspec.json.encode(answer)

    def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._connections):
            connection.close()

    @property
    def connections_open(self) -> int:
        return len(self._connections)

    def admit(self, connection: LookupConnection) -> bool:
        """Note a new connection; False if it is one too many."""
        self._connections.add(connection)
        return len(self._connections) <= self._settings.connections_max

    def forget(self, connection: LookupConnection) -> None:
        self._connections.discard(connection)

    def _sweep(self, due_s: float = 0.0) -> None:
        """Give up who is silent; but a process that stood still reads what has come meanwhile first."""
        loop, now_s = asyncio.get_running_loop(), time.monotonic()
        self._timer = loop.call_later(_SWEEP_S, self._sweep, loop.time() + _SWEEP_S)
        if due_s and loop.time() - due_s > _SWEEP_S / 2:
            return
        silence_s = self._settings.inactive_producer_timeout_s
        for connection in [each for each in self._connections if each.is_overdue(now_s, silence_s)]:
            connection.expire()


class LookupConnection(asyncio.Protocol):
    """One node. Made by `LookupServer`."""

    def __init__(self, server: LookupServer) -> None:
        self._server = server
        self._reader = CommandReader()
        self._transport: asyncio.Transport | None = None
        self._address = ""
        self._peer: Peer | None = None
        self._since_s = time.monotonic()
        self._commands: Iterator[LookupCommand] = iter(())
        """What was sent and not yet followed."""
        self._is_behind = False
        self._is_write_paused = False
        self._is_read_paused = False

    # -- the transport's calls --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, or refuse if there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if not self._server.admit(self) or room_for(transport) != FITS:
            self._refuse(Refusal("E_INVALID", "too many connections"))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._server.forget(self)
        if self._peer is not None:
            log.info("%s disconnected: %s", _described(self._peer), error or "it closed the connection")
            self._server.registry.remove(self._peer)

    def data_received(self, data: bytes) -> None:
        """Follow the commands that are complete."""
        self._commands = itertools.chain(self._commands, self._reader.feed(data))
        if not self._is_behind:
            self._go_on()

    def _go_on(self) -> None:
        """Follow some commands, and leave the rest for the loop's next turn: others are waiting, too."""
        self._is_behind = False
        if self._transport is None or self._transport.is_closing():
            return
        replies: list[bytes] = []
        try:
            for command in itertools.islice(self._commands, _COMMANDS_AT_ONCE):
                replies.append(self._follow(command))
        except Refusal as refusal:
            self._transport.writelines(replies)
            self._refuse(refusal)
            return
        self._is_behind = len(replies) == _COMMANDS_AT_ONCE
        if self._is_behind:
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self._commands = iter(())
        self._transport.writelines(replies)
        self._apply_backpressure()

    def pause_writing(self) -> None:
        """The node does not read our answers: it is not read from either."""
        self._is_write_paused = True
        self._apply_backpressure()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._apply_backpressure()

    def _apply_backpressure(self) -> None:
        """Read from the node only when it is its turn."""
        shall_pause = self._is_behind or self._is_write_paused
        if self._transport is not None and shall_pause != self._is_read_paused and not self._transport.is_closing():
            self._is_read_paused = shall_pause
            (self._transport.pause_reading if shall_pause else self._transport.resume_reading)()

    # -- the server's calls --

    def is_overdue(self, now_s: float, silence_s: float) -> bool:
        """Whether a living node would have said something by now."""
        if self._peer is None:
            return now_s - self._since_s > IDENTIFY_TIMEOUT_S
        return now_s - self._peer.seen_s > silence_s

    def expire(self) -> None:
        """Give the node up."""
        if self._peer is not None:
            log.warning("%s is silent: closing its connection", _described(self._peer))
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """The service ends."""
        if self._transport is not None:
            self._transport.close()

    # -- commands --

    def _refuse(self, refusal: Refusal) -> None:
        assert self._transport is not None
        log.warning("%s is refused: %s", self._address, refusal)
        self._transport.write(response(str(refusal).encode()))
        self._transport.close()

    def _follow(self, command: LookupCommand) -> bytes:
        handler = _COMMANDS.get(command.name)
        if handler is None:
            raise Refusal("E_INVALID", f"invalid command {command.name[:64]}")
        return handler(self, command)

    def _ping(self, command: LookupCommand) -> bytes:
        if self._peer is not None:
            self._peer.seen_s = time.monotonic()
        return _OK

    def _identify(self, command: LookupCommand) -> bytes:
        if self._peer is not None:
            raise Refusal("E_INVALID", "cannot IDENTIFY again")
        try:
            identity = _IDENTITY.decode(command.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Refusal("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
        if not (identity.broadcast_address and identity.tcp_port and identity.http_port and identity.version):
            raise Refusal("E_BAD_BODY", "IDENTIFY missing fields")
        self._peer = Peer(identity, self._address, time.monotonic())
        self._server.registry.add(self._peer)
        log.info("%s connected", _described(self._peer))
        return response(self._server.answer)

    def _register(self, command: LookupCommand) -> bytes:
        peer, topic, channel = self._named(command)
        try:
            self._server.registry.register(peer, topic, channel)
        except TooManyNames as error:
            return response(f"E_REGISTER_FAILED {error}".encode())
        return _OK

    def _unregister(self, command: LookupCommand) -> bytes:
        self._server.registry.unregister(*self._named(command))
        return _OK

    def _loads(self, command: LookupCommand) -> bytes:
        peer = self._identified()
        try:
            self._server.registry.note_loads(peer, _LOADS.decode(command.body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Refusal("E_BAD_BODY", "LOADS failed to decode JSON body") from None
        peer.seen_s = time.monotonic()
        return _OK

    def _identified(self) -> Peer:
        if self._peer is None:
            raise Refusal("E_INVALID", "client must IDENTIFY")
        return self._peer

    def _named(self, command: LookupCommand) -> tuple[Peer, str, str | None]:
        peer = self._identified()
        if not command.arguments:
            raise Refusal("E_INVALID", f"{command.name} insufficient number of params")
        topic = command.arguments[0]
        channel = command.arguments[1] if len(command.arguments) > 1 else ""
        if not is_name(topic):
            raise Refusal("E_BAD_TOPIC", f"{command.name} topic name '{topic}' is not valid")
        if channel and not is_name(channel):
            raise Refusal("E_BAD_CHANNEL", f"{command.name} channel name '{channel}' is not valid")
        return peer, topic, channel or None


_COMMANDS: dict[str, Callable[[LookupConnection, LookupCommand], bytes]] = {
    "PING": LookupConnection._ping,
    "IDENTIFY": LookupConnection._identify,
    "REGISTER": LookupConnection._register,
    "UNREGISTER": LookupConnection._unregister,
    LOADS: LookupConnection._loads,
}


def _described(peer: Peer) -> str:
    identity = peer.identity
    name = f"{identity.broadcast_address}:{identity.tcp_port}"
    return f"{name if name.isprintable() else ascii(name)} ({peer.remote_address})"
