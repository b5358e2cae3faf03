"""Answers to PUB come in the order of the PUBs: a client has nothing else to tell which is whose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from penstock.core.errors import StaleReceipt, StoreError
from penstock.protocols.nsq import wire
from penstock.protocols.nsq.client import State
from penstock.protocols.nsq.connection import UNREAD_BYTES_MAX, Connection
from penstock.server.budget import Budget
from penstock.server.settings import NsqSettings


class HeldShard:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.calls: list[Callable[[Any], None]] = []

    def submit(self, command: object, on_settled: Callable[[Any], None], caller: object = None) -> None:
        self.calls.append(on_settled)

    def answer(self, number: int, error: Exception | None = None) -> None:
        self.calls[number](SimpleNamespace(error=error, reply=None))


class ReplyRig:
    """A connection of a client that has said nothing but PUB, each in a segment of its own."""

    def __init__(self, publishes: int) -> None:
        self.shard = HeldShard()
        topics = MagicMock(shard=self.shard)
        endpoint = SimpleNamespace(
            settings=NsqSettings(),
            topics=topics,
            loop=asyncio.get_running_loop(),
            credentials=SimpleNamespace(are_required=False),
            admit=lambda connection, transport: True,
            budget=Budget(NsqSettings().body_bytes_max * 4),
            dismiss=lambda connection: None,
            time_s=lambda: 0.0,
        )
        self.transport = MagicMock()
        self.transport.is_closing.return_value = False
        self.transport.get_write_buffer_size.return_value = 0
        self.transport.get_extra_info.return_value = ("127.0.0.1", 1)
        self.connection = Connection(endpoint)  # type: ignore[arg-type]
        self.connection.connection_made(self.transport)
        self.connection.data_received(wire.MAGIC)
        for number in range(publishes):
            self.connection.data_received(b"PUB topic-%d\n\x00\x00\x00\x01x" % number)
        assert len(self.shard.calls) == publishes

    @property
    def written(self) -> bytes:
        return b"".join(call.args[0] for call in self.transport.write.call_args_list)

    def close(self) -> None:
        self.connection.connection_lost(None)


@pytest.fixture
def with_rig() -> Callable[[int, Callable[[ReplyRig], None]], None]:
    def run(publishes: int, body: Callable[[ReplyRig], None]) -> None:
        async def main() -> None:
            rig = ReplyRig(publishes)
            body(rig)
            rig.close()

        asyncio.run(main())

    return run


def test_a_shard_that_is_faster_does_not_confirm_what_another_has_not_written(with_rig: Any) -> None:
    def body(rig: ReplyRig) -> None:
        rig.shard.answer(1)
        assert rig.written == b""
        rig.shard.answer(0)
        assert rig.written == wire.OK_FRAME * 2
        rig.shard.answer(2)
        assert rig.written == wire.OK_FRAME * 3

    with_rig(3, body)


def test_after_a_publish_that_failed_none_is_confirmed(with_rig: Any) -> None:
    def body(rig: ReplyRig) -> None:
        rig.shard.answer(2)
        rig.shard.answer(1, StoreError("no"))
        assert rig.written == b""
        rig.shard.answer(0)
        assert rig.written == wire.OK_FRAME + wire.error_frame("E_PUB_FAILED", "PUB failed no")
        assert rig.transport.close.called
        rig.shard.answer(3)
        assert rig.written.count(wire.OK_FRAME) == 1

    with_rig(4, body)


def test_who_does_not_read_that_fins_are_refused_is_not_read_from_and_then_gets_every_answer(with_rig: Any) -> None:
    lines, count = b"FIN 0123456789abcdef\n" * 100, 10_000

    def answer_all(rig: ReplyRig) -> None:
        while rig.shard.calls:
            rig.shard.calls.pop(0)(SimpleNamespace(error=StaleReceipt("it is not in flight"), reply=None))

    def body(rig: ReplyRig) -> None:
        rig.connection.client.state = State.SUBSCRIBED
        rig.connection.pause_writing()
        for _ in range(count // 100):
            rig.connection.data_received(lines)
            answer_all(rig)
        assert len(rig.written) < 2 * UNREAD_BYTES_MAX
        rig.transport.pause_reading.assert_called()
        rig.connection.resume_writing()
        answer_all(rig)
        assert rig.written.count(b"ID not in flight") == count
        rig.transport.resume_reading.assert_called()

    with_rig(0, body)


def test_a_publish_that_waits_for_room_has_its_own_time_and_not_what_another_has_left() -> None:
    async def main() -> None:
        rig = ReplyRig(0)
        budget, others = rig.connection._endpoint.budget, rig.connection._endpoint.budget.share()
        budget.room_timeout_s = 1.0
        length = 1024 * 1024
        for _ in range(2):
            others.hold(budget.bytes_max)
            rig.connection.data_received(b"PUB topic\n" + length.to_bytes(4, "big"))
            await asyncio.sleep(0.6)
            others.let_go()
            await asyncio.sleep(0)
            rig.connection.data_received(bytes(length))
            rig.shard.answer(-1)
        assert rig.written == wire.OK_FRAME * 2
        others.hold(budget.bytes_max)
        rig.connection.data_received(b"PUB topic\n" + length.to_bytes(4, "big"))
        await asyncio.sleep(1.2)
        assert b"E_PUB_FAILED" in rig.written
        rig.close()

    asyncio.run(main())


def test_very_many_commands_are_handled_in_several_turns_and_in_their_order() -> None:
    async def main() -> None:
        rig = ReplyRig(0)
        rig.connection.data_received(b"".join(b"PUB topic-%d\n\x00\x00\x00\x01x" % number for number in range(1_200)))
        assert len(rig.shard.calls) == 500
        rig.transport.pause_reading.assert_called()
        rig.connection.eof_received()
        await asyncio.sleep(0)
        assert len(rig.shard.calls) == 1_000
        await asyncio.sleep(0)
        assert len(rig.shard.calls) == 1_200
        assert not rig.transport.close.called
        for number in range(1_200):
            rig.shard.answer(number)
        assert rig.written == wire.OK_FRAME * 1_200
        assert rig.transport.close.called
        rig.close()

    asyncio.run(main())
