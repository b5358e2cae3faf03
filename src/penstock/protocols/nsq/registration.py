"""Tells lookup services what this node has: a long-lived connection to each of them, and its state pushed over it.

How it works. The registration knows every topic of the node, with its channels. It hears of changes at once, through
`note`; and it looks at all of them at every heartbeat, so that what it might have missed lasts no longer than that; if
they are very many, at some of the heartbeats. A change goes to every lookup as REGISTER or UNREGISTER; with each
heartbeat goes a PING and, if the lookup is ours, what waits here now (LOADS).

A lookup that cannot be reached is tried again and again, after growing pauses. Whoever has just connected is told
everything. So lookups need no disk, and need not know each other.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable

import msgspec

from penstock.core.backoff import backoff
from penstock.protocols.lookup import wire
from penstock.protocols.lookup.registry import Identity, Load
from penstock.protocols.lookup.wire import LOADS, Refusal, ResponseReader
from penstock.server.settings import parse_address

log = logging.getLogger("penstock.nsq.lookup")

CONNECT_TIMEOUT_S = 5.0
RESPONSE_TIMEOUT_S = 5.0
BACKOFF_S_MIN = 0.1
BACKOFF_S_MAX = 15.0
_COMMANDS_AT_ONCE = 500
_TOPICS_AT_ONCE = 100
_LOOKING_SHARE_MAX = 0.05
"""Of the time, for looking at all topics: where there are very many, that is not done with every heartbeat."""
_LOADS_BYTES_AT_ONCE = wire.BODY_BYTES_MAX // 4
_READ_BYTES = 64 * 1024

State = dict[str, Load]
"""Every topic that the node has, with its channels."""


class LookupInfo(msgspec.Struct, frozen=True):
    """How a lookup service introduces itself."""

    tcp_port: int = 0
    http_port: int = 0
    version: str = ""
    broadcast_address: str = ""
    hostname: str = ""
    commands: tuple[str, ...] = ()
    """Those that it knows beyond nsqlookupd's."""


_INFO = msgspec.json.Decoder(LookupInfo)


