"""Sessions of a router: a session of a client is one in every shard in which it is used, opened when it is first used.

A shard numbers its sessions for itself, so a router has numbers of its own, and translates. A session that can end by
itself (with `ttl_ms`) is open in one shard from the beginning, its *anchor*: when it has ended there, it has ended.
Others are opened nowhere before they are used. Heartbeats and the end of a session go to every shard that knows it.

Numbers are this router's own: other nodes pass on what is about them (`session_router.py`). They start anywhere, so
that a number from before a restart is most likely nobody's, and never quietly somebody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.cluster.routing.routed import Routed, ignore
from penstock.core.commands import (
    COMMANDS,
    Command,
    EndSession,
    Heartbeat,
    OpenSession,
    Receive,
    Subscribe,
)
from penstock.core.errors import InvalidRequest, PenstockError, SessionNotFound
from penstock.core.traits import Home
from penstock.server.shard import ShardClosed
from penstock.server.shards import AGAIN_S, is_worth_repeating

if TYPE_CHECKING:
    from penstock.cluster.routing.router import Router

_NUMBERS = 1 << 32
_SWEEP_MS = 10_000
"""How often those that have ended by themselves are looked for."""
_NOBODY = 0xFFFFFFFF
"""A session that no shard has ever opened: it holds nothing."""
OF_A_SESSION: frozenset[type[Command]] = frozenset(
    kind for kind in COMMANDS if kind.traits.home is Home.QUEUE and "session" in kind.__struct_fields__
)
"""Commands that name a session, which a shard knows by another number."""
_OF_SESSIONS_THAT_LIVE: frozenset[type[Command]] = frozenset({Receive, Subscribe})


class RoutedSession:
    """One client's session."""

    __slots__ = ("anchor", "at", "bound", "holder", "name", "number", "opening", "seen_ms", "ttl_ms")

    def __init__(self, number: int, command: OpenSession, now_ms: int, holder: str = "") -> None:
        self.number = number
        self.name = command.name
        self.ttl_ms = command.ttl_ms
        self.bound = command.bound
        self.holder = holder
        self.anchor: int | None = None
        """The shard that says whether it is still there."""
        self.at: dict[int, int] = {}
        """Shard -> its number there."""
        self.opening: dict[int, asyncio.Future[None]] = {}
        self.seen_ms = now_ms

    def open_command(self) -> OpenSession:
        """What opens it in another shard."""
        return OpenSession(name=self.name, ttl_ms=self.ttl_ms, bound=self.bound, holder=self.holder)


class RoutedSessions:
    """All sessions of a router. Sized: how many there are.

    >>> sessions = RoutedSessions(start=7)
    >>> sessions.add(OpenSession(name="mine"), now_ms=0).number
    7
    >>> sessions.get(8)
    Traceback (most recent call last):
        ...
    penstock.core.errors.SessionNotFound: session 8 has ended, or never existed: open another one
    """

    def __init__(self, start: int, step: int = 1, holder: str = "") -> None:
        self._holder = holder
        """How shards know this process, if they keep its sessions when they move; "": they do not."""
        self._step = step
        """Nodes share the numbers, and each has every so manieth: a number says whose it is."""
        self._first = start % step or step
        self._sessions: dict[int, RoutedSession] = {}
        self._anchored: dict[tuple[int, int], int] = {}
        self._next = start if 0 < start < _NUMBERS else self._first
        self._sweep_ms = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[RoutedSession]:
        return iter(list(self._sessions.values()))

    def add(self, command: OpenSession, now_ms: int) -> RoutedSession:
        """A session that is open nowhere yet."""
        if now_ms >= self._sweep_ms:
            self._sweep_ms = now_ms + _SWEEP_MS
            for session in list(self._sessions.values()):
                if session.ttl_ms is not None and now_ms > session.seen_ms + 2 * session.ttl_ms:
                    self.drop(session)
        while self._next in self._sessions:
            self._go_on()
        session = self._sessions[self._next] = RoutedSession(self._next, command, now_ms, self._holder)
        self._go_on()
        return session

    def _go_on(self) -> None:
        self._next += self._step
        if self._next >= _NUMBERS:
            self._next = self._first

    def anchored(self, shard: int, number: int) -> RoutedSession | None:
        """The session that has its anchor there: a repeated `OpenSession` finds the first one's."""
        known = self._anchored.get((shard, number))
        return None if known is None else self._sessions.get(known)

    def anchor(self, session: RoutedSession, shard: int, number: int) -> None:
        """The session is open in the shard that says whether it still is."""
        session.anchor = shard
        session.at[shard] = number
        self._anchored[shard, number] = session.number

    def knows(self, number: int) -> bool:
        """Whether a session was opened here, and has not ended as far as is known."""
        return number in self._sessions

    def get(self, number: int) -> RoutedSession:
        """A session by its number; `SessionNotFound` if there is none."""
        session = self._sessions.get(number)
        if session is None:
            raise SessionNotFound(f"session {number} has ended, or never existed: open another one")
        return session

    def drop(self, session: RoutedSession) -> None:
        """Forget a session."""
        self._sessions.pop(session.number, None)
        if session.anchor is not None:
            self._anchored.pop((session.anchor, session.at.get(session.anchor, 0)), None)


