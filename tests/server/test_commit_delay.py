"""Commit delay: commits wait a moment for usual callers; they share a sync, and nobody waits for one who is gone."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from penstock.core.commands import CreateQueue, Send
from penstock.core.storage.changes import Changes
from penstock.server.clock import SystemClock
from penstock.server.shard import Call, Shard
from penstock.server.tasks import COMMIT_DELAY_S_MAX, COMMIT_DELAY_SHARE, AsyncShard, CommitDelay
from tests.server.stores import TroubledStore

STEP_S = 0.001


def after(*steps: set[str]) -> tuple[CommitDelay, float]:
    """After steps one behind the other; and the time when the last one has ended."""
    commit_delay, now_s = CommitDelay(), 0.0
    for callers in steps:
        commit_delay.stepped(set(callers), now_s, now_s + STEP_S)
        now_s += STEP_S
    return commit_delay, now_s


def test_one_who_is_alone_never_waits() -> None:
    commit_delay, now_s = after({"a"}, {"a"}, {"a"})
    assert not commit_delay.is_early({"a"}, now_s)


def test_those_who_took_turns_wait_for_each_other() -> None:
    commit_delay, now_s = after({"a"}, {"b"})
    assert commit_delay.is_early({"a"}, now_s)
    assert not commit_delay.is_early({"a", "b"}, now_s)
    assert not commit_delay.is_early({"a", "b", "newcomer"}, now_s)


def test_nobody_waits_for_longer_than_a_part_of_a_step() -> None:
    commit_delay, now_s = after({"a"}, {"b"})
    assert commit_delay.is_early({"a"}, now_s + STEP_S * COMMIT_DELAY_SHARE * 0.99)
    assert not commit_delay.is_early({"a"}, now_s + STEP_S * COMMIT_DELAY_SHARE * 1.01)
    commit_delay.stepped({"b"}, 0.0, 60.0)
    assert not commit_delay.is_early({"a"}, 60.0 + COMMIT_DELAY_S_MAX)


def test_one_who_does_not_come_back_is_forgotten_after_two_steps() -> None:
    commit_delay, now_s = after({"a"}, {"b"}, {"a"}, {"a"})
    assert not commit_delay.is_early({"a"}, now_s)


def test_a_step_without_such_callers_is_never_put_off() -> None:
    commit_delay, now_s = after({"a"}, {"b"})
    assert not commit_delay.is_early(set(), now_s)


class SlowStore(TroubledStore):
    """A store whose commits take as long as those of a disk."""

    def commit(self, changes: Changes) -> None:
        time.sleep(0.004)
        super().commit(changes)


def test_two_who_send_again_when_they_are_answered_share_their_commits() -> None:
    asyncio.run(_share())


async def _share() -> None:
    store = SlowStore()
    shard = AsyncShard(Shard(store.open, SystemClock(), lambda: os.urandom(64)))
    await shard.call(CreateQueue(name="q"))
    before = store.commits
    callers = [_Caller(shard, name, 50) for name in ("a", "b")]
    callers[0].send()
    await asyncio.sleep(0)  # the other one comes when the first step is on its way
    callers[1].send()
    await asyncio.gather(*(caller.done for caller in callers))
    commits = store.commits - before
    assert commits < 75, f"{commits} commits for 100 sends: taking turns would have been 100"
    await shard.close()


class _Caller:
    """Sends, and sends again when that is committed and some work of its own is done."""

    def __init__(self, shard: AsyncShard, name: str, count: int) -> None:
        self._shard = shard
        self._name = name
        self._left = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self) -> None:
        self._shard.submit(Send(queue="q", bodies=[b"x"]), self._sent, caller=self._name)

    def _sent(self, call: Call) -> Any:
        assert call.error is None
        self._left -= 1
        if self._left:
            asyncio.get_running_loop().call_later(0.0005, self.send)
        else:
            self.done.set_result(None)


def test_calls_that_come_while_others_are_read_share_their_step() -> None:
    asyncio.run(_come_turn_by_turn())


async def _come_turn_by_turn() -> None:
    store = TroubledStore()
    shard = AsyncShard(Shard(store.open, SystemClock(), lambda: os.urandom(64)))
    await shard.call(CreateQueue(name="q"))
    loop, settled = asyncio.get_running_loop(), list[int]()

    def send(number: int) -> None:
        shard.submit(Send(queue="q", bodies=[b"x"]), lambda _call: settled.append(number))

    def send_and_go_on(number: int) -> None:
        send(number)
        if number < 6:
            loop.call_soon(send_and_go_on, number + 1)

    before = store.commits
    send(0)
    send_and_go_on(1)
    while len(settled) < 7:
        await asyncio.sleep(0)
    assert store.commits == before + 1, "each turn brought one more"
    send(7)
    loop.call_soon(send, 8)
    while len(settled) < 9:
        await asyncio.sleep(0)
    assert store.commits == before + 3, "one who is alone waits for nobody"
    await shard.close()
