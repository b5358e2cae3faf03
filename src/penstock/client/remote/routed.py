"""Commands straight to the owners of their queues: a caller with a connection to each node of a cluster that it needs.

How it works. Every node takes every command, and forwards what is another node's: a command that goes to the wrong node
is done all the same. So the map of who owns what (`partitions.py`) only says which way is short, and may be old. All
commands about one queue are a *lane* (`lanes.py`), and a lane goes through one connection at a time. It begins at the
first connection, the one to the server that was named. As soon as it is known that the queue has one partition, and a
connection to its owner stands, it changes over.

A lane never lets a later command overtake an earlier one. If the connection that it leaves stands, new commands wait
until those before them are answered. If it is lost, those without an answer go along, under the names that they have
(`member.py`). Receives that wait at a node stay there: the node sees to it that they are answered.

When a connection is lost, its lanes go through the first one; if it is that which is lost, through any that stands. The
map is asked for every `REFRESH_S`; after a loss, or an error of a store, at once, and again after growing pauses.

Not routed: sessions that were opened by name, since only the node at which they were opened knows them; and queues with
prefetching. Both stay with the first connection. So do queues with several partitions: no single node has them.

Everything here happens in the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from penstock.client.listening import Hearer
from penstock.client.remote.address import Address, Options, TransportName
from penstock.client.remote.caller import RemoteCaller
from penstock.client.remote.identity import RemoteIdentity
from penstock.client.remote.lanes import ANYWHERE, Lane, RoutedCall, lane_of
from penstock.client.remote.member import MemberCaller, Taken
from penstock.client.remote.paging import Pages
from penstock.client.remote.partitions import Partitions, fetch_partitions
from penstock.client.remote.request import Outstanding, Settle
from penstock.client.remote.routed_stream import RoutedStream
from penstock.client.remote.stream import Stream
from penstock.core.commands import Browse, Command, Damage, DeleteQueue, DescribeQueue, QueueInfo, Receive
from penstock.core.errors import NotSent, PenstockError, QueueNotFound, StoreError

log = logging.getLogger("penstock.client")

REFRESH_S = 30.0
"""How often the map is asked for."""
_FIRST_REFRESH_S = 0.25
"""How soon it is asked for again after something has gone wrong; twice as long each time."""
_ASK_AGAIN_S = 1.0
"""How soon a queue that was not there is asked about again."""
_BELIEVED_S = 300.0
"""How long it is believed how many partitions a queue has."""
_LANES_MAX = 10_000


class RoutedCaller:
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
        self._pause_s = REFRESH_S
        self._timer: asyncio.TimerHandle | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @classmethod
    async def connect(cls, address: Address, options: Options) -> RoutedCaller:
        """A caller that is connected to the server that was named, and has asked for the map."""
        caller = cls(address, options)
        await caller._home.open()
        await caller._refresh()
        caller._refresh_later()
        return caller

    # -- for the API --

    async def call(self, command: Command) -> Any:
        """The reply, or the error raised."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def settle(reply: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_result(reply) if error is None else future.set_exception(error)

        routed = self.submit(command, settle)
        try:
            return await future
        except asyncio.CancelledError:
            self.withdraw(routed)
            raise

    def submit(self, command: Command, settle: Settle) -> Outstanding:
        """As `call`, without a task: `settle` is called with the reply or the error."""
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
        if lane.is_draining and type(command) is not Receive:
            lane.held.append(call)
        else:
            self._give(call, lane.caller)
        return call

    def _give(self, call: RoutedCall, caller: MemberCaller) -> None:
        call.count()
        is_whole = type(call.command) is Browse  # its pages are gathered here
        call.carried = (caller.carry if is_whole else caller.submit)(call.command, call.settled)

    def withdraw(self, outstanding: Outstanding) -> None:
        """Who waited for this has left, and hears no more of it. Messages that come all the same go back."""
        assert isinstance(outstanding, RoutedCall)
        outstanding.settle = _ignore
        carried, lane = outstanding.carried, outstanding.lane
        if carried is None:
            if lane is not None and outstanding in lane.held:
                lane.held.remove(outstanding)
        elif type(outstanding.command) is Receive:
            caller = next((each for each in self._members.values() if each.has_sent(carried)), None)
            (caller or (self._home if lane is None else lane.caller)).withdraw(carried)
        elif any(each.take_back(carried) for each in self._members.values()):
            outstanding.settled(None, None)

    def flush(self) -> None:
        """Send what is outgoing, in this turn of the loop."""
        for member in self._members.values():
            member.flush()

    def open_stream(
        self, queue: str, channel: str, lease_ms: int | None, hearer: Hearer
    ) -> Stream | RoutedStream | None:
        """Messages as they become ready; None where they have to be asked for."""
        if self._closed or self._options.credit(queue):
            return self._home.open_stream(queue, channel, lease_ms, hearer)
        lane = self._lane(queue)
        if lane.version != self._version:
            self._arrange(lane)
        inner = lane.caller.open_stream(queue, channel, lease_ms, hearer)
        return None if inner is None else RoutedStream(lane, inner, channel, lease_ms, hearer)

    async def sleep(self, seconds: float) -> None:
        """Let some time pass."""
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
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._opening.values(), *([] if self._refreshing is None else [self._refreshing])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in self._lanes.values():
            held, lane.held = list(lane.held), type(lane.held)()
            for call in held:
                call.settled(None, NotSent("the connection was closed"))
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

    def _arrange(self, lane: Lane) -> None:
        """Have a lane go where it should, now or when it is drained."""
        lane.version = self._version
        right = self._right_caller(lane)
        if right is not lane.caller:
            if not lane.caller.is_linked:
                self._rescue(lane.caller)
                return
            if lane.busy:
                lane.is_draining = True
                return
            lane.caller = right
        self._go_on(lane)

    def _go_on(self, lane: Lane) -> None:
        """A lane is where it should be: what was held leaves."""
        lane.is_draining = False
        while lane.held:
            self._give(lane.held.popleft(), lane.caller)
        for stream in list(lane.streams):
            stream.follow()

    def _rescue(self, lost: MemberCaller) -> None:
        """Take the commands of a lost connection to others, and its lanes with them."""
        at_lost = [lane for lane in self._lanes.values() if lane.caller is lost]
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
            lane.caller, lane.version = right, self._version
            self._go_on(lane)

    def _noted(self, call: RoutedCall, reply: Any, error: BaseException | None) -> None:
        """An answer came: what it tells, and who may go on."""
        lane = call.lane
        if isinstance(error, StoreError):
            self._refresh_soon()
        if lane is None or self._closed:
            return
        if isinstance(reply, QueueInfo):
            self._learned(lane, reply.config.partitions)
        elif error is None and type(call.command) is DeleteQueue:
            lane.asked_s = float("-inf")
            self._learned(lane, None)
        if lane.is_draining and not lane.busy:
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
        """A connection stands."""
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
        if self._partitions is not None and not self._any_linked().is_linked:
            for address in self._partitions.addresses(is_tls=self._home.address.is_tls):
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
            self._timer = self._loop.call_later(self._pause_s, self._refresh_now)
            self._pause_s = min(2 * self._pause_s, REFRESH_S)

    def _refresh_soon(self) -> None:
        """Something is wrong: ask for the map, and again a little later."""
        if self._closed or self._pause_s <= 4 * _FIRST_REFRESH_S:
            return
        self._pause_s = _FIRST_REFRESH_S
        if self._timer is not None:
            self._timer.cancel()
            self._refresh_now()

    def _refresh_now(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self._loop.create_task(self._refresh())
            self._refreshing.add_done_callback(lambda _: self._refresh_later())

    async def _refresh(self) -> None:
        """Ask one node after the other for the map, until one tells."""
        for address in self._informants():
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

    def _informants(self) -> list[Address]:
        known = [] if self._partitions is None else self._partitions.addresses(is_tls=self._home.address.is_tls)
        linked = [address for address, member in self._members.items() if member.is_linked]
        return list(dict.fromkeys([*linked, *known, self._home.address]))

    def _take_map(self, found: Partitions, address: Address) -> None:
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


def _ignore(_reply: Any, _error: BaseException | None) -> None:
    """Nobody waits any more."""
