"""Sessions: who holds leases. A client opens its own; an operator sees all of them, and can end one."""

from __future__ import annotations

import contextlib

from penstock.core.commands import (
    EndSession,
    Heartbeat,
    HeldLeases,
    ListSessions,
    OpenSession,
    QueueStats,
    SessionInfo,
    session_named,
)
from penstock.core.errors import OverLimit, QueueDamaged, QueueNotFound
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.contents import milliseconds, seconds_of
from penstock.protocols.rest.operations import Resource, operation
from penstock.protocols.rest.overview import overview_of
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
from penstock.server.overview import in_order
from penstock.server.sessions import end_any_session, told_sessions

_LEASED_QUEUES_MAX = 100


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
        """List sessions and connections, with the messages that each holds in queues that the caller may read.

        Sessions that hold nothing are listed only if the caller may read all queues. Leases without a session are
        listed for the 100 queues with the most leased messages.
        """
        principal = caller.principal
        found = await self._listed(principal, None, query.limit)
        leased = [row for row in await overview_of(self.services).look() if row.leased]
        rows = leased if principal is ANYBODY else [row for row in leased if principal.may(row.name, QueueStats)]
        for row in in_order(rows, lambda row: (row.leased, row.name), True, 0, _LEASED_QUEUES_MAX):
            with contextlib.suppress(QueueNotFound, QueueDamaged):
                found.without_session += (await self._listed(principal, row.name, 1)).without_session
        return found

    @operation("GET", "/v1/queues/{queue}/sessions", live_s=2)
    async def list_queue_sessions(self, caller: Caller, queue: str, query: SessionsQuery) -> OpenSessions:
        """List who holds messages of a queue, how many, and since when."""
        caller.need(queue, QueueStats)
        return await self._listed(caller.principal, queue, query.limit)

    async def _listed(self, principal: Principal, queue: str | None, limit: int) -> OpenSessions:
        told = await told_sessions(self.shard, principal, ListSessions(queue=queue, limit=limit))
        return OpenSessions(
            sessions=[_row(each) for each in told if each.session],
            without_session=[_lease(held) for each in told if not each.session for held in each.leases],
        )

    @operation("POST", "/v1/sessions/{session}/heartbeat")
    async def session_heartbeat(self, caller: Caller, session: str) -> None:
        """Keep a session alive."""
        await self.shard.call(Heartbeat(session=self.session(caller, session)))

    @operation("DELETE", "/v1/sessions/{session}", is_change=True)
    async def end_session(self, caller: Caller, session: str) -> EndedSession:
        """End a session. The messages that it holds are ready for others at once.

        End your own session by its handle, or any session by its id in `GET /v1/sessions`. The latter needs the right
        `admin` on every queue whose messages the session holds, or on all queues if it holds none.
        """
        named = session_named(session)
        if named is None:
            return EndedSession(released=await self.shard.call(EndSession(session=self.session(caller, session))))
        return EndedSession(released=await end_any_session(self.shard, caller.principal, *named))


def _lease(held: HeldLeases) -> HeldMessages:
    return HeldMessages(
        queue=held.queue,
        channel=held.channel,
        count=held.count,
        since=held.since_ms / 1_000,
        until=held.until_ms / 1_000,
    )


def _row(info: SessionInfo) -> SessionRow:
    return SessionRow(
        session=info.id,
        name=info.name,
        is_connection=info.is_bound,
        node=info.connection,
        ttl=seconds_of(info.ttl_ms),
        seen_at=info.seen_ms / 1_000,
        held=info.held,
        leases=[_lease(held) for held in info.leases],
    )
