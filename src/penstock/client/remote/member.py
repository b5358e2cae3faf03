"""The connection to one node of a cluster, whose commands can be taken over by the connection to another node.

How it works. A command that has left may have been done, or not. It has a name (`Once`): the name of this connection's
client, and a number. Whoever takes it over sends it again *under that name*. What was done is remembered in the queue's
shard, and moves with it; so it does not matter which node the command comes through. This connection goes on counting
the name as unanswered until the answer has come there, so that the shard does not forget it too early.

Commands that were taken over leave first, and in their old order; those that had never left follow, as if new.

A node that is told by `Route` by which map its client comes does not do what is another node's by a newer map: it says
so, and the group takes the command there. The name stays the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from penstock.client.remote.address import Address, Options
from penstock.client.remote.caller import RemoteCaller, RemoteIdentity
from penstock.client.remote.request import Link, Outstanding
from penstock.core.commands import Command
from penstock.core.errors import NotSent, PenstockError
from penstock.wire.answers import Moved
from penstock.wire.requests import Request, Route, outgoing


class Group(Protocol):
    """Who has connections to several nodes."""

    identity: RemoteIdentity

    def linked(self, member: MemberCaller) -> None:
        """A member has a link, or has one again."""

    def lost(self, member: MemberCaller) -> None:
        """A member has lost its link."""

    def send_again(self, outstanding: Outstanding) -> None:
        """Send a command that its member cannot send any more."""

    def route_of(self, member: MemberCaller, command: Command) -> int:
        """The map by which a command goes to a member, which refuses it if that is not so any more; 0: forward it."""

    def moved(self, member: MemberCaller, taken: Taken, map_version: int) -> None:
        """A member's node did not do a command: by that map it is another node's."""


class Taken(NamedTuple):
    """A command that is taken over, and the member whose name it has."""

    outstanding: Outstanding
    origin: MemberCaller


class MemberCaller(RemoteCaller):
    """Carries commands to one node."""

    def __init__(self, address: Address, options: Options, group: Group) -> None:
        super().__init__(replace(address, others=()), options.quick())
        self.address = address
        self.identity = group.identity
        self._group = group
        self._adopted: deque[Outstanding] = deque()
        """Commands of other members, which have left there and not yet here."""
        self._origins: dict[Outstanding, MemberCaller] = {}
        """Commands of other members that have no answer -> whose they are."""
        self._route = 0
        """What the node was last told by `Route`."""

    async def open(self) -> None:
        """Connect; or raise the reason why not. All nodes of a cluster have the same realm: whoever has not is none."""
        link = await self._new_link()
        realm = self.identity.realm
        if realm and link.welcome.realm != realm:
            await link.close()
            raise NotSent(f"{self.address} is a server, but not of this cluster")
        self._take_link(link)

    # -- taking over --

    def take_away(self, is_wanted: Callable[[Command], bool]) -> list[Taken]:
        """Commands without an answer, in their order; they are this member's no longer."""
        found = [*self._in_flight.values(), *self._adopted, *self._outgoing]
        taken = [each for each in found if is_wanted(each.command)]
        gone = set(taken)
        self._in_flight = {number: each for number, each in self._in_flight.items() if each not in gone}
        self._adopted = deque(each for each in self._adopted if each not in gone)
        self._outgoing = [each for each in self._outgoing if each not in gone]
        for each in taken:
            each.number = 0
        return [Taken(each, self._origins.pop(each, self)) for each in taken]

    def take_unsent(self, is_wanted: Callable[[Command], bool]) -> list[Taken]:
        """Commands that have not left here, in their order; they are this member's no longer."""
        taken = [each for each in [*self._adopted, *self._outgoing] if is_wanted(each.command)]
        gone = set(taken)
        self._adopted = deque(each for each in self._adopted if each not in gone)
        self._outgoing = [each for each in self._outgoing if each not in gone]
        return [Taken(each, self._origins.pop(each, self)) for each in taken]

    def put_back(self, taken: list[Taken]) -> None:
        """Commands that were refused here are as if they had no answer: the link is gone, and all go on together."""
        for outstanding, origin in taken:
            self._in_flight[outstanding.number] = outstanding
            if origin is not self:
                self._origins[outstanding] = origin
        self._in_flight = dict(sorted(self._in_flight.items()))

    def has_in_flight(self, is_meant: Callable[[Command], bool]) -> bool:
        """Whether such a command has left, and has no answer."""
        return any(is_meant(each.command) for each in self._in_flight.values())

    def adopt(self, taken: list[Taken]) -> None:
        """Send commands of another member, under the names that they have."""
        for outstanding, origin in taken:
            if not outstanding.left:
                self._outgoing.append(outstanding)
                continue
            if origin is not self:
                self._origins[outstanding] = origin
            self._adopted.append(outstanding)
        self._flush_soon()

    def take_back(self, outstanding: Outstanding) -> bool:
        """Do not send a command that has not left; False if it has."""
        if outstanding.left or outstanding not in self._outgoing:
            return False
        self._outgoing.remove(outstanding)
        return True

    def has_sent(self, outstanding: Outstanding) -> bool:
        """Whether a command is on its way here."""
        return self._in_flight.get(outstanding.number) is outstanding

    # -- what is different from a caller by itself --

    def flush(self) -> None:
        """Send what was taken over, then what is outgoing."""
        self._is_flush_planned = False
        if self._adopted:
            self._flush_adopted()
        if not self._adopted:
            super().flush()

    def _flush_adopted(self) -> None:
        link = self._link
        if link is None or not link.is_writable:
            return
        leaving: list[Outstanding] = []
        while self._adopted and len(self._in_flight) < self._in_flight_max:
            outstanding = self._adopted.popleft()
            if self._may_repeat(outstanding):
                outstanding.number = self._next_number
                self._next_number += 1
                self._in_flight[outstanding.number] = outstanding
                leaving.append(outstanding)
        self._give(link, leaving)

    def _requests(self, leaving: list[Outstanding]) -> list[Request]:
        """As they travel; the node is told which of them it may refuse."""
        if self.transport != "websocket":
            self._route = 0  # who polls tells it with every request
        requests: list[Request] = []
        for outstanding in leaving:
            route = self._group.route_of(self, outstanding.command)
            if route != self._route:
                self._route = route
                requests.append((self._next_number, Route(version=route)))
                self._next_number += 1
            requests.append((outstanding.number, outgoing(outstanding.command)))
        return requests

    def _moved(self, outstanding: Outstanding, moved: Moved) -> None:
        self._in_flight.pop(outstanding.number, None)
        self._group.moved(self, Taken(outstanding, self._origins.pop(outstanding, self)), moved.map_version)

    def _settle(self, outstanding: Outstanding, reply: object, error: BaseException | None) -> None:
        origin = self._origins.pop(outstanding, None)
        once = outstanding.command.once
        if origin is not None and once is not None:
            origin._unnamed.pop(once.number, None)
        super()._settle(outstanding, reply, error)

    def _send_again(self, outstanding: Outstanding) -> None:
        if self._link is None:
            self._group.send_again(outstanding)
        else:
            super()._send_again(outstanding)

    def _sweep(self) -> None:
        now_s = self._loop.time()
        for outstanding in [each for each in self._adopted if each.deadline_s <= now_s]:
            self._adopted.remove(outstanding)
            self._settle(outstanding, None, self._overdue(outstanding))
        super()._sweep()
        if self._adopted:
            self._sweep_later()

    def _fail_all(self, unsent: PenstockError, sent: PenstockError) -> None:
        adopted, self._adopted = self._adopted, deque()
        for outstanding in adopted:
            self._settle(outstanding, None, type(sent)(str(sent)))
        super()._fail_all(unsent, sent)

    def lost(self, link: Link, error: Exception) -> None:
        is_mine = link is self._link
        super().lost(link, error)
        if is_mine:
            self._group.lost(self)

    def _take_link(self, link: Link) -> None:
        self._route = 0
        super()._take_link(link)
        self._group.linked(self)