class LookupRegistration:
    """This node, as the lookup services know it."""

    def __init__(
        self, identity: Identity, read_state: Callable[[], Iterable[tuple[str, Load]]], heartbeat_s: float
    ) -> None:
        self.identity = identity
        self.known: dict[str, set[str]] = {}
        """Every topic that the node has, with the names of its channels."""
        self.loads: State = {}
        self._read_state = read_state
        self._heartbeat_s = heartbeat_s
        self._peers: dict[str, LookupPeer] = {}
        self._noted: set[str] | None = None
        """The topics that were noted during a look: that is newer than what the look saw."""
        self._beating: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        """The first look."""

    @property
    def addresses(self) -> list[str]:
        """The lookup services that are told, each HOST:PORT."""
        return list(self._peers)

    @property
    def peers(self) -> list[LookupPeer]:
        return list(self._peers.values())

    def start(self, addresses: Iterable[str]) -> None:
        """Begin to tell these lookup services."""
        self.set_addresses(addresses)
        self._beating = asyncio.create_task(self._beat())

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Tell these from now on, and no others."""
        wanted = dict.fromkeys(addresses)
        for address in [each for each in self._peers if each not in wanted]:
            self._peers.pop(address).stop()
        for address in wanted:
            if address not in self._peers:
                self._peers[address] = LookupPeer(address, self)
        if wanted and self._looking is None:
            self._looking = asyncio.create_task(self._look_first())

    def stop(self) -> None:
        """Hang up: the lookup services name this node no longer."""
        self.set_addresses([])
        for task in (self._beating, self._looking):
            if task is not None:
                task.cancel()

    def note(self, topic: str, channel: str | None, is_there: bool) -> None:
        """A topic or a channel has come, or gone."""
        if self._noted is not None:
            self._noted.add(topic)
        channels = self.known.get(topic)
        if is_there:
            self._know(topic, (channels or set()) | ({channel} if channel is not None else set()))
        elif channel is None:
            self._know(topic, None)
        elif channels is not None:
            self._know(topic, channels - {channel})

    async def look(self) -> None:
        """See what the node has now, letting others have their turn in between: there may be many topics.

        What was noted meanwhile is newer than what was seen, and stays.
        """
        noted = self._noted = set()
        try:
            state: State = {}
            for count, (topic, load) in enumerate(self._read_state(), 1):
                state[topic] = load
                if topic not in noted:
                    self._know(topic, set(load.channels))
                if count % _TOPICS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            for count, topic in enumerate(list(self.known), 1):
                if topic not in state and topic not in noted:
                    self._know(topic, None)
                if count % _TOPICS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            self.loads = state
        finally:
            self._noted = None

    def _know(self, topic: str, channels: set[str] | None) -> None:
        """A topic has these channels; None: there is no such topic."""
        if self.known.get(topic) == channels:
            return
        if channels is None:
            del self.known[topic]
        else:
            self.known[topic] = channels
        for peer in self._peers.values():
            peer.tell(topic)

    async def _look_first(self) -> None:
        await self.look()
        for peer in self._peers.values():
            peer.beat()

    async def _beat(self) -> None:
        next_look_s = 0.0
        while True:
            await asyncio.sleep(self._heartbeat_s)
            began_s = time.monotonic()
            if self._peers and self._noted is None and began_s >= next_look_s:
                await self.look()
                next_look_s = began_s + (time.monotonic() - began_s) / _LOOKING_SHARE_MAX
            for peer in self._peers.values():
                peer.beat()


class LookupPeer:
    """One lookup service, and the task that keeps the connection to it."""

    def __init__(self, address: str, registration: LookupRegistration) -> None:
        self.address = address
        self.info: LookupInfo | None = None
        """Who answers; None while nobody does."""
        self._host, self._port = parse_address(address, "the lookup service")
        self._registration = registration
        self._pending: set[str] = set()
        """Topics of which something has come or gone."""
        self._is_beat_due = False
        self._woken = asyncio.Event()
        self._registered: dict[str, set[str]] = {}
        self._told_loads: State = {}
        self._writer: asyncio.StreamWriter
        self._answers: asyncio.Queue[bytes | None]
        """None: there will be no more."""
        self._is_lost = False
        self._failures = 0
        self._task = asyncio.create_task(self._keep_connected())

    def tell(self, topic: str) -> None:
        """A topic, or channels of it, have come or gone."""
        if self.info is not None:
            self._pending.add(topic)
            self._woken.set()

    def beat(self) -> None:
        """Time for a sign of life."""
        self._is_beat_due = True
        self._woken.set()

    def stop(self) -> None:
        self._task.cancel()

    async def _keep_connected(self) -> None:
        was_told = False
        while True:
            try:
                await self._serve()
            except (OSError, EOFError, Refusal, msgspec.DecodeError, UnicodeDecodeError) as error:
                if self.info is not None or not was_told:
                    log.warning("lookup %s: %s: trying again", self.address, str(error) or type(error).__name__)
                was_told = True
            except Exception:
                log.exception("lookup %s", self.address)
            finally:
                self.info = None
            self._failures += 1
            await asyncio.sleep(backoff(self._failures, BACKOFF_S_MIN, BACKOFF_S_MAX, jitter=random.random() / 2))

    async def _serve(self) -> None:
        """Connect, tell everything, then what changes; until something fails."""
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, self._writer = await asyncio.open_connection(self._host, self._port)
        self._answers, self._is_lost = asyncio.Queue(), False
        reading = asyncio.create_task(self._read(reader))
        try:
            await self._introduce()
            while not self._is_lost:
                await self._push()
                await self._woken.wait()
            raise EOFError("the connection was closed")
        finally:
            reading.cancel()
            self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Gather the answers, and notice the end at once."""
        responses = ResponseReader()
        try:
            while data := await reader.read(_READ_BYTES):
                for answer in responses.feed(data):
                    self._answers.put_nowait(answer)
        except (OSError, Refusal) as error:
            log.debug("lookup %s: %s", self.address, error)
        self._is_lost = True
        self._answers.put_nowait(None)
        self._woken.set()

    async def _introduce(self) -> None:
        self._registered, self._told_loads = {}, {}
        (answer,) = await self._ask([wire.MAGIC + wire.identify(self._registration.identity)])
        if answer.startswith(b"E_"):
            raise Refusal(answer.decode(errors="replace"))
        self.info = _INFO.decode(answer)
        self._failures = 0
        self._pending = set(self._registration.known)
        self._is_beat_due = True
        log.info("lookup %s: connected", self.address)

    async def _push(self) -> None:
        self._woken.clear()
        if self._pending:
            await self._push_changes()
        if self._is_beat_due:
            self._is_beat_due = False
            await self._ask([wire.ping()])
            if self.info is not None and LOADS in self.info.commands:
                await self._push_loads()

    async def _push_changes(self) -> None:
        """What has come or gone; as much at a time as one answer is waited for."""
        while self._pending:
            commands: list[bytes] = []
            while self._pending and len(commands) < _COMMANDS_AT_ONCE:
                commands += self._changes_of(self._pending.pop())
            for answer in await self._ask(commands):
                if answer != b"OK":
                    log.warning("lookup %s: %s", self.address, answer.decode(errors="replace"))

    def _changes_of(self, topic: str) -> list[bytes]:
        """What the lookup service has to be told of a topic: channels go before it, and come after it."""
        known, told = self._registration.known.get(topic), self._registered.pop(topic, None)
        commands = [wire.unregister(topic, channel) for channel in sorted((told or set()) - (known or set()))]
        if known is None:
            return commands if told is None else [*commands, wire.unregister(topic, None)]
        self._registered[topic] = known
        if told is None:
            commands.append(wire.register(topic, None))
        return commands + [wire.register(topic, channel) for channel in sorted(known - (told or set()))]

    async def _push_loads(self) -> None:
        """What waits here, as far as it has changed."""
        loads, told, self._told_loads = self._registration.loads, self._told_loads, self._registration.loads
        gathered: list[bytes] = []
        size = 0
        for count, (topic, load) in enumerate(loads.items(), 1):
            if told.get(topic) != load:
                gathered.append(msgspec.json.encode(topic) + b":" + msgspec.json.encode(load))
                size += len(gathered[-1])
            if size > _LOADS_BYTES_AT_ONCE:
                await self._ask([wire.loads(b"{" + b",".join(gathered) + b"}")])
                gathered, size = [], 0
            elif count % _TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
        if gathered:
            await self._ask([wire.loads(b"{" + b",".join(gathered) + b"}")])

    async def _ask(self, commands: list[bytes]) -> list[bytes]:
        """Send commands, and wait for the answer to each."""
        self._writer.writelines(commands)
        answers: list[bytes] = []
        async with asyncio.timeout(RESPONSE_TIMEOUT_S):
            await self._writer.drain()
            for _ in commands:
                answer = await self._answers.get()
                if answer is None:
                    raise EOFError("the connection was closed")
                answers.append(answer)
        return answers
