"""Sessions: who holds leases. A client opens its own; an operator sees all of them, and can end one."""

from __future__ import annotations

import re
from typing import Any

from penstock.core.commands import EndSession, Heartbeat, HeldLeases, ListSessions, OpenSession, QueueStats, SessionInfo
from penstock.core.errors import AccessDenied, OverLimit, SessionNotFound
from penstock.core.traits import Right
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.contents import milliseconds, seconds_of
from penstock.protocols.rest.operations import Resource, operation
from penstock.protocols.rest.shapes import (
    EndedSession,
    HeldMessages,
    NewSession,
    OpenSessions,
    Session,
    SessionRow,
    SessionsQuery,
)
from penstock.server.auth import ANYBODY, Principal

_OF_ANYBODY = re.compile(r"([0-9]{1,9})-([0-9]{1,18})")
"""How an operator names a session: its shard, and its number there."""


class Sessions(Resource):
    """Sessions: who holds leases."""

    tag = "sessions"

    @operation("POST", "/v1/sessions", status=201)
    async def open_session(self, caller: Caller, body: NewSession) -> Session:
        """Open a session. It ends by itself if no heartbeat comes for `ttl` seconds."""
        if len(self.broker.sessions) >= self.settings.sessions_max:
            raise OverLimit(f"there are {self.settings.sessions_max} sessions: end some first")
        number: int = await self.shard.call(OpenSession(name=body.name, ttl_ms=milliseconds(body.ttl, "ttl")))
        return Session(session=self.handle(caller, number), ttl=body.ttl)

    @operation("GET", "/v1/sessions", live_s=2)
    async def list_sessions(self, caller: Caller, query: SessionsQuery) -> OpenSessions:
        """List the sessions and connections, and what each holds since when, in the queues that the caller may read.

        Those that hold nothing are for who may read all queues.
        """
        return await self._listed(caller.principal, None, query.limit)

    @operation("GET", "/v1/queues/{queue}/sessions", live_s=2)
    async def list_queue_sessions(self, caller: Caller, queue: str, query: SessionsQuery) -> OpenSessions:
        """List who holds messages of a queue, how many, and since when."""
        caller.need(queue, QueueStats)
        return await self._listed(caller.principal, queue, query.limit)

    async def _listed(self, principal: Principal, queue: str | None, limit: int) -> OpenSessions:
        command = ListSessions(queue=queue, limit=limit)
        rows: list[SessionRow] = []
        unnamed: list[HeldMessages] = []
        if queue is None:
            asked = await self.shard.ask_each(command)
        else:
            asked = await self.shard.ask_each_of(queue, command)
        for shard, sessions in asked:
            for each in sessions:
                leases = [_lease(held) for held in each.leases if principal.may(held.queue, QueueStats)]
                if not each.session:
                    unnamed += leases
                elif leases or (not each.leases and principal.allows_all("read")):
                    rows.append(_row(shard, each, leases))
        rows.sort(key=lambda row: (-row.held, row.name, row.session))
        return OpenSessions(sessions=rows[:limit], without_session=unnamed)

    @operation("POST", "/v1/sessions/{session}/heartbeat")
    async def session_heartbeat(self, caller: Caller, session: str) -> None:
        """Keep a session alive."""
        await self.shard.call(Heartbeat(session=self.session(caller, session)))

    @operation("DELETE", "/v1/sessions/{session}", is_change=True)
    async def end_session(self, caller: Caller, session: str) -> EndedSession:
        """End a session: all that it holds is ready for others at once.

        Your own, by its handle; or any one, as `GET /v1/sessions` names it. That needs the right to administer every
        queue of which it holds messages; and all queues, if it holds none: nobody can say whose it is then.
        """
        named = _OF_ANYBODY.fullmatch(session)
        if named is None:
            return EndedSession(released=await self.shard.call(EndSession(session=self.session(caller, session))))
        shard, number = int(named[1]), int(named[2])
        found: list[SessionInfo] = await self.shard.ask_shard(shard, ListSessions(after=number - 1, limit=1))
        if not found or found[0].session != number:
            raise SessionNotFound(f"session {session!r} has ended, or never was")
        _need_admin(caller.principal, [held.queue for held in found[0].leases])
        ended = EndSession(session=number, error=f"session ended by {caller.principal.name}")
        return EndedSession(released=await self.shard.ask_shard(shard, ended))


def _need_admin(principal: Principal, queues: list[str]) -> None:
    right: Right = "admin"
    if principal is ANYBODY:
        return
    if not principal.has(right):
        raise AccessDenied(f"{principal.name!r} may not end sessions of others: that needs the right to admin")
    if not queues and not principal.allows_all(right):
        raise AccessDenied(f"{principal.name!r} may not administer all queues: ending an idle session needs this right")
    for queue in queues:
        if not principal.allows(right, queue):
            if not principal.may_see(queue):
                raise AccessDenied(f"{principal.name!r} has no {right} right on a queue of which it holds messages")
            raise AccessDenied(f"{principal.name!r} has no {right} right on queue {queue!r}: it holds messages there")


def _lease(held: HeldLeases) -> HeldMessages:
    return HeldMessages(
        queue=held.queue,
        channel=held.channel,
        count=held.count,
        since=held.since_ms / 1_000,
        until=held.until_ms / 1_000,
    )


def _row(shard: int, info: SessionInfo, leases: list[Any]) -> SessionRow:
    return SessionRow(
        session=f"{shard}-{info.session}",
        name=info.name,
        is_connection=info.is_bound,
        node=info.connection,
        ttl=seconds_of(info.ttl_ms),
        seen_at=info.seen_ms / 1_000,
        held=sum(each.count for each in leases),
        leases=leases,
    )
