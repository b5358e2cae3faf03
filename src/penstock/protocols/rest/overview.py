"""What people watch: the server at a moment, its queues in any order, a stream of both; and who they are."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from heapq import nlargest
from pathlib import Path
from typing import Any, Literal

import msgspec

from penstock.core.commands import MAIN, ChangeQueue, ChannelStats, QueueStats, Stats
from penstock.core.errors import AccessDenied, OverLimit, PenstockError, QueueDamaged, QueueNotFound
from penstock.core.queues.config import dead_letter_name
from penstock.core.traits import Right
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.contents import seconds_of
from penstock.protocols.rest.operations import JSON, Operation, Reply, Resource, operation
from penstock.protocols.rest.problems import RestError, invalid, problem_of
from penstock.protocols.rest.shapes import (
    Alarm,
    AuditLine,
    AuditLog,
    AuditQuery,
    Disk,
    HistoryQuery,
    LiveQuery,
    Me,
    OverviewQueuesQuery,
    QueueHistory,
    QueueRow,
    QueueRows,
    RatesPerSecond,
    RightsOn,
    Role,
    ServerOverview,
    Totals,
)
from penstock.server.audit import audit_of
from penstock.server.auth import ANYBODY, Principal
from penstock.server.history import History
from penstock.server.node import Services
from penstock.server.overview import LOOK_S, Backlogs, Late, Overview, Rates, Row, added_up, in_order
from penstock.server.shards import Shards

EVENT_STREAM = "text/event-stream"
_STREAMS_MAX = 100
_STREAMS_OF_ONE_MAX = _STREAMS_MAX // 4
_WATCHED_MAX = 10
_WATCH_SHARE = 2
"""For so many times as long as an answer of a stream has taken, no other one begins."""
_WATCH_COST_S_MAX = 0.1
_ALARMS_MAX = 50
_ALARM_KEPT_S = 120.0
_INLINE_MAX = 1_000
"""More rows than this are walked in a thread: the loop has others to serve."""
_DISK_FREE_MIN = 0.05


class Overviews(Resource):
    """What people watch."""

    tag = "server"

    def __init__(self, services: Services, version: str) -> None:
        super().__init__(services)
        self._version = version
        self._started_s = time.monotonic()
        self._backlogs = Backlogs()
        self._backlogs_s: float | None = None
        self._waiting: dict[str, tuple[float, int, list[Alarm]]] = {}
        """By queue: when it was asked, how much waited, and its alarms."""

    @property
    def _overview(self) -> Overview:
        return overview_of(self.services)

    @operation("GET", "/v1/me")
    async def who_am_i(self, caller: Caller) -> Me:
        """Show who the caller is, and what it may do."""
        grants = [RightsOn(queues=list(each.queues), rights=list(each.rights)) for each in caller.principal.grants]
        settings = self.services.settings
        return Me(
            name=caller.principal.name,
            grants=grants,
            needs_credentials=self.services.credentials.are_required,
            roles=[Role(role=_role(each.rights), queues=list(each.queues)) for each in caller.principal.grants],
            read_only=settings.console.read_only,
            masked=bool(settings.console.mask),
            history=settings.history.enabled,
            audit=settings.audit.enabled and caller.principal.has("admin"),
        )

    @operation("GET", "/v1/audit", live_s=3)
    async def audit_log(self, caller: Caller, query: AuditQuery) -> AuditLog:
        """Show who changed what, the newest first. It needs the right `admin` on all queues, or on the given one."""
        if query.queue is not None:
            caller.need(query.queue, ChangeQueue)
        elif not caller.principal.allows_all("admin"):
            raise AccessDenied(f"{caller.principal.name!r} may not administer all queues: give one that it may")
        audit = audit_of(self.services)
        try:
            found = await asyncio.to_thread(audit.entries, query.limit + 1, query.before, query.queue)
        except OSError as error:
            raise RestError(503, "disk_failed", f"the audit log cannot be read: {error}") from None
        page = found[: query.limit]
        lines = [
            AuditLine(
                at=each.at,
                who=each.who,
                peer=each.peer,
                what=each.what,
                queue=each.queue,
                scope=each.scope,
                outcome=each.outcome,
            )
            for each in page
        ]
        return AuditLog(entries=lines, next=page[-1].at if len(found) > len(page) else None)

    @operation("GET", "/v1/overview")
    async def server_overview(self, caller: Caller) -> ServerOverview:
        """Show the server now: totals over all queues that the caller may read, and their rates.

        Rates are given from the second request on, as long as a request comes at least every 15 seconds.
        """
        return await self.seen_by(caller.principal)

    @operation("GET", "/v1/overview/queues", live_s=2)
    async def overview_queues(self, caller: Caller, query: OverviewQueuesQuery) -> QueueRows:
        """List the queues that the caller may read, with their rates, in any order, a page at a time."""
        rows = await self._look()
        principal, key = caller.principal, _KEYS.get(query.sort) or self._by_dead_letters()

        def fitting() -> tuple[list[Row], int]:
            found = [
                row
                for row in rows
                if row.name.startswith(query.prefix)
                and query.contains in row.name
                and (principal is ANYBODY or principal.may(row.name, QueueStats))
            ]
            first = min(query.after, len(found))
            stop = first + query.limit
            if query.sort == "name":  # as they are
                return (found[::-1] if query.descending else found)[first:stop], len(found)
            return in_order(found, key, query.descending, first, stop), len(found)

        page, total = fitting() if len(rows) <= _INLINE_MAX else await asyncio.to_thread(fitting)
        shown = await self._shown(page)
        end = query.after + len(page)
        return QueueRows(queues=shown, total=total, next=end if page and end < total else None)

    @operation("GET", "/v1/history", live_s=10)
    async def history(self, caller: Caller, query: HistoryQuery) -> QueueHistory:
        """Show rates, depths, ages and latencies over the last hour, day, week or fortnight, as columns.

        The history is that of one queue, or of all together if the caller may read all. Only the busiest queues
        (`[history] queues`) have their own history; for others the columns are empty. null: there is no value.
        """
        if query.queue is not None:
            caller.need(query.queue, QueueStats)
        elif not caller.principal.allows_all("read"):
            raise AccessDenied(f"{caller.principal.name!r} may not read all queues: give one that it may read")
        history = history_of(self.services)
        if not history.is_on:
            raise RestError(404, "history_off", "this server keeps no history: set enabled under [history]")
        try:
            step, times, columns = history.read(query.queue or "", _RANGES[query.range], self.shard.now_ms() / 1_000)
        except OSError as error:
            raise RestError(404, "history_off", f"the file of the history cannot be used: {error.strerror}") from None
        return QueueHistory(queue=query.queue, range=query.range, step=step, at=times, **columns)

    async def row(self, name: str) -> QueueRow | None:
        """A queue at the last look; None if it was not there, or is gone."""
        row = self._overview.rows.get(name)
        shown = [] if row is None else await self._shown([row])
        return shown[0] if shown else None

    async def _look(self) -> Sequence[Row]:
        return await self._overview.look()

    async def seen_by(self, principal: Principal) -> ServerOverview:
        """The server, as far as somebody may read it."""
        rows = await self._look()

        def added() -> tuple[int, dict[str, int], Rates | None, list[Alarm], int]:
            mine = rows if principal is ANYBODY else [row for row in rows if principal.may(row.name, QueueStats)]
            return (
                len(mine),
                *added_up(mine),
                self._alarms_of(mine),
                self._dead_letters_of([row for row in mine if row.dead]),
            )

        found = added() if len(rows) <= _INLINE_MAX else await asyncio.to_thread(added)
        queues, counts, rates, alarms, dead_letters = found
        await self._watch_backlogs()
        waiting = [at for name, at in self._waiting.items() if at[2] and principal.may(name, QueueStats)]
        for _, _, some in nlargest(_ALARMS_MAX - len(alarms), waiting, key=lambda each: each[1]):
            alarms += some
        disk = memory = None
        if principal.has("admin"):
            disk, memory = self._disk(), _memory_bytes()
            if disk is not None and disk.free_bytes < _DISK_FREE_MIN * disk.size_bytes:
                text = f"the disk has {disk.free_bytes // 2**20} MiB left, less than {_DISK_FREE_MIN:.0%}: make room"
                alarms.insert(0, Alarm(kind="disk", queue=None, text=text))
        return ServerOverview(
            version=self._version,
            uptime=time.monotonic() - self._started_s,
            totals=Totals(queues=queues, dead_letters=dead_letters, **counts),
            rates=None if rates is None else RatesPerSecond(**rates._asdict()),
            alarms=alarms,
            disk=disk,
            memory_bytes=memory,
        )

    async def _watch_backlogs(self) -> None:
        """Find where messages wait behind a pause, or for receivers that are slow. Once for each look."""
        overview, now_s = self._overview, self._overview.looked_s
        if now_s is None or self._backlogs_s == now_s:
            return
        self._backlogs_s = now_s
        rows = tuple(overview.rows.values())

        def chosen() -> tuple[list[str], set[str]]:
            return self._backlogs.to_ask(rows), {self._dead_letter_queue_of(row) for row in rows if row.dead}

        names, for_people = chosen() if len(rows) <= _INLINE_MAX else await asyncio.to_thread(chosen)
        asked = (self.shard.call(QueueStats(name=name)) for name in names)
        for stats in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(stats, Stats):
                ready = sum(channel.ready for channel in stats.channels.values())
                self._waiting[stats.name] = (
                    now_s,
                    ready,
                    self._alarms_of_backlog(stats, now_s, stats.name in for_people),
                )
            elif not isinstance(stats, QueueNotFound | QueueDamaged):
                raise stats
        self._backlogs.forget(now_s)
        for name, (asked_s, _, _) in list(self._waiting.items()):
            row = overview.rows.get(name)
            if row is None or not row.ready or now_s - asked_s > _ALARM_KEPT_S:
                del self._waiting[name]

    def _alarms_of_backlog(self, stats: Stats, now_s: float, is_for_people: bool) -> list[Alarm]:
        """`is_for_people`: it is a dead-letter queue, in which messages wait until somebody has looked at them."""
        queue, found = stats.name, list[Alarm]()
        for channel in stats.channels.values():
            if channel.paused and channel.ready:
                text = f"channel {channel.name} of {queue} is paused, and {_messages(channel.ready)} in it"
                found.append(Alarm(kind="paused", queue=queue, text=f"{text}{self._age(channel)}: unpause it"))
        late = [each for each in self._backlogs.note(stats, now_s) if not each.channel.paused]
        if not is_for_people:
            found += [Alarm(kind="lag", queue=queue, text=self._told_late(queue, each)) for each in late]
        return found

    def _told_late(self, queue: str, late: Late) -> str:
        channel, rate = late.channel, late.acked / late.seconds
        change = f"{abs(late.grown):,} {'more' if late.grown > 0 else 'fewer'} than {late.seconds:.0f} s ago"
        moved = change if late.grown else f"as many as {late.seconds:.0f} s ago"
        done = "none was acknowledged since" if not late.acked else f"{rate:,.3g} a second are acknowledged"
        where = queue if channel.name == MAIN else f"channel {channel.name} of {queue}"
        text = f"{_messages(channel.ready)} in {where}{self._age(channel)}. That is {moved}; {done}"
        return f"{text}: add receivers, or see why they are slow"

    def _age(self, channel: ChannelStats) -> str:
        """How old the oldest message is, where that is one that waits, or was received lately."""
        if channel.oldest_ms is None or channel.delayed:
            return ""
        return f", the oldest for {_duration((self.shard.now_ms() - channel.oldest_ms) // 1_000)}"

    async def _shown(self, rows: Sequence[Row]) -> list[QueueRow]:
        """What a list has of queues; those that are gone are left out. They are asked for in one step of the shard."""
        await self.shard.know(*(row.name for row in rows))
        asked = (self.shard.call(QueueStats(name=row.name)) for row in rows)
        found: list[Stats | BaseException] = await asyncio.gather(*asked, return_exceptions=True)
        shown: list[QueueRow] = []
        for row, stats in zip(rows, found, strict=True):
            if isinstance(stats, Stats):
                shown.append(self._row(row, stats))
            elif not isinstance(stats, QueueNotFound | QueueDamaged):
                raise stats
        return shown

    def _row(self, row: Row, stats: Stats) -> QueueRow:
        known = self.broker.queues.get(row.name)
        return QueueRow(
            name=row.name,
            fifo=known is not None and known.config.kind == "fifo",
            messages=row.messages,
            bytes=row.bytes,
            ready=row.ready,
            leased=row.leased,
            delayed=row.delayed,
            dead=row.dead,
            dead_letters=self._dead_letters_of([row]),
            quarantined=row.quarantined,
            oldest_sent_at=seconds_of(stats.oldest_ms),
            paused=[channel.name for channel in stats.channels.values() if channel.paused],
            rates=None if row.rates is None else RatesPerSecond(**row.rates._asdict()),
            spark=self._overview.spark(row.name),
        )

    def _dead_letter_queue_of(self, row: Row) -> str:
        known = self.broker.queues.get(row.name)
        return (known.config.dead_letter if known is not None else None) or dead_letter_name(row.name)

    def _dead_letters_of(self, rows: Sequence[Row]) -> int:
        """How many messages the dead-letter queues of some queues have now: each counted once, whoever shares it."""
        all_rows = self._overview.rows
        names = {self._dead_letter_queue_of(row) for row in rows}
        return sum(all_rows[name].messages for name in names if name in all_rows)

    def _alarms_of(self, rows: Sequence[Row]) -> list[Alarm]:
        """What is wrong now: damage, and dead letters that came lately and still are there."""
        found: list[Alarm] = []
        for row in rows:
            if len(found) >= _ALARMS_MAX:
                break
            if row.quarantined:
                text = f"{row.quarantined:,} messages of {row.name} are damaged and not delivered"
                found.append(Alarm(kind="damaged", queue=row.name, text=f"{text}: run penstock store check"))
            if not row.dead:
                continue
            count, seconds = self._overview.died(row)
            if count and (left := self._dead_letters_of([row])):
                text = f"{count:,} messages of {row.name} were dead-lettered in the last {seconds:.0f} s"
                found.append(Alarm(kind="dead letters", queue=row.name, text=f"{text}: {left:,} are there now"))
        return found

    def _by_dead_letters(self) -> Callable[[Row], tuple[float, str]]:
        all_rows, queue_of = self._overview.rows, self._dead_letter_queue_of

        def key(row: Row) -> tuple[float, str]:
            dead = all_rows.get(queue_of(row))
            return (0 if dead is None else dead.messages), row.name

        return key

    def _disk(self) -> Disk | None:
        data = self.services.settings.server.data
        if not Path(data).is_dir():
            return None
        usage = shutil.disk_usage(data)
        return Disk(free_bytes=usage.free, size_bytes=usage.total)


Find = Callable[[str], tuple[Operation, dict[str, Any]]]
"""The operation at a path that may be watched, and its arguments."""


class Live(Resource):
    """A stream of the overview. It is no part of the OpenAPI document, which knows no answers without an end."""

    tag = "server"

    def __init__(self, services: Services, overviews: Overviews, find: Find) -> None:
        super().__init__(services)
        self._overviews = overviews
        self._find = find
        self._streams: Counter[str] = Counter()
        """Caller -> its streams."""
        self._turns = asyncio.Lock()
        self._free_s = 0.0
        """When the next answer for a stream may begin."""

    @operation("GET", "/v1/live", offers=(EVENT_STREAM, JSON))
    async def live(self, caller: Caller, query: LiveQuery) -> Reply:
        """Stream the overview once a second, as server-sent events. With `queue`, that queue's counts as well.

        Every event is a JSON object: that of `/v1/overview`, and, as `queue`, a row of `/v1/overview/queues`. With
        `watch`, an event of the type `answer` follows whenever the answer of one of these operations has changed:
        `{"path": "/v1/cluster", "answer": {...}}`, or `problem` instead of `answer`. A message is watched by its
        sequence number.
        """
        if query.queue is not None:
            caller.need(query.queue, QueueStats)
        if self._streams[caller.counted_as] >= _STREAMS_OF_ONE_MAX:
            raise OverLimit(f"{_STREAMS_OF_ONE_MAX} streams of {caller.counted_as!r} are open: close some first")
        if self._streams.total() >= _STREAMS_MAX:
            raise OverLimit(f"{_STREAMS_MAX} streams are open: close some first")
        if len(query.watch) > _WATCHED_MAX:
            raise invalid(f"watch is given {len(query.watch)} times: at most {_WATCHED_MAX} are allowed")
        watched = [_Watched(path, *self._find(path)) for path in dict.fromkeys(query.watch)]
        return Reply(EVENT_STREAM, self._events(caller, query.queue, watched))

    async def _events(
        self, caller: Caller, queue: str | None, watched: Sequence[_Watched]
    ) -> AsyncGenerator[bytes, None]:
        who = caller.counted_as
        self._streams[who] += 1
        try:
            while not self.services.is_stopping:
                event = msgspec.to_builtins(await self._overviews.seen_by(caller.principal))
                if queue is not None:
                    event["queue"] = await self._overviews.row(queue)
                yield b"data: " + msgspec.json.encode(event) + b"\n\n"
                for each in watched:
                    if not each.is_due:
                        continue
                    await self._turn()
                    if caller.is_gone or self.services.is_stopping:
                        return
                    answer = await each.changed(caller, self.shard)
                    self._free_s = time.monotonic() + _WATCH_SHARE * each.cost_s
                    if answer is not None:
                        yield b"event: answer\ndata: " + answer + b"\n\n"
                await asyncio.sleep(LOOK_S)
        finally:
            self._streams[who] -= 1
            if not self._streams[who]:
                del self._streams[who]

    async def _turn(self) -> None:
        """Wait until an answer may begin: those of all streams together take a third of the time at most."""
        async with self._turns:
            while (wait_s := self._free_s - time.monotonic()) > 0 and not self.services.is_stopping:
                await asyncio.sleep(wait_s)


class _Watched:
    """An operation whose answer a stream follows."""

    def __init__(self, path: str, operation: Operation, arguments: dict[str, Any]) -> None:
        self._path = path
        self._operation = operation
        self._arguments = arguments
        self._due_s = 0.0
        self._told = b""
        self.cost_s = 0.0
        """How long the last answer kept the loop busy, or others did meanwhile."""

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() >= self._due_s

    async def changed(self, caller: Caller, shard: Shards) -> bytes | None:
        """Its answer, if it is another one."""
        assert self._operation.live_s is not None
        self._due_s = time.monotonic() + self._operation.live_s - LOOK_S / 2
        began_s = time.thread_time()
        answer: dict[str, object] = {"path": self._path}
        try:
            if "queue" in self._arguments:
                await shard.know(self._arguments["queue"])
            answer["answer"] = await self._operation.run(caller, **self._arguments)
        except PenstockError as error:
            answer["problem"] = problem_of(error)
        told = msgspec.json.encode(answer)
        self.cost_s = min(time.thread_time() - began_s, _WATCH_COST_S_MAX)
        if told == self._told:
            return None
        self._told = told
        return told


def _role(rights: Sequence[Right]) -> Literal["admin", "writer", "reader"]:
    return "admin" if "admin" in rights else "writer" if "write" in rights else "reader"


_RANGES = {"hour": 3_600, "day": 86_400, "week": 7 * 86_400, "fortnight": 14 * 86_400}
_HISTORY = "history"
_OVERVIEW = "overview"


def overview_of(services: Services) -> Overview:
    """What this server knows of all queues: one, whoever asks."""
    found = services.extras.get(_OVERVIEW)
    if found is None:
        found = services.extras[_OVERVIEW] = Overview(services.shard)
    assert isinstance(found, Overview)
    return found


def history_of(services: Services) -> History:
    """The history of this server: one, whoever asks."""
    found = services.extras.get(_HISTORY)
    if found is None:
        found = History(services.shard, services.settings.history, services.settings.server.data)
        services.extras[_HISTORY] = found
    assert isinstance(found, History)
    return found


def _by_rate(name: str) -> Callable[[Row], tuple[float, str]]:
    return lambda row: (getattr(row.rates, name) if row.rates is not None else 0.0, row.name)


def _by_count(name: str) -> Callable[[Row], tuple[float, str]]:
    return lambda row: (getattr(row, name), row.name)


_KEYS: dict[str, Callable[[Row], tuple[float, str]]] = {
    "name": lambda row: (0, row.name),
    **{name: _by_count(name) for name in ("messages", "bytes", "ready", "leased", "delayed", "dead")},
    **{name: _by_rate(name) for name in ("sent", "acked", "failed")},
}


def _messages(count: int) -> str:
    return "1 message waits" if count == 1 else f"{count:,} messages wait"


def _duration(seconds: int) -> str:
    """
    >>> _duration(90), _duration(1_740), _duration(100_000), _duration(1_000_000)
    ('90 s', '29 min', '27 h', '11 d')
    """
    for unit, length in (("s", 1), ("min", 60), ("h", 3_600)):
        if seconds < {1: 120, 60: 7_200, 3_600: 172_800}[length]:
            return f"{max(0, seconds) // length} {unit}"
    return f"{seconds // 86_400} d"


def _memory_bytes() -> int | None:
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
