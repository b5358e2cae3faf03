"""What actions answer does not depend on the way that a message takes: with or without credentials, bare or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.commands import Command, Send, Sent, Span
from penstock.core.errors import StoreError
from penstock.protocols.http import Exchange, Headers, Request
from penstock.protocols.sqs.messages import Round
from penstock.protocols.sqs.server import SqsFrontEnd
from penstock.protocols.sqs.shapes import DeleteMessageBatchRequestEntry
from penstock.server.auth import Credentials
from penstock.server.settings import SqsSettings
from penstock.server.shard import Call, Shard
from penstock.server.shards import Shards
from penstock.server.tasks import AsyncShard, CallbackCall
from penstock.store.memory import MemoryStore
from tests.clock import ManualClock

PATIENCE_S = 60.0
ENTROPY = bytes(range(64))
Asked = tuple[str, dict[str, Any]]


class Side:
    """A front end on a store of its own, and one connection to it."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.clock = ManualClock()
        self.shard = AsyncShard(Shard(lambda: store or MemoryStore(), self.clock, lambda: ENTROPY))
        self.front_end = SqsFrontEnd(self.shard, SqsSettings(), Credentials([]))
        self._answered: asyncio.Future[tuple[int, bytes]]

    def answer(self, exchange: Exchange, status: int, _headers: Headers, body: bytes) -> None:
        exchange.connection = exchange.on_abandoned = None
        self._answered.set_result((status, body))

    def answer_well(self, exchange: Exchange, _lines: str, body: bytes) -> None:
        self.answer(exchange, 200, (), body)

    def has_hung_up(self) -> bool:
        return False

    async def ask(self, action: str, parameters: dict[str, Any]) -> tuple[int, bytes, str, str, str, str]:
        """Status and body of the answer, and what the log and the metrics get to know."""
        self._answered = asyncio.get_running_loop().create_future()
        headers = {"host": "x", "x-amz-target": f"AmazonSQS.{action}"}
        body = json.dumps(parameters, ensure_ascii=False).encode("utf-8", "replace")
        exchange = Exchange(self, Request("POST", b"/", headers, body), False)
        self.front_end.handle(exchange)
        status, answer = await asyncio.wait_for(self._answered, PATIENCE_S)
        return status, answer, exchange.action, exchange.queue, exchange.outcome, exchange.principal


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as one:
        yield one


# -- the same answers --------------------------------------------------------------------------------------------------

URL = "http://x/000000000000/q"
urls = st.sampled_from([URL] * 8 + ["http://elsewhere/000000000000/q", "http://x/000000000000/gone", "", "q", None])
bodies = st.one_of(
    st.sampled_from(["x", "plain text", "x" * 300, 'a"b', "back\\slash", "é", "", "\x01", None, "large" * 20]),
    st.text("abc ", min_size=1, max_size=9),
)
unusual = st.sampled_from(
    [{}] * 12
    + [{"DelaySeconds": 5}, {"DelaySeconds": 901}, {"MessageGroupId": "g"}]
    + [{"MessageDeduplicationId": "d"}, {"MessageAttributes": {}}]
    + [{"MessageAttributes": {"a": {"DataType": "String", "StringValue": "v"}}}]
)
ids = st.sampled_from(["a", "b", "c-1", "c_2", "", "a b", None, "é", "x" * 81])
several = st.integers(0, 11)


def _id(draw: st.DrawFn, number: int) -> str | None:
    """Mostly a good one."""
    return draw(ids) if draw(st.integers(0, 4)) == 0 else f"id{number}"


@st.composite
def sends(draw: st.DrawFn) -> Asked:
    return "SendMessage", {"QueueUrl": draw(urls), "MessageBody": draw(bodies), **draw(unusual)}


@st.composite
def batches(draw: st.DrawFn) -> Asked:
    entries = [
        {
            "Id": draw(ids) if draw(st.integers(0, 3)) == 0 else f"id{number}",
            "MessageBody": draw(bodies),
            **draw(unusual),
        }
        for number in range(draw(several))
    ]
    return "SendMessageBatch", {"QueueUrl": draw(urls), "Entries": entries}


