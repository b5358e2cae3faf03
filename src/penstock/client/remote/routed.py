"""Commands straight to the owners of their queues: a caller with a connection to each node of a cluster that it needs.

How it works. Every node takes every command, and forwards what is another node's: a command that goes to the wrong node
is done all the same. So the map of who owns what (`partitions.py`) only says which way is short, and may be old. All
commands about one queue are a *lane* (`lanes.py`), and a lane goes through one connection at a time. It begins at the
first connection, the one to the server that was named. As soon as it is known that the queue has one partition, and a
connection to its owner stands, it changes over.

A lane never lets a later command overtake an earlier one. If the connection that it leaves stands, new commands wait
until those before them are answered. If it is lost, those without an answer go along, under the names that they have
(`member.py`). Receives that wait at a node stay there: the node sees to it that they are answered.

A node that is gone to because the map says that it owns the queue is told so (`Route`), and by which map. If it knows a
newer one by which the queue is another node's, it does not do the command, and says so. Then the lane stops; the map is
fetched from that node; when everything that the lane has at the node is answered, what was refused goes to the new
owner, under its old names and in its old order, and everything else follows. Where that does not lead anywhere,
`_TRIES_MAX` times or because there is no newer map, the node is asked to forward. So it is while the map must not be
asked for, because it has just been: nobody waits for that.

Over a websocket all that a lane has at a node is in one order, and refusals keep it. Who polls has several requests on
their way at a time, which may overtake each other, refused or not; what leaves together stays in order.

When a connection is lost, its lanes go through the first one; if it is that which is lost, through any that stands. The
map is asked for every `REFRESH_S`; after a refusal at once, but not again within `_CATCH_UP_S`; after a loss, or an
error of a store, at once, and again after growing pauses.

Not routed: sessions that were opened by name, since only the node at which they were opened knows them; and queues with
prefetching. Both stay with the first connection. So do queues with several partitions: no single node has them.

Everything here happens in the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import msgspec

from penstock.client.listening import PushTarget
from penstock.client.remote.address import Address, Options, TransportName
from penstock.client.remote.caller import RemoteCaller, RemoteIdentity, places_of
from penstock.client.remote.http import HttpConnection
from penstock.client.remote.lanes import ANYWHERE, Lane, RoutedCall, RoutedStream, lane_of
from penstock.client.remote.member import MemberCaller, Taken
from penstock.client.remote.request import Calling, Outstanding, Pages, Settle
from penstock.client.remote.stream import Stream
from penstock.client.remote.websocket import tls_of
from penstock.core.backoff import backoff
from penstock.core.commands import (
    Browse,
    Command,
    Damage,
    DeleteQueue,
    Delivery,
    DescribeQueue,
    GiveBack,
    QueueInfo,
    Receive,
)
from penstock.core.errors import NotSent, OutcomeUnknown, PenstockError, QueueNotFound, StoreError
from penstock.core.queues.partition import partition_of

_PATH = "/get_partitions"
_SCHEMES = {"http": False, "https": True}


class Partitions(msgspec.Struct, frozen=True):
    """One version of the map.

    >>> there = Partitions(7, ["a"], {"a": "http://one:9325"})
    >>> there.owner("orders", is_tls=False)
    Address(host='one', port=9325, is_tls=False)
    >>> there.owner("orders", is_tls=True) is None
    True
    """

    version: int
    owners: list[str]
    """The node that owns each partition."""
    nodes: dict[str, str]
    """The URL of each node."""

    def owner(self, queue: str, *, is_tls: bool) -> Address | None:
        """Where a queue's owner is reached; None if that is not known, or not by TLS where TLS is wanted."""
        try:
            node = self.owners[partition_of(queue, len(self.owners))]
        except (UnicodeEncodeError, ZeroDivisionError):
            return None
        return self._address(node, is_tls)

    def addresses(self, *, is_tls: bool) -> list[Address]:
        """Where nodes are reached."""
        found = [self._address(node, is_tls) for node in self.nodes]
        return [address for address in found if address is not None]

    def _address(self, node: str, is_tls: bool) -> Address | None:
        try:
            parts = urlsplit(self.nodes.get(node, ""))
            port = parts.port
        except ValueError:
            return None
        if parts.scheme not in _SCHEMES or not parts.hostname or port is None:
            return None
        if is_tls and not _SCHEMES[parts.scheme]:
            return None  # a token that was given for TLS does not leave without it
        return Address(parts.hostname, port, _SCHEMES[parts.scheme])


