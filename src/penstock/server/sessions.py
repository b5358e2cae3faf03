"""Sessions as operators see them: who may know what each holds, and who may end one. For REST and the websocket."""

from __future__ import annotations

from penstock.core.commands import EndSession, HeldLeases, ListSessions, Once, QueueStats, SessionInfo
from penstock.core.errors import AccessDenied, SessionNotFound
from penstock.server.auth import ANYBODY, Principal
from penstock.server.shards import Shards


async def told_sessions(shards: Shards, principal: Principal, command: ListSessions) -> list[SessionInfo]:
    """The sessions, those that hold most first, with what they hold in queues that the principal may read.

    Those that hold nothing are for who may read all queues. What no session holds comes first, as session 0.
    """
    asked = shards.ask_each(command) if command.queue is None else shards.ask_each_of(command.queue, command)
    told: list[SessionInfo] = []
    unnamed: list[HeldLeases] = []
    for shard, sessions in await asked:
        for each in sessions:
            leases = [held for held in each.leases if principal.may(held.queue, QueueStats)]
            if not each.session:
                unnamed += leases
            elif leases or (not each.leases and principal.allows_all("read")):
                each.shard, each.leases = shard, leases
                told.append(each)
    told.sort(key=lambda each: (-each.held, each.name, each.id))
    return [*([SessionInfo(0, leases=unnamed)] if unnamed else []), *told[: command.limit]]


async def end_any_session(
    shards: Shards, principal: Principal, shard: int, number: int, once: Once | None = None
) -> int:
    """End a session, whosever it is. Returns how many messages it held."""
    if number < 1:
        raise SessionNotFound(f"there is no session {shard}-{number}: they count from 1")
    found: list[SessionInfo] = await shards.ask_shard(shard, ListSessions(after=number - 1, limit=1))
    if found and found[0].session == number:
        _need_admin(principal, [held.queue for held in found[0].leases])
    elif not principal.allows_all("admin"):
        raise SessionNotFound(f"session {shard}-{number} has ended, or never existed")
    ended = EndSession(session=number, error=f"session ended by {principal.name}", once=once)
    released: int = await shards.ask_shard(shard, ended)  # one that is gone: it says so, or what it said before
    return released


def _need_admin(principal: Principal, queues: list[str]) -> None:
    if principal is ANYBODY:
        return
    if not principal.has("admin"):
        raise AccessDenied(f"{principal.name!r} may not end sessions of others: it has no admin right on any queue")
    if not queues and not principal.allows_all("admin"):
        raise AccessDenied(f"{principal.name!r} may not end an idle session: it needs the admin right on all queues")
    for queue in queues:
        if not principal.allows("admin", queue):
            if not principal.may_see(queue):
                raise AccessDenied(f"{principal.name!r} has no admin right on a queue whose messages the session holds")
            raise AccessDenied(
                f"{principal.name!r} has no admin right on queue {queue!r}, whose messages the session holds"
            )
