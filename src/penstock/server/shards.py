"""What front ends know of the shards behind them: one (`AsyncShard`), or many on many nodes (`cluster.Router`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Protocol

from penstock.core.commands import CatalogEvent, Command, Damage, EndSession, QueueTally, RedriveTask, Stats
from penstock.core.delivery.receipt import Receipt
from penstock.core.errors import StoreError
from penstock.core.queues.config import QueueConfig
from penstock.core.storage.records import Meta
from penstock.server.shard import Call, Shard, ShardClosed
from penstock.server.tasks import CallbackCall, Unready


class ChannelView(Protocol):
    """What may be read of a channel."""

    @property
    def id(self) -> int:
        """Its number within the queue."""

    @property
    def ready(self) -> int:
        """How many messages wait to be handed out."""


class QueueView(Protocol):
    """What may be read of a queue."""

    @property
    def id(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> QueueConfig: ...

    @property
    def channels(self) -> Mapping[str, ChannelView]: ...

    @property
    def messages(self) -> int:
        """How many messages it holds."""

    @property
    def backlog(self) -> int:
        """How many messages no channel has been shown."""

    @property
    def size(self) -> int:
        """How many bytes they take."""


class Names(Protocol):
    """What may be read of a broker, or of what stands for many: names, configurations, ids, receipts."""

    @property
    def queues(self) -> Mapping[str, QueueView]: ...

    @property
    def local_queues(self) -> Mapping[str, QueueView]:
        """The queues by name as far as they are here: of a queue with several partitions, those in this process."""

    def part_names(self) -> Iterator[str]:
        """The names of `local_queues`, in order, as they are now."""

    @property
    def sessions(self) -> Sized:
        """The sessions that are open."""

    @property
    def tasks(self) -> Mapping[int, RedriveTask]:
        """The redrives."""

    @property
    def meta(self) -> Meta:
        """The realm and the secret."""

    def queue_name(self, queue_id: int) -> str | None: ...

    def refuse_damaged(self, name: str) -> None:
        """`QueueDamaged` if a queue that is not in `queues` is in quarantine, as far as that is known here."""

    def channel_name(self, queue_id: int, channel_id: int) -> str | None:
        """The name of a channel by the ids in a receipt."""

    def message_id(self, queue_id: int, sequence: int) -> str:
        """The identity of a message, a UUID."""

    def receipt_key(self, queue_id: int) -> bytes:
        """What the receipts of a queue are sealed with."""

    def receipt(self, queue_id: int, channel_id: int, sequence: int, attempt: int) -> str:
        """What a receiver holds to settle a message later."""

    def open_receipt(self, text: str) -> Receipt:
        """Read a receipt; `ForgedReceipt` if it is none of ours."""

    def held(self, subscription: int) -> int:
        """How many messages the session of a subscription holds."""


class Shards(Protocol):
    """Takes commands through steps. `call` is for tasks, `submit` for callbacks."""

    read_only: bool

    async def call(self, command: Command) -> Any:
        """Take a command through a step. Returns when its effect is as durable as it has to be."""

    def submit(self, command: Command, on_settled: Callable[[Call], None], caller: object = None) -> CallbackCall:
        """As `call`, without a task: `on_settled` is called in the loop when the call is settled. It must not raise."""

    def step_now(self) -> bool:
        """All that was there has been submitted: let go now what need not wait for the next turn. Whether any did."""

    def withdraw(self, call: CallbackCall) -> None:
        """Whoever submitted this receive has left, and hears no more of it. Messages that it got go back."""

    def unknown(self, name: str, *, now: bool = False) -> bool:
        """Whether a queue has to be asked for (`DescribeQueue`) before `identity.queues` can tell whether it is there.

        With `now`: to tell what its configuration is now, and not a moment ago. Never so for a shard of this process.
        """

    def partitions_for(self, name: str) -> int:
        """How many partitions a queue needs for every node to have one of them: 1 where there is one node."""

    async def local_stats(self, name: str) -> Stats:
        """The counts of a queue's partitions in this process. `QueueNotFound` if there is none."""

    def tallies(self, *, local: bool) -> AsyncIterator[list[QueueTally]]:
        """Every queue in numbers, some at a time, so that others get their turn in between.

        A queue that is there from beginning to end comes once for each of its partitions. `local`: only partitions in
        this process.
        """

    def local_shards(self) -> Iterable[Shard]:
        """The shards that are in this process now."""

    async def ask_each(self, command: Command) -> list[tuple[int, Any]]:
        """Ask every shard the same, one after the other: their numbers, and what each says."""

    async def ask_each_of(self, queue: str, command: Command) -> list[tuple[int, Any]]:
        """As `ask_each`, of the shards that have a part of a queue."""

    async def ask_shard(self, shard: int, command: Command) -> Any:
        """Ask one shard, by its number."""

    async def know(self, *names: str, receipts: Iterable[str] = (), now: bool = False) -> None:
        """Ask for what is unknown among these queues, and the queues of these receipts. None need be there."""

    async def sleep(self, seconds: float) -> None:
        """Let some time pass."""

    def now_ms(self) -> int: ...

    @property
    def identity(self) -> Names:
        """The broker as it is now, to be read from. Changes go through commands."""

    @property
    def listeners(self) -> list[Callable[[CatalogEvent], None]]:
        """Who hears of queues and channels that come and go."""

    @property
    def reports(self) -> list[Damage]:
        """The last reports of damaged chunks."""

    async def tick(self) -> None:
        """Make a step, so that the shards do what is due."""

    async def unready(self, within_s: float) -> Unready:
        """Which shards do not answer. It takes no longer than `within_s`, whatever the stores do."""

    async def close(self) -> None:
        """Commit what is left, end every wait, close. Once more does nothing."""


# The end of a connection's session: nobody waits for it, and it has to be written all the same.
#
# While it is not, the messages that the client held are leased to somebody who is gone, and the session stays. So when
# the store fails, it is tried again: until it is done, or the store is closed. Whoever opens that again ends the
# sessions that were connections.


AGAIN_S = 0.5
"""How long to wait before it is tried again."""


def _ignore(_call: Call) -> None:
    """Nobody waits."""


def end_session(shard: Shards, number: int, error: str, on_ended: Callable[[Call], None] = _ignore) -> None:
    """End a session. `on_ended` is called when it is over, or never was; not if the store is closed before."""

    def settled(call: Call) -> None:
        if is_worth_repeating(call.error):
            asyncio.get_running_loop().call_later(AGAIN_S, submit)
        else:
            on_ended(call)

    def submit() -> None:
        try:
            shard.submit(EndSession(session=number, error=error), settled)
        except ShardClosed:
            return

    submit()


def is_worth_repeating(error: BaseException | None) -> bool:
    """Whether a session may not have ended, because of what may be over in a moment."""
    return isinstance(error, StoreError) and not isinstance(error, ShardClosed)