async def fetch_partitions(address: Address, options: Options) -> Partitions:
    """Ask a server for the map. `NotSent` if it does not tell."""
    try:
        async with asyncio.timeout(options.quick().connect_timeout):
            connection = await HttpConnection.open(address, tls_of(address, options))
            try:
                headers = {} if options.token is None else {"Authorization": f"Bearer {options.token}"}
                response = await connection.post(_PATH, headers, b"")
            finally:
                connection.close()
    except (OSError, TimeoutError) as error:
        raise NotSent(f"{address} does not tell where queues are: {error or 'no answer'}") from None
    if response.status != 200:
        raise NotSent(f"{address} does not tell where queues are: it answers {response.status}")
    try:
        return msgspec.json.decode(response.body, type=Partitions)
    except msgspec.MsgspecError as error:
        raise NotSent(f"{address} does not tell where queues are: {error}") from None


log = logging.getLogger("penstock.client")

REFRESH_S = 30.0
"""How often the map is asked for."""
_FIRST_REFRESH_S = 0.25
"""How soon it is asked for again after something has gone wrong; twice as long each time."""
_CATCH_UP_S = 0.5
"""How soon it is asked for again because of a refusal."""
_ASK_AGAIN_S = 1.0
"""How soon a queue that was not there is asked about again."""
_BELIEVED_S = 300.0
"""How long it is believed how many partitions a queue has."""
_LANES_MAX = 10_000
_TRIES_MAX = 3
"""How often in a row a lane's commands may be refused before they are forwarded: until one of them is done."""


class RoutingCounts(msgspec.Struct):
    """What has become of the map so far."""

    refreshes: int = 0
    """How often it was asked for, and told."""
    refusals: int = 0
    """Commands that a node did not do, because it does not own their queue any more."""
    redirects: int = 0
    """How often a queue's commands were taken from a node that refused them to another one."""
    forwards: int = 0
    """How often they were left to that node all the same, to be forwarded."""


