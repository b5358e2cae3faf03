"""Calls whose shard is not here: other nodes have them, or they wait until somebody serves it.

A shard moves. The command was not done (`ShardMoved`): it is tried again, when the map changes and every now and then,
as long as the router is patient; whatever else comes for that shard waits behind it (`wire/order.py`), so that commands
stay in their order. So does what comes while others are with a node that does not serve the shard any more, and has not
answered them. Receives go on waiting with what is left of their time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.cluster.base import ClusterMap, ClusterMaps, Place, ShardUnserved
from penstock.cluster.routing.routed import Routed
from penstock.core.backoff import backoff
from penstock.core.commands import Command, Receive
from penstock.wire.order import CallLine

if TYPE_CHECKING:
    from penstock.cluster.routing.router import Router

PAUSE_S = 0.02
PAUSE_S_MAX = 0.5
"""How long to wait before the same is tried again, if the map says nothing new: first, and at most."""


def _waits(command: Command) -> bool:
    return isinstance(command, Receive) and bool(command.wait_ms)


class ShardLine(CallLine[Routed, Place | None]):
    """The calls for one shard that wait, or that another node has and has not answered."""

    __slots__ = ("timer", "tries")

    def __init__(self) -> None:
        super().__init__(None)
        self.timer: asyncio.TimerHandle | None = None
        self.tries = 0

    def stop(self) -> None:
        """Do not look any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class RemoteCalls:
    """Takes a router's calls to other nodes, and keeps those that nobody serves."""

    def __init__(
        self, router: Router, remote: Callable[[str], Place], maps: ClusterMaps, retry_timeout_s: float
    ) -> None:
        self._router = router
        self._served = router.served
        self._remote = remote
        self._maps = maps
        self._retry_timeout_s = retry_timeout_s
        self._loop = asyncio.get_running_loop()
        self.displaced: dict[Routed, asyncio.TimerHandle] = {}
        """Calls whose shard is served by nobody, as far as is known."""
        self.lines: dict[int, ShardLine] = {}
        """Shard -> its calls (no receives) that wait, or that another node has: as long as there are any."""

    # -- with another node --

    def go(self, call: Routed, shard: int) -> None:
        """Take a call to the node that serves its shard, or have it wait until there is one."""
        known = self._maps.current()
        owner = known.owners[shard]
        if not owner or owner == known.own:
            self.displace(call)
            return
        call.place = self._remote(owner)
        self._router.forwarded[call.command.__class__] += 1
        if call.command.__class__ is Receive:
            self._router.pending.add(call)
            call.is_noted = True
        else:
            call.away = self
            self._line(shard).left(call.place)
        call.inner = call.place.submit(shard, call.command, call.inner_settled, call.caller)

    def landed(self, call: Routed) -> None:
        call.away = None
        line = self.lines[call.shard]
        line.answered()
        if line.is_idle:
            del self.lines[call.shard]
        elif not line.unanswered:
            self._loop.call_soon(self._look_soon, call.shard)

    def _line(self, shard: int) -> ShardLine:
        line = self.lines.get(shard)
        if line is None:
            line = self.lines[shard] = ShardLine()
        return line

    def target(self, shard: int) -> Place | None:
        """The other node that serves a shard; None: nobody, or this one."""
        known = self._maps.current()
        owner = known.owners[shard]
        return None if shard in self._served or not owner or owner == known.own else self._remote(owner)

    def has_to_wait(self, call: Routed, target: Place | None) -> bool:
        """Whether calls to the same shard wait, or are with another node than this one would go to."""
        if call.command.__class__ is Receive:
            return False
        line = self.lines.get(call.shard)
        return line is not None and not line.admits(target)

    # -- when a shard has moved --

    def displace(self, call: Routed) -> None:
        """Try again a little later, or when the map changes."""
        now_s = self._loop.time()
        if not call.deadline_s or (_waits(call.command) and now_s > call.tried_s + 2 * PAUSE_S_MAX):
            call.deadline_s, call.tries = now_s + self._retry_timeout_s, 0  # it has waited with somebody meanwhile
        if now_s >= call.deadline_s:
            self.release_waiting(call)
            self._give_up(call)
            return
        if call.command.__class__ is not Receive:
            self.wait_for_shard(call)
            return
        call.tried_s = now_s
        call.tries += 1
        pause_s = min(backoff(call.tries, PAUSE_S, PAUSE_S_MAX), call.deadline_s - now_s)
        self.displaced[call] = self._loop.call_later(pause_s, self._again, call)

    def _give_up(self, call: Routed) -> None:
        call.error = ShardUnserved(
            f"no node serves shard {call.shard} at the moment: nothing was done; try again later"
        )
        self._router.finish(call)

    def wait_for_shard(self, call: Routed) -> None:
        """Wait for a shard, behind those that came before."""
        line = self._line(call.shard)
        call.deadline_s = call.deadline_s or self._loop.time() + self._retry_timeout_s
        line.join(call)
        if line.probe is None and line.timer is None:
            line.tries += 1
            pause_s = backoff(line.tries, PAUSE_S, PAUSE_S_MAX)
            line.timer = self._loop.call_later(pause_s, self._look, call.shard)

    def _look_soon(self, shard: int) -> None:
        """There is reason to believe that the shard is served."""
        line = self.lines.get(shard)
        if line is not None and line.probe is None:
            line.stop()
            self._look(shard)

    def _look(self, shard: int) -> None:
        """Send the first of a line, if nothing before it is with another node any more."""
        line = self.lines[shard]
        line.timer = None
        now_s = self._loop.time()
        overdue = [call for call in line.waiting if now_s >= call.deadline_s]
        line.waiting = [call for call in line.waiting if now_s < call.deadline_s and not call.is_over]
        probe = line.first(self.target(shard))
        if probe is not None:
            probe.is_noted, probe.reply, probe.error = True, None, None
            self._router.go(probe, shard)
        elif line.waiting:
            line.timer = self._loop.call_later(PAUSE_S_MAX, self._look, shard)
        elif line.is_idle:
            del self.lines[shard]
        for call in overdue:
            if not call.is_over:
                self._give_up(call)

    def release_waiting(self, probe: Routed) -> None:
        """The first of a line was answered: all others follow."""
        shard = probe.shard
        line = self.lines.get(shard)
        if line is None or line.probe is not probe:
            return
        line.stop()
        line.tries = 0
        for call in line.rest(self.target(shard)):
            if not call.is_over:
                call.reply = call.error = None
                self._router.go(call, shard)
        if line.is_idle:
            del self.lines[shard]
        elif line.waiting and line.timer is None:
            self._look(shard)

    def _again(self, call: Routed) -> None:
        timer = self.displaced.pop(call, None)
        if timer is None or call.is_over:
            return
        timer.cancel()
        call.tried_s = self._loop.time()
        call.reply = call.error = None
        call.since_ms = call.since_ms or call.parked_ms
        call.parked_ms = 0
        command = call.command
        if isinstance(command, Receive):
            call.command = command = self._shortened(command, call.since_ms)
            if command.wait_ms is not None:
                call.since_ms = self._router.now_ms()  # what has passed until now is taken off
        self._router.dispatch(call, call.shard)

    def _shortened(self, command: Receive, since_ms: int) -> Receive:
        """A receive with what is left of its wait."""
        wait_ms = command.wait_ms
        passed_ms = self._router.now_ms() - since_ms if since_ms else 0
        if wait_ms is None:
            config = self._router.catalog.config(command.queue)
            if config is None:
                return msgspec.structs.replace(command, ticket=None)
            wait_ms = config.receive_wait_ms
        return msgspec.structs.replace(command, wait_ms=max(0, wait_ms - passed_ms), ticket=None)

    def map_changed(self, changed: ClusterMap) -> None:
        """Try again what has somewhere to go now."""
        for call in list(self.displaced):
            if self._is_served(call.shard, changed):
                self._again(call)
        for shard in list(self.lines):
            if self._is_served(shard, changed):
                self._look_soon(shard)

    def _is_served(self, shard: int, known: ClusterMap) -> bool:
        owner = known.owners[shard]
        return shard in self._served or bool(owner and owner != known.own)

    def end_waiting(self) -> list[Routed]:
        """The node stops: nobody stands in a line any more. Returns those who did."""
        waiting: list[Routed] = []
        for line in self.lines.values():
            line.stop()
            waiting += line.waiting
            line.waiting = []
        return waiting