@st.composite
def receives(draw: st.DrawFn) -> Asked:
    more = draw(
        st.sampled_from(
            [{}] * 6
            + [
                {"VisibilityTimeout": 0},
                {"VisibilityTimeout": 9},
                {"VisibilityTimeout": 43_201},
                {"WaitTimeSeconds": 0},
            ]
            + [{"WaitTimeSeconds": -1}, {"AttributeNames": ["All"]}, {"MessageAttributeNames": ["All"]}]
            + [{"ReceiveRequestAttemptId": "r"}, {"AttributeNames": []}, {"MessageSystemAttributeNames": ["Nonsense"]}]
        )
    )
    limit = draw(st.sampled_from([None, 1, 2, 10, 10, 0, 11]))
    return "ReceiveMessage", {"QueueUrl": draw(urls), "MaxNumberOfMessages": limit, **more}


@st.composite
def deletes(draw: st.DrawFn) -> Asked:
    """Handles are numbers of messages that were received; the test puts them in."""
    handles = st.one_of(st.integers(0, 20), st.sampled_from(["", "forged", None, "A" * 52]))
    if draw(st.booleans()):
        return "DeleteMessage", {"QueueUrl": draw(urls), "ReceiptHandle": draw(handles)}
    entries = [{"Id": _id(draw, number), "ReceiptHandle": draw(handles)} for number in range(draw(several))]
    return "DeleteMessageBatch", {"QueueUrl": draw(urls), "Entries": entries}


steps = st.one_of(sends(), sends(), batches(), receives(), receives(), deletes(), st.just(("wait", {})))


@given(st.lists(steps, max_size=14))
@settings(max_examples=60)
def test_messages_with_a_delay_of_nothing_are_answered_as_those_with_nothing_beside_their_bodies(
    runner: asyncio.Runner, script: list[Asked]
) -> None:
    runner.run(_both(script))


async def _both(script: list[Asked]) -> None:
    bare, drafted = Side(), Side()
    handles: list[str] = []
    script = [("CreateQueue", {"QueueName": "q"}), *script, ("GetQueueAttributes", {"AttributeNames": ["All"]})]
    for action, parameters in script:
        if action == "wait":
            bare.clock.advance_ms(10_000)
            drafted.clock.advance_ms(10_000)
            continue
        asked = _with_handles(parameters, handles)
        asked.setdefault("QueueUrl", URL)
        first, second = await bare.ask(action, asked), await drafted.ask(action, _with_delays(action, asked))
        assert first == second, (action, asked)
        if action == "ReceiveMessage" and first[0] == 200 and first[1]:
            handles += [each["ReceiptHandle"] for each in json.loads(first[1]).get("Messages", ())]
    await bare.shard.close()
    await drafted.shard.close()


def _with_delays(action: str, asked: dict[str, Any]) -> dict[str, Any]:
    if action == "SendMessage":
        return {"DelaySeconds": 0, **asked}
    if action == "SendMessageBatch":
        return {**asked, "Entries": [{"DelaySeconds": 0, **entry} for entry in asked["Entries"]]}
    return asked


def _with_handles(parameters: dict[str, Any], handles: list[str]) -> dict[str, Any]:
    """The request with real receipt handles, as far as there are any; without what is None."""

    def real(name: str, value: Any) -> Any:
        if name == "ReceiptHandle" and isinstance(value, int):
            return handles[value % len(handles)] if handles else "none yet"
        if name == "Entries":
            return [_with_handles(entry, handles) for entry in value]
        return value

    return {name: real(name, value) for name, value in parameters.items() if value is not None}


# -- queues that change ------------------------------------------------------------------------------------------------


def test_a_queue_that_was_deleted_changed_or_created_again_is_not_mistaken_for_what_it_was(
    runner: asyncio.Runner,
) -> None:
    async def main() -> None:
        side = Side()
        asked: list[tuple[int, str, dict[str, Any]]] = [
            (200, "CreateQueue", {"QueueName": "q"}),
            (200, "SendMessage", {"QueueUrl": URL, "MessageBody": "x" * 2_000}),
            (200, "SetQueueAttributes", {"QueueUrl": URL, "Attributes": {"MaximumMessageSize": "1024"}}),
            (400, "SendMessage", {"QueueUrl": URL, "MessageBody": "x" * 2_000}),
            (200, "DeleteQueue", {"QueueUrl": URL}),
            (400, "SendMessage", {"QueueUrl": URL, "MessageBody": "x"}),
            (400, "ReceiveMessage", {"QueueUrl": URL}),
            (200, "CreateQueue", {"QueueName": "q", "Attributes": {"VisibilityTimeout": "7"}}),
            (200, "SendMessage", {"QueueUrl": URL, "MessageBody": "x" * 2_000}),
            (200, "ReceiveMessage", {"QueueUrl": URL}),
        ]
        for status, action, parameters in asked:
            assert (await side.ask(action, parameters))[0] == status, (action, parameters)
            side.clock.advance_ms(61_000 if action == "DeleteQueue" else 1)
        assert await _bodies(side) == []
        side.clock.advance_ms(7_001)
        assert await _bodies(side) == ["x" * 2_000]
        await side.shard.close()

    runner.run(main())