class RoutedCaller(Calling):
    """Carries commands to the owners of their queues. `await RoutedCaller.connect(...)` makes one that is connected."""

    read_only = False

    def __init__(self, address: Address, options: Options) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self.identity = RemoteIdentity()
        self._home = MemberCaller(address, options, self)
        self._members: dict[Address, MemberCaller] = {address: self._home}
        """Connections that stand; the first one stays here also while it is lost."""
        self._opening: dict[Address, asyncio.Task[None]] = {}
        self._unreachable: set[Address] = set()
        """Nodes that could not be reached since the map was last asked for."""
        self._lanes: dict[str, Lane] = {}
        self._partitions: Partitions | None = None
        self._told_by = address
        """Who told the map."""
        self._version = 0
        """Counts what may change where a lane goes: maps, connections."""
        self._refreshes = 99
        """How often the map was asked for since something was wrong: each time after a longer pause."""
        self._timer: asyncio.TimerHandle | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._catching_up: asyncio.Task[None] | None = None
        """Asks the node that has refused something for the map."""
        self._caught_up_s = float("-inf")
        """When that was done last."""
        self._catch_up_timer: asyncio.TimerHandle | None = None
        self._wanted_version = 0
        """The newest map that a node was heard to have."""
        self._is_redirect_planned = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.counts = RoutingCounts()

    @classmethod
    async def connect(cls, address: Address, options: Options) -> RoutedCaller:
        """A caller that is connected to a server that was named, and has asked for the map."""
        places = await places_of(address.servers)
        while True:
            home = places.pop(0)
            caller = cls(replace(home, others=address.servers), options)
            try:
                await caller._home.open()
                break
            except (PenstockError, OSError) as error:
                if not places:
                    raise
                log.info("%s", error)
        try:
            await caller._refresh()
        except BaseException:  # who waited has left, and nobody else would end the connection
            await caller.close()
            raise
        caller._refresh_later()
        return caller

    # -- for the API --

    def submit(self, command: Command, settle: Settle) -> Outstanding:
        if type(command) is Browse:
            return self._submit(command, Pages(command, self._submit, settle).settle)
        return self._submit(command, settle)

    def _submit(self, command: Command, settle: Settle) -> Outstanding:
        lane = self._lane_for(command)
        call = RoutedCall(command, settle, lane, self._noted)
        if lane is None or self._closed:
            call.lane = None
            self._give(call, self._home)
            return call
        if lane.version != self._version:
            self._arrange(lane)
        if lane.refused or (type(command) is not Receive and lane.is_draining):
            lane.line.join(call)
        else:
            self._give(call, lane.caller)
        return call

    def _give(self, call: RoutedCall, caller: MemberCaller) -> None:
        call.count()
        is_whole = type(call.command) is Browse  # its pages are gathered here
        call.carried = (caller.carry if is_whole else caller.submit)(call.command, call.settled)

    def withdraw(self, outstanding: Outstanding) -> None:
        assert isinstance(outstanding, RoutedCall)
        outstanding.settle = _ignore
        carried, lane = outstanding.carried, outstanding.lane
        if carried is None:
            if lane is not None and outstanding in lane.line.waiting:
                lane.line.waiting.remove(outstanding)
        elif type(outstanding.command) is Receive:
            caller = next((each for each in self._members.values() if each.has_sent(carried)), None)
            (caller or (self._home if lane is None else lane.caller)).withdraw(carried)
        elif any(each.take_back(carried) for each in self._members.values()):
            outstanding.settled(None, None)

    @property
    def frame_bytes_max(self) -> int | None:
        """How large a call may be: as the server says that was named."""
        return self._home.frame_bytes_max

    def give_back(self, delivery: Delivery) -> None:
        self.submit(GiveBack(queue=delivery.queue, channel=delivery.channel, spans=delivery.spans()), _ignore)

    def flush(self) -> None:
        """Send what is outgoing, in this turn of the loop."""
        for member in self._members.values():
            member.flush()

    def open_stream(
        self, queue: str, channel: str, lease_ms: int | None, push_target: PushTarget
    ) -> Stream | RoutedStream | None:
        """Messages as they become ready; None where they have to be asked for."""
        if self._closed or self._options.credit(queue):
            return self._home.open_stream(queue, channel, lease_ms, push_target)
        lane = self._lane(queue)
        if lane.version != self._version:
            self._arrange(lane)
        inner = lane.caller.open_stream(queue, channel, lease_ms, push_target)
        return None if inner is None else RoutedStream(lane, inner, channel, lease_ms, push_target)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def now_ms(self) -> int:
        """The servers' time, as far as it is known here."""
        return self._any_linked().now_ms()

    @property
    def reports(self) -> list[Damage]:
        """Damage that the first server reported."""
        return self._home.reports

    @property
    def transport(self) -> TransportName | None:
        """The transport in use at the first connection."""
        return self._home.transport

    @property
    def nodes(self) -> list[Address]:
        """The servers that there are connections to; the one that was named comes first."""
        return [address for address, member in self._members.items() if member.is_linked]

    def owner(self, queue: str) -> Address:
        """The server that commands about a queue go to now."""
        lane = self._lanes.get(queue)
        return (self._home if lane is None else lane.caller).address

    async def close(self) -> None:
        """Say goodbye. Commands without an answer fail."""
        if self._closed:
            return
        self._closed = True
        for timer in (self._timer, self._catch_up_timer):
            if timer is not None:
                timer.cancel()
        asking = [task for task in (self._refreshing, self._catching_up) if task is not None]
        tasks = [*self._opening.values(), *asking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in self._lanes.values():
            waiting, lane.line.waiting = lane.line.waiting, []
            for call in waiting:
                call.settled(None, NotSent("the connection was closed"))
            refused, lane.refused = lane.refused, []
            for taken in refused:
                taken.outstanding.settle(None, _closed(taken.outstanding))
        await asyncio.gather(*(member.close() for member in list(self._members.values())))
        for lane in self._lanes.values():
            for stream in list(lane.streams):
                stream.connection_closed()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- lanes --

    def _lane_for(self, command: Command) -> Lane | None:
        name = self._name_of(command)
        return None if name is None else self._lane(name)

    def _name_of(self, command: Command) -> str | None:
        name = lane_of(command)
        return None if name and self._options.credit(name) else name

    def _lane(self, name: str) -> Lane:
        lane = self._lanes.get(name)
        if lane is None:
            if len(self._lanes) >= _LANES_MAX:
                self._forget_some()
            lane = self._lanes[name] = Lane(name, self._any_linked())
        if name and self._partitions is not None and len(self._partitions.nodes) > 1:
            self._learn(lane)
        return lane

    def _forget_some(self) -> None:
        """Lanes that nobody uses now, the oldest first."""
        idle = [name for name, lane in self._lanes.items() if lane.is_idle]
        for name in idle[: _LANES_MAX // 10]:
            del self._lanes[name]

    def _learn(self, lane: Lane) -> None:
        """Find out how many partitions the queue has. Commands do not wait for it."""
        now_s = self._loop.time()
        if lane.is_asking or now_s < lane.asked_s:
            return
        lane.is_asking = True

        def described(info: QueueInfo | None, error: BaseException | None) -> None:
            lane.is_asking = False
            lane.asked_s = self._loop.time() + (_ASK_AGAIN_S if isinstance(error, QueueNotFound) else _BELIEVED_S)
            if info is not None:
                self._learned(lane, info.config.partitions)

        self._any_linked().carry(DescribeQueue(name=lane.name), described)

    def _learned(self, lane: Lane, partitions: int | None) -> None:
        if lane.partitions != partitions:
            lane.partitions = partitions
            lane.version = -1
            if not self._closed:
                self._arrange(lane)

    def _any_linked(self) -> MemberCaller:
        """The first connection; another one while that is lost."""
        if self._home.is_linked:
            return self._home
        return next((member for member in self._members.values() if member.is_linked), self._home)

    def _right_caller(self, lane: Lane) -> MemberCaller:
        """Who should carry a lane's commands, of those that can."""
        if self._partitions is None or lane.name == ANYWHERE or lane.partitions != 1:
            return self._any_linked()
        address = self._partitions.owner(lane.name, is_tls=self._home.address.is_tls)
        if address is None:
            return self._any_linked()
        member = self._members.get(address)
        if member is not None and member.is_linked:
            return member
        if member is None:
            self._open(address)
        return self._any_linked()

    def _strict_version(self, lane: Lane, caller: MemberCaller) -> int:
        """The map by which a caller owns a lane's queue, and would do well to refuse it if it does not; else 0."""
        known = self._partitions
        if known is None or lane.name == ANYWHERE or lane.partitions != 1 or len(known.nodes) < 2:
            return 0
        if lane.tries >= _TRIES_MAX or known.version < lane.moved_version:
            return 0
        is_owner = known.owner(lane.name, is_tls=self._home.address.is_tls) == caller.address
        return known.version if is_owner else 0

    def _lead(self, lane: Lane, caller: MemberCaller) -> None:
        """A lane goes through a caller from now on."""
        lane.line.place = lane.target = caller
        lane.version = self._version
        lane.strict_version = self._strict_version(lane, caller)

    def _arrange(self, lane: Lane) -> None:
        """Have a lane go where it should, now or when it is drained."""
        if lane.refused:
            self._redirect(lane)
            return
        lane.version = self._version
        lane.target = right = self._right_caller(lane)
        if right is not lane.caller and not lane.caller.is_linked:
            self._rescue(lane.caller)
        elif lane.line.is_clear(right):
            self._lead(lane, right)
            self._go_on(lane)

    def _go_on(self, lane: Lane) -> None:
        """A lane is where it should be: what waits leaves."""
        for call in lane.line.rest(lane.caller):
            self._give(call, lane.caller)
        for stream in list(lane.streams):
            stream.follow()

    def _rescue(self, lost: MemberCaller) -> None:
        """Take the commands of a lost connection to others, and its lanes with them."""
        at_lost = [lane for lane in self._lanes.values() if lane.caller is lost]
        for lane in at_lost:
            refused, lane.refused = lane.refused, []
            lost.put_back(refused)
        rights = {lane.name: right for lane in at_lost if (right := self._right_caller(lane)) is not lost}

        def right_for(command: Command) -> MemberCaller | None:
            name = self._name_of(command)
            if name is None:
                return None
            lane = self._lanes.get(name)  # none, or one that has left: receives may stay behind
            return rights.get(name) or (self._any_linked() if lane is None else lane.caller)

        away: dict[MemberCaller, list[Taken]] = {}
        for taken in lost.take_away(lambda command: right_for(command) not in (None, lost)):
            away.setdefault(right_for(taken.outstanding.command) or self._home, []).append(taken)
        for right, several in away.items():
            right.adopt(several)
        for name, right in rights.items():
            lane = self._lanes[name]
            self._lead(lane, right)
            self._go_on(lane)

    # -- commands that were refused --

    def route_of(self, member: MemberCaller, command: Command) -> int:
        name = self._name_of(command)
        lane = self._lanes.get(name) if name else None
        return lane.strict_version if lane is not None and lane.caller is member else 0

    def moved(self, member: MemberCaller, taken: Taken, map_version: int) -> None:
        self.counts.refusals += 1
        name = self._name_of(taken.outstanding.command)
        lane = self._lanes.get(name) if name else None
        if self._closed:
            taken.outstanding.settle(None, _closed(taken.outstanding))
        elif lane is None or lane.caller is not member:  # the lane has left: receives may stay behind
            (self._any_linked() if lane is None else lane.caller).adopt([taken])
        else:
            if not lane.refused:
                lane.tries += 1
            lane.refused.append(taken)
            lane.target = None
            lane.moved_version = max(lane.moved_version, map_version)
            self._redirect_soon()

    def _catch_up(self, address: Address, version: int) -> None:
        """Have the map that somebody else has already; from whoever has it. Now, or when it may be asked for again."""
        self._wanted_version = max(self._wanted_version, version)
        known, now_s = self._partitions, self._loop.time()
        is_planned = self._catching_up is not None or self._catch_up_timer is not None
        if self._closed or is_planned or (known is not None and known.version >= self._wanted_version):
            return
        soonest_s = self._caught_up_s + _CATCH_UP_S
        if now_s < soonest_s:
            self._catch_up_timer = self._loop.call_at(soonest_s, self._catch_up_at_last, address, version)
            return
        log.info("%s does not own the queue any more: asking it for map %d", address, self._wanted_version)
        self._caught_up_s = now_s
        self._catching_up = self._loop.create_task(self._catch_up_with(address))

    def _catch_up_at_last(self, address: Address, version: int) -> None:
        self._catch_up_timer = None
        self._catch_up(address, version)

    async def _catch_up_with(self, address: Address) -> None:
        try:
            self._take_map(await fetch_partitions(address, self._options), address)
        except NotSent as error:
            log.info("%s; it is asked to forward commands for other nodes", error)
            self._refresh_soon()
        finally:
            self._catching_up = None
            self._redirect_soon()

    def _redirect_soon(self) -> None:
        """Answers that come together are looked at together."""
        if not self._is_redirect_planned:
            self._is_redirect_planned = True
            self._loop.call_soon(self._redirect_all)

    def _redirect_all(self) -> None:
        self._is_redirect_planned = False
        for lane in [each for each in self._lanes.values() if each.refused]:
            self._redirect(lane)

    def _redirect(self, lane: Lane) -> None:
        """Take what was refused to where it belongs, when the map has come, and all else of the lane is answered."""
        if self._closed:
            return
        former = lane.caller
        self._catch_up(former.address, lane.moved_version)
        if self._catching_up is not None:
            return
        if not former.is_linked:
            self._rescue(former)
            return
        if former.has_in_flight(lambda command: self._is_in(lane, command) and type(command) is not Receive):
            return
        refused, lane.refused = sorted(lane.refused, key=lambda taken: taken.outstanding.number), []
        taken = refused + former.take_unsent(lambda command: self._is_in(lane, command))
        self._lead(lane, self._right_caller(lane))
        if lane.caller is former:
            self.counts.forwards += 1
        else:
            self.counts.redirects += 1
        lane.caller.adopt(taken)
        self._go_on(lane)

    def _is_in(self, lane: Lane, command: Command) -> bool:
        return self._name_of(command) == lane.name

    # -- answers --

    def _noted(self, call: RoutedCall, reply: Any, error: BaseException | None) -> None:
        """An answer came: what it tells, and who may go on."""
        lane = call.lane
        if isinstance(error, StoreError):
            self._refresh_soon()
        if lane is None or self._closed:
            return
        if lane.tries and error is None:
            lane.tries = 0
            lane.version = -1  # if it was forwarded for that, it need not be any more
        if isinstance(reply, QueueInfo):
            self._learned(lane, reply.config.partitions)
        elif error is None and type(call.command) is DeleteQueue:
            lane.asked_s = float("-inf")
            self._learned(lane, None)
        if lane.refused:
            self._redirect_soon()
        elif lane.is_draining and not lane.line.unanswered:
            self._arrange(lane)

    # -- connections --

    def _open(self, address: Address) -> None:
        """Connect to a node, if it is not being done, or was tried in vain a moment ago."""
        if not self._closed and address not in self._opening and address not in self._unreachable:
            self._opening[address] = self._loop.create_task(self._connect(address))

    async def _connect(self, address: Address) -> None:
        member = MemberCaller(address, self._options, self)
        try:
            await member.open()
        except (PenstockError, OSError) as error:
            self._unreachable.add(address)
            log.info("%s cannot be reached, %s forwards: %s", address, self._home.address, error)
        finally:
            del self._opening[address]

    def linked(self, member: MemberCaller) -> None:
        if self._closed:
            return
        self._members[member.address] = member
        self._changed()

    def lost(self, member: MemberCaller) -> None:
        """A connection is lost: its lanes go on through others."""
        if self._closed:
            return
        if member is not self._home:
            self._members.pop(member.address, None)
            self._unreachable.add(member.address)
        self._changed()
        self._refresh_soon()
        if member is self._home:
            self._open_another()
        else:
            self._rescue(member)
            task = self._loop.create_task(member.close())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _open_another(self) -> None:
        """The first connection is lost, and perhaps the only one: another node will do."""
        if not self._any_linked().is_linked:
            for address in self._map_sources():
                if address != self._home.address:
                    self._open(address)

    def send_again(self, outstanding: Outstanding) -> None:
        """Send a command that its connection cannot send any more."""
        name = self._name_of(outstanding.command)
        (self._home if name is None else self._lane(name).caller).send_later(outstanding)

    def _changed(self) -> None:
        """Connections or the map are not what they were: lanes that are in use may have to go elsewhere."""
        self._version += 1
        if not self._home.is_linked:
            self._rescue(self._home)
        for lane in list(self._lanes.values()):
            if not lane.is_idle and lane.version != self._version:
                self._arrange(lane)

    # -- the map --

    def _refresh_later(self) -> None:
        if not self._closed:
            self._refreshes += 1
            pause_s = backoff(self._refreshes, _FIRST_REFRESH_S, REFRESH_S)
            self._timer = self._loop.call_later(pause_s, self._refresh_now)

    def _refresh_soon(self) -> None:
        """Something is wrong: ask for the map, and again a little later."""
        if self._closed or self._refreshes <= 2:  # it was asked for just now
            return
        self._refreshes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._refresh_now()

    def _refresh_now(self) -> None:
        for lane in self._lanes.values():
            if lane.tries:
                lane.tries, lane.version = 0, -1
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self._loop.create_task(self._refresh())
            self._refreshing.add_done_callback(lambda _: self._refresh_later())

    async def _refresh(self) -> None:
        """Ask one node after the other for the map, until one tells."""
        for address in self._map_sources():
            try:
                found = await fetch_partitions(address, self._options)
            except NotSent as error:
                log.debug("%s", error)
                continue
            self._take_map(found, address)
            return
        if not self._home.is_linked:
            self._unreachable.clear()
            self._open_another()

    def _map_sources(self) -> list[Address]:
        known = [] if self._partitions is None else self._partitions.addresses(is_tls=self._home.address.is_tls)
        linked = [address for address, member in self._members.items() if member.is_linked]
        return list(dict.fromkeys([*linked, *known, self._home.address, *self._home.address.others]))

    def _take_map(self, found: Partitions, address: Address) -> None:
        self.counts.refreshes += 1
        was_unreachable, self._unreachable = self._unreachable, set()
        if self._is_news(found, address):
            self._partitions, self._told_by = found, address
            self._changed()
        elif was_unreachable:
            self._changed()
        if not self._home.is_linked:
            self._open_another()

    def _is_news(self, found: Partitions, address: Address) -> bool:
        """Whether to believe a map. An older one is that of a node which lags, unless the same node tells both."""
        known = self._partitions
        if known is None or found.version > known.version:
            return True
        return found.version < known.version and address == self._told_by


async def open_caller(address: Address, options: Options) -> RemoteCaller | RoutedCaller:
    """The caller that the options ask for, connected."""
    if options.routing == "direct":
        return await RoutedCaller.connect(address, options)
    return await RemoteCaller.connect(address, options)


def _closed(refused: Outstanding) -> PenstockError:
    """What becomes of a command that a node refused: if it had left before, through another, it may have been done."""
    kind = OutcomeUnknown if refused.repeated else NotSent
    return kind("the connection was closed")


def _ignore(_reply: Any, _error: BaseException | None) -> None:
    """Nobody waits any more."""
