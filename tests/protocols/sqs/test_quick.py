"""The shorter way gives the answers of the longer one, byte by byte, and leaves to it what is unusual."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.commands import Command
from penstock.core.errors import StoreError
from penstock.protocols.http import Exchange, Headers, Request
from penstock.protocols.sqs.quick import joined_spans
from penstock.protocols.sqs.server import SqsFrontEnd
from penstock.protocols.sqs.service import Numbered
from penstock.server.auth import Credential, Credentials, Principal, Secret
from penstock.server.clock import ManualClock
from penstock.server.settings import SqsSettings
from penstock.server.shard import Call, Shard
from penstock.server.shards import Shards
from penstock.server.tasks import AsyncShard, CallbackCall
from penstock.store.memory import MemoryStore

PATIENCE_S = 60.0
ENTROPY = bytes(range(64))
Asked = tuple[str, dict[str, Any]]


class Longer:
    """A shard that is none of this process's own, for all that a front end can tell: so the longer way is taken."""

    def __init__(self, shard: AsyncShard) -> None:
        self._shard = shard
        self.submitted = 0

    def submit(self, command: Command, on_settled: Callable[[Call], None], caller: object = None) -> CallbackCall:
        self.submitted += 1
        return self._shard.submit(command, on_settled, caller)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)


class Side:
    """A front end on a store of its own, and one connection to it."""

    def __init__(self, *, is_short: bool) -> None:
        self.clock = ManualClock()
        self.shard = AsyncShard(Shard(MemoryStore, self.clock, lambda: ENTROPY))
        shards: Any = self.shard if is_short else Longer(self.shard)
        self.front_end = SqsFrontEnd(cast(Shards, shards), SqsSettings(), Credentials([]))
        self._answered: asyncio.Future[tuple[int, bytes]]

    def answer(self, exchange: Exchange, status: int, _headers: Headers, body: bytes) -> None:
        exchange.end()
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
        exchange = Exchange(self, Request("POST", b"/", headers, body), 0.0)
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
    + [{"DelaySeconds": 0}, {"DelaySeconds": 5}, {"DelaySeconds": 901}, {"MessageGroupId": "g"}]
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
def test_both_ways_answer_the_same(runner: asyncio.Runner, script: list[Asked]) -> None:
    runner.run(_both(script))


async def _both(script: list[Asked]) -> None:
    short, long = Side(is_short=True), Side(is_short=False)
    handles: list[str] = []
    script = [("CreateQueue", {"QueueName": "q"}), *script, ("GetQueueAttributes", {"AttributeNames": ["All"]})]
    for action, parameters in script:
        if action == "wait":
            short.clock.advance_ms(10_000)
            long.clock.advance_ms(10_000)
            continue
        asked = _with_handles(parameters, handles)
        asked.setdefault("QueueUrl", URL)
        first, second = await short.ask(action, asked), await long.ask(action, asked)
        assert first == second, (action, asked)
        if action == "ReceiveMessage" and first[0] == 200 and first[1]:
            handles += [each["ReceiptHandle"] for each in json.loads(first[1]).get("Messages", ())]
    await short.shard.close()
    await long.shard.close()


def _with_handles(parameters: dict[str, Any], handles: list[str]) -> dict[str, Any]:
    """The request with real receipt handles, as far as there are any; without what is None."""

    def real(name: str, value: Any) -> Any:
        if name == "ReceiptHandle" and isinstance(value, int):
            return handles[value % len(handles)] if handles else "none yet"
        if name == "Entries":
            return [_with_handles(entry, handles) for entry in value]
        return value

    return {name: real(name, value) for name, value in parameters.items() if value is not None}


# -- which way it is ---------------------------------------------------------------------------------------------------


def test_the_common_case_takes_the_shorter_way_and_no_other_does(runner: asyncio.Runner) -> None:
    runner.run(_ways())


async def _ways() -> None:
    side = Side(is_short=True)
    await side.ask("CreateQueue", {"QueueName": "q"})
    await side.ask("CreateQueue", {"QueueName": "f.fifo", "Attributes": {"FifoQueue": "true"}})
    taken = {name: action.quick for name, action in side.front_end._actions.items() if action.quick is not None}
    assert sorted(taken) == [
        "DeleteMessage",
        "DeleteMessageBatch",
        "ReceiveMessage",
        "SendMessage",
        "SendMessageBatch",
    ]
    for action, parameters, is_short in [
        ("SendMessage", {"MessageBody": "x"}, True),
        ("SendMessage", {"MessageBody": "x", "DelaySeconds": 1}, False),
        ("SendMessage", {"MessageBody": "x", "QueueUrl": "http://x/000000000000/f.fifo", "MessageGroupId": "g"}, False),
        ("SendMessageBatch", {"Entries": [{"Id": "a", "MessageBody": "x"}]}, True),
        ("ReceiveMessage", {}, True),
        ("ReceiveMessage", {"WaitTimeSeconds": 1}, False),
        ("ReceiveMessage", {"AttributeNames": ["All"]}, False),
        ("DeleteMessage", {"ReceiptHandle": "forged"}, False),
    ]:
        decoded = side.front_end._actions[action].decoder.decode(json.dumps({"QueueUrl": URL, **parameters}).encode())
        side._answered = asyncio.get_running_loop().create_future()
        exchange = Exchange(side, Request("POST", b"/", {"host": "x"}, b""), 0.0)
        assert taken[action](exchange, decoded) is is_short, (action, parameters)
        if is_short:
            assert (await asyncio.wait_for(side._answered, PATIENCE_S))[0] == 200
    await side.shard.close()