async def _bodies(side: Side) -> list[str]:
    _, body, *_ = await side.ask("ReceiveMessage", {"QueueUrl": URL, "MaxNumberOfMessages": 10})
    return [message["Body"] for message in json.loads(body).get("Messages", ())]


# -- partitions --------------------------------------------------------------------------------------------------------


class Spreading:
    """A shard that spreads batches over partitions."""

    def __init__(self, shard: AsyncShard, sequences: list[int]) -> None:
        self._shard = shard
        self._sequences = sequences

    def submit(self, command: Command, on_settled: Callable[[Call], None], caller: object = None) -> CallbackCall:
        def spread(call: Call) -> None:
            if isinstance(command, Send):
                call.reply = Sent(call.reply.queue_id, self._sequences[0], len(self._sequences), self._sequences)
            on_settled(call)

        return self._shard.submit(command, spread, caller)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)


def test_a_batch_that_was_spread_over_partitions_is_answered_with_the_numbers_it_got(runner: asyncio.Runner) -> None:
    async def main() -> None:
        side, sequences = Side(), [5, (1 << 50) + 9]
        side.front_end = SqsFrontEnd(cast(Shards, Spreading(side.shard, sequences)), SqsSettings(), Credentials([]))
        await side.ask("CreateQueue", {"QueueName": "q"})
        queue = side.shard.identity.queues["q"]
        for more in ({}, {"DelaySeconds": 0}):
            entries = [{"Id": str(index), "MessageBody": "text", **more} for index in range(2)]
            _, body, *_ = await side.ask("SendMessageBatch", {"QueueUrl": URL, "Entries": entries})
            assert [entry["MessageId"] for entry in json.loads(body)["Successful"]] == [
                side.shard.identity.message_id(queue.id, sequence) for sequence in sequences
            ]
        await side.shard.close()

    runner.run(main())


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_closed_shard_is_an_error_of_the_protocol(runner: asyncio.Runner) -> None:
    async def main() -> None:
        side = Side()
        await side.ask("CreateQueue", {"QueueName": "q"})
        await side.shard.close()
        status, body, action, queue, outcome, _ = await side.ask("SendMessage", {"QueueUrl": URL, "MessageBody": "x"})
        assert status >= 500
        assert b"__type" in body
        assert (action, queue) == ("SendMessage", "q")
        assert outcome != "ok"

    runner.run(main())


class FailingStore(MemoryStore):
    """Commits until it is told not to."""

    fails = False

    def commit(self, changes: Any) -> None:
        if self.fails:
            raise StoreError("the disk is on fire")
        super().commit(changes)


def test_a_failed_commit_is_told_to_everybody_in_it(runner: asyncio.Runner) -> None:
    async def main() -> None:
        store = FailingStore()
        side = Side(store)
        await side.ask("CreateQueue", {"QueueName": "q"})
        store.fails = True
        entries = [{"Id": "a", "MessageBody": "x"}]
        for action, parameters in [("SendMessage", {"MessageBody": "x"}), ("SendMessageBatch", {"Entries": entries})]:
            status, body, *_ = await side.ask(action, {"QueueUrl": URL, **parameters})
            assert status >= 500
            assert b"the disk is on fire" in body
        store.fails = False

    runner.run(main())


# -- parts -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 2)), min_size=1, max_size=8))
def test_a_round_settles_the_messages_of_its_entries(found: list[tuple[int, int]]) -> None:
    one = Round("main", 0, [], [], [])
    attempts: dict[int, int] = {}
    for sequence, attempt in found:
        if attempts.setdefault(sequence, attempt) == attempt:
            one.add(DeleteMessageBatchRequestEntry(), Span(sequence, sequence, attempt))
    held = [(number, span.attempt) for span in one.spans for number in range(span.first, span.last + 1)]
    assert sorted(held) == sorted(attempts.items())
    assert set(one.sequences) == set(attempts)
    assert len(one.entries) == len(one.sequences)