class SessionCalls:
    """Opens a router's sessions in shards, and has commands name them as their shard does."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._sessions = router.sessions
        self._loop = asyncio.get_running_loop()
        self._late: set[asyncio.Task[None]] = set()
        """Ends of sessions that a shard has not heard of."""

    # -- commands about sessions --

    async def open_session(self, command: OpenSession) -> int:
        """Number a session. If it can end by itself, or the command is named, it is opened in a shard, its anchor."""
        if command.ttl_ms is not None and command.ttl_ms <= 0:
            raise InvalidRequest(f"ttl_ms is {command.ttl_ms}: it must be more than 0")
        session = self._sessions.add(command, self._router.now_ms())
        if command.ttl_ms is None and command.once is None:
            return session.number
        anchor = next(iter(self._router.served), 0)
        try:
            number = await self._router.ask(anchor, command)
        except BaseException:
            self._sessions.drop(session)
            raise
        known = self._sessions.anchored(anchor, number)
        if known is not None:
            self._sessions.drop(session)
            return known.number
        self._sessions.anchor(session, anchor, number)
        return session.number

    async def heartbeat(self, command: Heartbeat) -> None:
        """To every shard that knows it; if it has ended at its anchor, it has ended."""
        if not command.session:
            return
        session = self._sessions.get(command.session)
        places = list(session.at.items())
        replies = await asyncio.gather(
            *(self._router.ask(shard, Heartbeat(session=number)) for shard, number in places), return_exceptions=True
        )
        for (shard, _), reply in zip(places, replies, strict=True):
            if isinstance(reply, SessionNotFound):
                session.at.pop(shard, None)
                if shard == session.anchor:
                    self._sessions.drop(session)
                    raise SessionNotFound(f"session {session.number} has ended, or never existed: open another one")
            elif isinstance(reply, BaseException):
                raise reply
        session.seen_ms = self._router.now_ms()

    async def end_session(self, command: EndSession) -> int:
        """In every shard that knows it. Returns how many messages it held."""
        session = self._sessions.get(command.session)
        self._sessions.drop(session)
        for opening in list(session.opening.values()):
            await asyncio.wait((opening,))
        places = session.at.items()
        ends = [(shard, EndSession(session=number, error=command.error)) for shard, number in places]
        replies = await asyncio.gather(*(self._router.ask(*end) for end in ends), return_exceptions=True)
        count = 0
        failure: BaseException | None = None
        for end, reply in zip(ends, replies, strict=True):
            if isinstance(reply, int):
                count += reply
            elif not isinstance(reply, SessionNotFound):
                failure = failure or reply
                if is_worth_repeating(reply):  # the shard's next owner, who may keep the session, has to be told
                    ending = self._loop.create_task(self._end_at_last(*end))
                    self._late.add(ending)
                    ending.add_done_callback(self._late.discard)
        if failure is not None:
            raise failure
        return count

    async def _end_at_last(self, shard: int, command: EndSession) -> None:
        while True:
            try:
                await self._router.ask(shard, command)
                return
            except PenstockError as error:
                if not is_worth_repeating(error):
                    return
            await asyncio.sleep(AGAIN_S)

    def shards_moved(self, shards: Iterable[int]) -> None:
        """Let the new owners hear from us: they would take the connections here for gone, if no link came."""
        for shard in shards:
            connections = (session for session in self._sessions if session.bound and shard in session.at)
            there = next((session.at[shard] for session in connections), None)
            if there is not None:
                self._router.submit_to(shard, Heartbeat(session=there), ignore)

    # -- commands that name a session --

    def localise(self, call: Routed, command: Any) -> bool:
        """Have the command name its session as the shard does. False: it goes on when the session is open there."""
        number = call.session or command.session
        if not number:
            return True
        try:
            session = self._sessions.get(number)
        except SessionNotFound as error:
            if command.__class__ in _OF_SESSIONS_THAT_LIVE:
                self._router.fail_soon(call, error)
                return False
            command.session = _NOBODY
            return True
        call.session = number
        there = session.at.get(call.shard)
        if there is not None:
            command.session = there
            return True
        if command.__class__ not in _OF_SESSIONS_THAT_LIVE:
            command.session = _NOBODY
            return True
        opening = self._loop.create_task(self._open_in(session, call.shard))
        opening.add_done_callback(lambda task: self._was_opened(call, task))
        return False

    def _was_opened(self, call: Routed, task: asyncio.Task[int]) -> None:
        error = ShardClosed("the node is stopping") if task.cancelled() else task.exception()
        if call.is_over:
            return
        if error is not None:
            call.error = error
            self._router.finish(call)
        else:
            self._router.dispatch(call, call.shard)

    async def _open_in(self, session: RoutedSession, shard: int) -> int:
        """Open a session in a shard, if it is not; its number there."""
        while (opening := session.opening.get(shard)) is not None:
            await asyncio.wait((opening,))
            if not opening.cancelled():
                opening.result()  # if it failed, it failed for all who waited
        if shard not in session.at:
            self._sessions.get(session.number)  # it may have ended meanwhile
            done = session.opening[shard] = self._loop.create_future()
            try:
                # The router names it, so that it is sent again if the answer is lost: nobody else would end it.
                session.at[shard] = await self._router.ask(shard, session.open_command())
                done.set_result(None)
            except PenstockError as error:
                done.set_exception(error)
                done.exception()  # perhaps nobody waits
                raise
            finally:
                del session.opening[shard]
                done.cancel()
        return session.at[shard]

    def reopen(self, call: Routed) -> bool:
        """A shard that was opened anew has forgotten a session that is a connection: it is opened there again."""
        session = None
        with contextlib.suppress(SessionNotFound):
            session = self._sessions.get(call.session)
        if session is None or session.ttl_ms is not None or call.reopened > 3:
            return False
        call.reopened += 1
        session.at.pop(call.shard, None)
        call.error = None
        self._router.dispatch(call, call.shard)
        return True
