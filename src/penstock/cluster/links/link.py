"""A link: the way to another node's shards.

Theory of operation. Commands that are submitted in one turn of the loop leave in one frame in the next, each with a
number; replies come in frames as well, and each settles its call. What the other node has not answered is *in flight*.

    outbox   submitted, not written: the link is not connected, or as much is in flight as the other node takes
    flight   written, not answered

A link connects when it is first used, and again, with a backoff, when it broke: while something waits, and for as long
as the other node keeps the sessions of this one's connections. What becomes of the commands then depends on where they
were: what was never written was not done (`NotReached`, which is a `ShardMoved`: it may be tried elsewhere); of what
was in flight nobody knows (`LinkBroken`).

A receive that is withdrawn before it was written never leaves. Otherwise the other node is told, and gives the messages
back; a reply that had left already is given back from here when it comes. Every number is answered exactly once.

Receives may wait long, and are not counted among what the other node takes: else sends could not come through to the
receives that wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Any

from penstock.cluster.base import LinkBroken, Place, ShardMoved
from penstock.cluster.links.connection import LEFT, LinkConnection, PeerNotTrusted, end_subscription, settle
from penstock.cluster.links.end import Gathered
from penstock.cluster.links.settings import (
    LinkIdentity,
    LinkLimits,
    greets_openly,
    require_secret,
    speaks_tls,
    split_address,
)
from penstock.core.backoff import backoff
from penstock.core.commands import Command, Delivery
from penstock.core.errors import OverLimit, PenstockError
from penstock.server.settings import InvalidSettings
from penstock.server.shard import Call, give_back
from penstock.server.tasks import CallbackCall
from penstock.wire.links import LinkRefused
from penstock.wire.requests import BadFrame

log = logging.getLogger("penstock.link")


class NotReached(ShardMoved):
    """The node could not be reached: the command was not done."""

    def __init__(self, shard: int, map_version: int = 0, address: str = "") -> None:
        super().__init__(shard, map_version)
        self.address = address
        self.args = (f"shard {shard}: the node at {address} cannot be reached; the command was not done",)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.shard, self.map_version, self.address)


class NoSecret(PermissionError):
    """A link that leaves the machine is not even tried without a secret."""


_TRUST_ERRORS = (ssl.SSLError, PeerNotTrusted)
_REFUSED_S = 30.0
"""A node that does not let this one in is not asked again, merely to watch it, for so long."""
_PROBES = 3
"""A node that stops goes away as well, and cannot be reached the next time."""


def _trust_problem(address: str, error: Exception) -> str:
    if isinstance(error, NoSecret):
        return str(error)
    return f"the node at {address} and this one do not trust each other ([cluster] tls_certificate, tls_ca): {error}"


class Link:
    """Takes commands to the shards of the node at an address. A `Place`."""

    def __init__(self, address: str, identity: LinkIdentity, limits: LinkLimits | None = None) -> None:
        self.address = address
        self.identity = identity
        self.limits = limits or LinkLimits()
        self._loop = asyncio.get_running_loop()
        self._outbox: Gathered[CallbackCall] = Gathered(self._flush)
        self._connection: LinkConnection | None = None
        self._connecting: asyncio.Task[Any] | None = None
        """There is one attempt at a time: the other node ends a connection when this process opens another one."""
        self._late: asyncio.TimerHandle | None = None
        """Looks for commands that have waited long enough for a connection."""
        self._missed_until_s = 0.0
        """Until when the other node waits to hear from this one again."""
        self._closed = False
        self.remote_calls: Place | None = None
        """Where messages go back to if the other node does not have their shard any more."""
        self.is_dead = False
        """Whether the other node was silent for too long, or nobody listens where it was. Known only while watched."""
        self._watched_until_s = 0.0
        self._apart_s: float | None = None
        """Since when it is watched, and not connected."""
        self._refused_s = -_REFUSED_S

    @property
    def is_connected(self) -> bool:
        """Whether commands leave at once."""
        return self._connection is not None

    @property
    def waiting(self) -> int:
        """Commands that are not written."""
        return len(self._outbox.items)

    @property
    def in_flight(self) -> int:
        """Commands, waiting receives included, that are not answered."""
        return 0 if self._connection is None else len(self._connection.in_flight)

    # -- a place --

    def submit(
        self, shard: int, command: Command, on_settled: Callable[[Call], None], caller: object = None
    ) -> CallbackCall:
        """Take a command to a shard of the other node. The caller is known there by a number."""
        call = CallbackCall(command, on_settled, 0 if caller is None else id(caller))
        call.shard = shard
        outbox = self._outbox
        if self._closed or len(outbox.items) >= self.limits.outbox_max:
            self._refuse(call)
            return call
        outbox.items.append(call)
        if self._connection is None:
            call.parked_ms = self._now_ms()
            self._connect_soon()
            self._look_for_late()
        elif not outbox.is_due:
            outbox.flush_soon()
        return call

    def withdraw(self, call: CallbackCall) -> None:
        call.on_settled = self._take_back
        if call.number == 0:
            call.number = LEFT
        elif self._connection is not None and self._connection.in_flight.get(call.number) is call:
            self._connection.withdrawn.append(call.number)
            self._outbox.flush_soon()
        else:
            self._take_back(call)

    def give_back(self, shard: int, delivery: Delivery) -> None:
        """Messages that nobody takes are ready again; also if the other node does not have their shard any more."""

        def given_back(call: Call) -> None:
            if isinstance(call.error, ShardMoved) and self.remote_calls is not None:
                self.remote_calls.give_back(shard, delivery)

        self.submit(shard, give_back(delivery), given_back)

    def watch(self, silence_s: float) -> bool:
        """Stay connected, to see whether the other node lives: call it again and again. Returns whether it seems to."""
        now_s = self._loop.time()
        if self._connection is not None or now_s - self._refused_s < _REFUSED_S:  # who refuses lives
            self.is_dead, self._apart_s = False, None
        elif self._watched_until_s < now_s:  # nobody has looked for a while
            self.is_dead, self._apart_s = False, now_s
        elif self._apart_s is None:
            self._apart_s = now_s
        elif now_s - self._apart_s >= silence_s:
            self.is_dead = True
        self._watched_until_s = now_s + silence_s
        if self._apart_s is not None:
            self._connect_soon()
        return not self.is_dead

    async def close(self) -> None:
        """Give up everything: what is in flight, and what waits."""
        self._closed = True
        if self._late is not None:
            self._late.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._connecting
        if self._connection is not None:
            connection = self._connection
            connection.abort()
            await connection.gone.wait()
        waiting, self._outbox.items = self._outbox.items, []
        for call in waiting:
            self._fail(call, NotReached(call.shard, address=self.address))

    def _take_back(self, call: Call) -> None:
        """The reply to a receive that nobody waits for any more."""
        assert isinstance(call, CallbackCall)
        reply, call.reply = call.reply, None
        if isinstance(reply, Delivery) and reply.runs:
            self.give_back(call.shard, reply)

    def _refuse(self, call: CallbackCall) -> None:
        """Settled later, as everything is: never within `submit`."""
        if self._closed:
            call.error = NotReached(call.shard, address=self.address)
        else:
            call.error = OverLimit(
                f"{len(self._outbox.items)} commands wait for the link to {self.address}: try again later"
            )
        self._loop.call_soon(call.settle)

    def _fail(self, call: CallbackCall, error: PenstockError) -> None:
        if call.number != LEFT:
            call.error = error
            settle(call)

    def _now_ms(self) -> int:
        return round(self._loop.time() * 1_000)

    # -- connecting --

    async def probe(self) -> bool:
        """Connect, if the other node can be reached: whether it could. `LinkRefused` if it does not let this one in."""
        if self._connecting is not None:
            self._connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._connecting
        if self._connection is not None:
            return True
        probing = self._loop.create_task(self._probe())
        self._connecting = probing
        probing.add_done_callback(self._probed)
        return await probing

    def _probed(self, _: asyncio.Task[bool]) -> None:
        """Commands came meanwhile."""
        self._connecting = None
        if self._connection is not None:
            self._outbox.flush_soon()
        elif self._outbox.items:
            self._connect_soon()

    async def _probe(self) -> bool:
        for probes in range(1, _PROBES + 1):
            connection: LinkConnection | None = None
            try:
                async with asyncio.timeout(self.limits.handshake_s):
                    connection = await self._reach()
                    self._connection = await self._welcomed(connection)
            except LinkRefused as refusal:
                raise LinkRefused(f"the node at {self.address} refuses this one: {refusal}") from refusal
            except NoSecret as error:
                raise LinkRefused(str(error)) from error
            except _TRUST_ERRORS as error:
                if probes == 1:
                    await self._compare_tls()
                if probes == _PROBES:
                    raise LinkRefused(_trust_problem(self.address, error)) from error
                await asyncio.sleep(self.limits.backoff_max_s)
            except (OSError, TimeoutError, BadFrame):
                if connection is not None:
                    await self._compare_tls()
                return False
            else:
                break
        return True

    async def _compare_tls(self) -> None:
        """`LinkRefused` if the other node has TLS on its links and this one has not, or the other way round."""
        has_tls = self.identity.tls is not None
        is_other_way = greets_openly if has_tls else speaks_tls
        if await is_other_way(*split_address(self.address), self.limits.handshake_s):
            words = "no TLS on its links, but this one has" if has_tls else "TLS on its links, but this one has not"
            raise LinkRefused(
                f"the node at {self.address} has {words} ([cluster] tls_certificate): set it on all nodes, or on none"
            )

    def _connect_soon(self) -> None:
        if self._connecting is None and not self._closed:
            self._connecting = self._loop.create_task(self._connect())

    @property
    def _is_wanted(self) -> bool:
        """A command waits, or the other node does, or somebody watches it."""
        until_s = max(self._missed_until_s, self._watched_until_s)
        return not self._closed and (bool(self._outbox.items) or self._loop.time() < until_s)

    async def _connect(self) -> None:
        """Try, as long as it is wanted."""
        failures = 0
        is_reported = False
        try:
            while self._is_wanted:
                try:
                    async with asyncio.timeout(self.limits.handshake_s):
                        self._connection = await self._dial()
                    break
                except LinkRefused as refusal:
                    self._give_up(refusal)
                except (OSError, TimeoutError, BadFrame) as error:
                    if isinstance(error, (*_TRUST_ERRORS, NoSecret)) and not is_reported:
                        is_reported = True
                        log.error("%s", _trust_problem(self.address, error))
                    log.debug("the node at %s cannot be reached: %s", self.address, error)
                    self.is_dead = self.is_dead or isinstance(error, ConnectionRefusedError)
                    failures += 1
                    if self._is_wanted:
                        await asyncio.sleep(backoff(failures, self.limits.backoff_s, self.limits.backoff_max_s))
        finally:
            self._connecting = None
        if self._connection is not None:
            self._outbox.flush_soon()

    async def _dial(self) -> LinkConnection:
        return await self._welcomed(await self._reach())

    async def _reach(self) -> LinkConnection:
        """A connection. Nothing was said on it yet."""
        try:
            require_secret(self.address, self.identity.secret)
        except InvalidSettings as error:
            raise NoSecret(str(error)) from None
        host, port = split_address(self.address)
        tls = None if self.identity.tls is None else self.identity.tls.client
        _, connection = await self._loop.create_connection(lambda: LinkConnection(self), host, port, ssl=tls)
        return connection

    async def _welcomed(self, connection: LinkConnection) -> LinkConnection:
        """The connection, when the other node has let this one in."""
        try:
            await connection.welcomed
        except BaseException:
            connection.abort()
            raise
        if connection.gone.is_set():  # in the same turn
            raise ConnectionResetError("the other node closed the connection")
        return connection

    def _give_up(self, refusal: LinkRefused) -> None:
        log.error("the node at %s refuses this one: %s", self.address, refusal)
        self._missed_until_s = self._watched_until_s = 0.0
        self._refused_s = self._loop.time()
        waiting, self._outbox.items = self._outbox.items, []
        for call in waiting:
            self._fail(call, LinkRefused(str(refusal)))

    def _look_for_late(self) -> None:
        """Also while it connects: a process that stands still takes connections, and says nothing."""
        if self._late is None and self._outbox.items and not self._closed:
            waited_s = self._loop.time() - self._outbox.items[0].parked_ms / 1_000
            self._late = self._loop.call_later(self.limits.retry_timeout_s - waited_s, self._give_up_late)

    def _give_up_late(self) -> None:
        """Whoever has waited long enough tries elsewhere."""
        self._late = None
        if self._connection is not None:
            return
        until_ms = self._now_ms() - round(self.limits.retry_timeout_s * 1_000)
        waiting = self._outbox.items
        self._outbox.items = [call for call in waiting if call.parked_ms > until_ms and call.number != LEFT]
        for call in waiting:
            if call.parked_ms <= until_ms:
                self._fail(call, NotReached(call.shard, address=self.address))
        self._look_for_late()

    def lost(self, connection: LinkConnection) -> None:
        """A connection that was welcomed is gone."""
        if self._connection is not connection:
            return
        self._connection = None
        in_flight, connection.in_flight = connection.in_flight, {}
        if in_flight and not self._closed:
            log.warning("the link to %s broke with %d commands in flight", self.address, len(in_flight))
        now_ms = self._now_ms()
        for call in self._outbox.items:
            call.parked_ms = call.parked_ms or now_ms
        text = f"the link to {self.address} broke: the command may or may not have been done"
        for call in in_flight.values():
            self._fail(call, LinkBroken(text))
        subscribers, connection.subscribers = connection.subscribers, {}
        for ticket in subscribers.values():
            end_subscription(ticket, LinkBroken(f"the link to {self.address} broke: subscribe again"))
        self._missed_until_s = self._loop.time() + self.limits.session_grace_s
        self._connect_soon()
        self._look_for_late()

    # -- writing --

    def _flush(self) -> None:
        connection = self._connection
        if connection is None or connection.is_paused:
            return
        calls = self._outbox.items
        if calls:
            if len(calls) > connection.in_flight_max - connection.busy:
                calls, self._outbox.items = connection.choose(calls)
            else:
                self._outbox.items = []
        if calls or connection.withdrawn:
            connection.write(calls)

    def resume(self) -> None:
        """There is room again."""
        if self._outbox.items or (self._connection is not None and self._connection.withdrawn):
            self._outbox.flush_soon()