def test_a_queue_that_was_deleted_changed_or_created_again_is_not_mistaken_for_what_it_was(
    runner: asyncio.Runner,
) -> None:
    async def main() -> None:
        short, long = Side(is_short=True), Side(is_short=False)
        asked: list[Asked] = [
            ("CreateQueue", {"QueueName": "q"}),
            ("SendMessage", {"QueueUrl": URL, "MessageBody": "x" * 2_000}),
            ("SetQueueAttributes", {"QueueUrl": URL, "Attributes": {"MaximumMessageSize": "1024"}}),
            ("SendMessage", {"QueueUrl": URL, "MessageBody": "x" * 2_000}),
            ("SetQueueAttributes", {"QueueUrl": URL, "Attributes": {"DelaySeconds": "9"}}),
            ("SendMessage", {"QueueUrl": URL, "MessageBody": "later"}),
            ("ReceiveMessage", {"QueueUrl": URL, "MaxNumberOfMessages": 10}),
            ("DeleteQueue", {"QueueUrl": URL}),
            ("SendMessage", {"QueueUrl": URL, "MessageBody": "x"}),
            ("ReceiveMessage", {"QueueUrl": URL}),
            ("CreateQueue", {"QueueName": "q", "Attributes": {"VisibilityTimeout": "7"}}),
            ("SendMessage", {"QueueUrl": URL, "MessageBody": "x" * 2_000}),
            ("ReceiveMessage", {"QueueUrl": URL}),
        ]
        for action, parameters in asked:
            assert await short.ask(action, parameters) == await long.ask(action, parameters), (action, parameters)
            for side in (short, long):
                side.clock.advance_ms(61_000 if action == "DeleteQueue" else 1)
        await short.shard.close()
        await long.shard.close()

    runner.run(main())


def test_with_credentials_everybody_takes_the_longer_way(runner: asyncio.Runner) -> None:
    async def main() -> None:
        shard = AsyncShard(Shard(MemoryStore, ManualClock(), lambda: ENTROPY))
        credentials = Credentials([Credential("AK", Secret("secret"), Principal("p", "AK", []))])
        front_end = SqsFrontEnd(shard, SqsSettings(), credentials)
        assert credentials.are_required
        assert all(action.quick is None for action in front_end._actions.values())
        await shard.close()

    runner.run(main())


def test_a_closed_shard_is_an_error_of_the_protocol(runner: asyncio.Runner) -> None:
    async def main() -> None:
        short, long = Side(is_short=True), Side(is_short=False)
        for side in (short, long):
            await side.ask("CreateQueue", {"QueueName": "q"})
            await side.shard.close()
        asked = {"QueueUrl": URL, "MessageBody": "x"}
        first, second = await short.ask("SendMessage", asked), await long.ask("SendMessage", asked)
        assert first[:2] == second[:2]
        assert first[0] >= 500
        assert first[4] == second[4]

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
        answers = []
        for is_short in (True, False):
            side = Side(is_short=is_short)
            store = FailingStore()
            side.shard = AsyncShard(Shard(lambda store=store: store, side.clock, lambda: ENTROPY))  # type: ignore[misc]
            shards: Any = side.shard if is_short else Longer(side.shard)
            side.front_end = SqsFrontEnd(shards, SqsSettings(), Credentials([]))
            await side.ask("CreateQueue", {"QueueName": "q"})
            store.fails = True
            answers.append(await side.ask("SendMessage", {"QueueUrl": URL, "MessageBody": "x"}))
            store.fails = False
        assert answers[0] == answers[1]
        assert answers[0][0] >= 500

    runner.run(main())


# -- parts -------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 16**12 - 20), st.integers(0, 12))
def test_numbers_are_written_in_twelve_digits(first: int, count: int) -> None:
    numbered = Numbered("id-")
    assert numbered.texts(first, count) == [f"id-{number:012x}" for number in range(first, first + count)]
    assert numbered.text(first) == f"id-{first:012x}"


@given(st.lists(st.tuples(st.just(1), st.integers(0, 9), st.integers(1, 2)), min_size=1, max_size=8))
def test_joined_spans_hold_the_messages_that_they_are_made_of(found: list[tuple[int, int, int]]) -> None:
    spans = joined_spans(found)
    sequences = [sequence for _, sequence, _ in found]
    if len(set(sequences)) != len(sequences):
        assert spans is None
        return
    assert spans is not None
    held = {(number, span.attempt) for span in spans for number in range(span.first, span.last + 1)}
    assert held == {(sequence, attempt) for _, sequence, attempt in found}
