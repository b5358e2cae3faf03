"""Whom the front end names to the shard: those who wait for a commit, and come again after it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from penstock.core.commands import Ack, Command, Receive, Send
from penstock.protocols.http import Exchange, Headers, Request
from penstock.protocols.sqs.server import SqsFrontEnd
from penstock.server.auth import Credentials
from penstock.server.clock import SystemClock
from penstock.server.settings import SqsSettings
from penstock.server.shard import Call
from penstock.server.shards import Shards
from penstock.server.tasks import CallbackCall
from tests.shards import open_shards, run_in_loop, stores_in

PATIENCE_S = 60


class Recording:
    """A shard, and who was named to it with which command."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.named: list[tuple[type[Command], object]] = []

    def submit(self, command: Command, on_settled: Callable[[Call], None], caller: object = None) -> CallbackCall:
        self.named.append((type(command), caller))
        return self._shards.submit(command, on_settled, caller)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards, name)


class Connection:
    """Asks the front end one thing after the other."""

    def __init__(self, front_end: SqsFrontEnd) -> None:
        self._front_end = front_end
        self._answered: asyncio.Future[bytes]

    def answer(self, exchange: Exchange, status: int, headers: Headers, body: bytes) -> None:
        exchange.connection = exchange.on_abandoned = None
        assert status == 200, body
        self._answered.set_result(body)

    def answer_well(self, exchange: Exchange, _lines: str, body: bytes) -> None:
        self.answer(exchange, 200, (), body)

    def has_hung_up(self) -> bool:
        return False

    async def ask(self, action: str, **parameters: Any) -> Any:
        self._answered = asyncio.get_running_loop().create_future()
        headers = {"host": "x", "x-amz-target": f"AmazonSQS.{action}"}
        request = Request("POST", b"/", headers, json.dumps(parameters).encode())
        self._front_end.handle(Exchange(self, request, False))
        body = await asyncio.wait_for(self._answered, PATIENCE_S)
        return json.loads(body or b"{}")


def test_who_sends_and_who_deletes_is_named_and_who_receives_is_not(tmp_path: Path) -> None:
    run_in_loop(_names(tmp_path / "data"))


async def _names(directory: Path) -> None:
    shards = open_shards(stores_in(directory), SystemClock())
    recording = Recording(shards)
    front_end = SqsFrontEnd(cast(Shards, recording), SqsSettings(), Credentials([]))
    one, two = Connection(front_end), Connection(front_end)
    url = (await one.ask("CreateQueue", QueueName="q"))["QueueUrl"]
    recording.named.clear()
    for connection in (one, two):
        await connection.ask("SendMessage", QueueUrl=url, MessageBody="text")
        (message,) = (await connection.ask("ReceiveMessage", QueueUrl=url))["Messages"]
        await connection.ask("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    kinds = [kind for kind, _ in recording.named]
    callers = [caller for _, caller in recording.named]
    assert kinds == [Send, Receive, Ack] * 2
    assert callers == [callers[0], None, callers[0], callers[3], None, callers[3]]
    assert len({callers[0], None, callers[3]}) == 3
    await shards.close()
