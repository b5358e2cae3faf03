"""Tells lookup services what this node has: a long-lived connection to each of them, and its state pushed over it.

How it works. The registration knows every topic and channel of the node, as pairs `(topic, channel)`, with None for the
topic itself. It hears of changes at once, through `note`; and it looks at all of them at every heartbeat, so that what
it might have missed lasts no longer than that. A change goes to every lookup as REGISTER or UNREGISTER; with each
heartbeat goes a PING and, if the lookup is ours, what waits here now (LOADS).

A lookup that cannot be reached is tried again and again, after growing pauses. Whoever has just connected is told
everything. So lookups need no disk, and need not know each other.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable

import msgspec

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
_LOADS_BYTES_AT_ONCE = wire.BODY_BYTES_MAX // 4
_READ_BYTES = 64 * 1024

Pair = tuple[str, str | None]
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
        self.known: set[Pair] = set()
        self.loads: State = {}
        self._read_state = read_state
        self._heartbeat_s = heartbeat_s
        self._peers: dict[str, LookupPeer] = {}
        self._noted: set[Pair] | None = None
        """What was noted during a look: that is newer than what the look saw."""
        self._beating: asyncio.Task[None] | None = None

    @property
    def addresses(self) -> list[str]:
        """The lookup services that are told, each HOST:PORT."""
        return list(self._peers)

    @property
    def peers(self) -> list[LookupPeer]:
        """The connections to them."""
        return list(self._peers.values())

    def start(self, addresses: Iterable[str]) -> None:
        """Begin to tell these lookup services."""
        self.set_addresses(addresses)
        self._beating = asyncio.create_task(self._beat())

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Tell these from now on, and no others."""
        wanted = dict.fromkeys(addresses)
        if wanted:
            self.look()
        for address in [each for each in self._peers if each not in wanted]:
            self._peers.pop(address).stop()
        for address in wanted:
            if address not in self._peers:
                self._peers[address] = LookupPeer(address, self)

    def stop(self) -> None:
        """Hang up: the lookup services name this node no longer."""
        self.set_addresses([])
        if self._beating is not None:
            self._beating.cancel()

    def note(self, topic: str, channel: str | None, is_there: bool) -> None:
        """A topic or a channel has come, or gone."""
        if channel is not None and is_there:
            self._change((topic, None), True)
        if channel is None and not is_there:
            for pair in [each for each in self.known if each[0] == topic and each[1] is not None]:
                self._change(pair, False)
        self._change((topic, channel), is_there)

    def look(self) -> None:
        """See what the node has now."""
        self._take(dict(self._read_state()))

    async def look_in_passing(self) -> None:
        """As `look`, letting others have their turn in between: there may be many topics."""
        self._noted = set()
        try:
            state: State = {}
            for topic, load in self._read_state():
                state[topic] = load
                if len(state) % _TOPICS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            self._take(state, but=self._noted)
        finally:
            self._noted = None

    def _take(self, state: State, but: Iterable[Pair] = ()) -> None:
        found: set[Pair] = {(topic, None) for topic in state}
        found |= {(topic, channel) for topic, load in state.items() for channel in load.channels}
        for pair in (found ^ self.known).difference(but):
            self._change(pair, pair in found)
        self.loads = state

    def _change(self, pair: Pair, is_there: bool) -> None:
        if self._noted is not None:
            self._noted.add(pair)
        if (pair in self.known) == is_there:
            return
        (self.known.add if is_there else self.known.discard)(pair)
        for peer in self._peers.values():
            peer.tell(pair)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            if self._peers:
                await self.look_in_passing()
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
        self._pending: set[Pair] = set()
        self._is_beat_due = False
        self._woken = asyncio.Event()
        self._registered: set[Pair] = set()
        self._told_loads: State = {}
        self._writer: asyncio.StreamWriter
        self._answers: asyncio.Queue[bytes | None]
        """None: there will be no more."""
        self._is_lost = False
        self._pause_s = BACKOFF_S_MIN
        self._task = asyncio.create_task(self._keep_connected())

    def tell(self, pair: Pair) -> None:
        """Something has come or gone."""
        if self.info is not None:
            self._pending.add(pair)
            self._woken.set()

    def beat(self) -> None:
        """Time for a sign of life."""
        self._is_beat_due = True
        self._woken.set()

    def stop(self) -> None:
        """Hang up."""
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
            await asyncio.sleep(self._pause_s * random.uniform(0.5, 1.0))
            self._pause_s = min(self._pause_s * 2, BACKOFF_S_MAX)

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
        self._registered, self._told_loads = set(), {}
        (answer,) = await self._ask([wire.MAGIC + wire.identify(self._registration.identity)])
        if answer.startswith(b"E_"):
            raise Refusal(answer.decode(errors="replace"))
        self.info = _INFO.decode(answer)
        self._pause_s = BACKOFF_S_MIN
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
        pairs, self._pending = self._pending, set()
        known = self._registration.known
        gone = sorted(pairs & self._registered - known, key=_channels_first)
        come = sorted(pairs & known - self._registered, key=_channels_first, reverse=True)
        self._registered = self._registered.difference(gone).union(come)
        commands = [wire.unregister(*pair) for pair in gone] + [wire.register(*pair) for pair in come]
        for at in range(0, len(commands), _COMMANDS_AT_ONCE):
            for answer in await self._ask(commands[at : at + _COMMANDS_AT_ONCE]):
                if answer != b"OK":
                    log.warning("lookup %s: %s", self.address, answer.decode(errors="replace"))

    async def _push_loads(self) -> None:
        """What waits here, as far as it has changed."""
        loads = self._registration.loads
        changed = [(topic, load) for topic, load in loads.items() if self._told_loads.get(topic) != load]
        self._told_loads = loads
        for body in _bodies(changed):
            await self._ask([wire.loads(body)])

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


def _channels_first(pair: Pair) -> tuple[bool, str, str]:
    return pair[1] is None, pair[0], pair[1] or ""


def _bodies(loads: Iterable[tuple[str, Load]]) -> Iterable[bytes]:
    """Loads as JSON, in pieces that a lookup service takes."""
    gathered: list[bytes] = []
    size = 0
    for topic, load in loads:
        entry = msgspec.json.encode(topic) + b":" + msgspec.json.encode(load)
        if gathered and size + len(entry) > _LOADS_BYTES_AT_ONCE:
            yield b"{" + b",".join(gathered) + b"}"
            gathered, size = [], 0
        gathered.append(entry)
        size += len(entry)
    if gathered:
        yield b"{" + b",".join(gathered) + b"}"
