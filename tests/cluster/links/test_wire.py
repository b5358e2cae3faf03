"""Commands and replies between nodes: all of them, whole, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.base import LinkBroken, ShardMoved
from penstock.cluster.links import wire
from penstock.cluster.links.link import Link, NotReached
from penstock.cluster.links.server import LinkServer
from penstock.cluster.node import IS_SERVED
from penstock.core import commands
from penstock.core.commands import Command, Delivery, Failure, Once, Run, Seen, Span
from penstock.core.delivery.states import State
from penstock.core.errors import InvalidRequest, PenstockError, QueueNotFound, StaleReceipt, WorkRefused
from penstock.core.packed_error import PackedError, unpack_error
from penstock.core.queues.config import Backoff, QueueConfig
from penstock.core.storage.chunk import Chunk, PackedBodies
from penstock.server.shard import Call, Tick
from penstock.server.tasks import CallbackCall
from penstock.store.errors import DiskFull
from penstock.wire.answers import BadAnswer, unpack_reply
from penstock.wire.requests import BadFrame
from tests.cluster.links.linking import Asked, Subscriber, identity, in_loop

ONCE = Once("client", 5, 3)
CONFIG = QueueConfig(kind="fifo", lease_ms=5, backoff=Backoff("linear", 7), tags={"a": "b"}, retention_ms=None)
SPANS = [Span(1, 5, 1), Span(9, 9, 3)]
SEQUENCES = np.array([5, 1 << 50, 7], dtype=np.int64)
PACKED = PackedBodies(b"onethree", np.array([0, 3, 8], dtype=np.int32))
FAILURE = Failure(1, 2, 1, 5, 6, "me", "it broke")
CHUNK = Chunk.of(
    100,
    77,
    [b"one", b"", b"three"],
    attributes=[b"a", None, b"c"],
    groups=[b"g", b"g", None],
    dedup_ids=[b"1", None, None],
    origins=[None, b"o", None],
    due_ms=[1, 2, 3],
)
SEND = commands.Send(
    queue="q",
    bodies=[b"x", b"y"],
    attributes=[None, b"a"],
    groups=["g", None],
    dedup_ids=[None, "d"],
    origins=[b"o", None],
    priority=3,
    delay_ms=5,
    due_ms=6,
    create=False,
    channels=("a", "b"),
    config=CONFIG,
    once=ONCE,
)
ENTRIES = [
    commands.OutboxEntry(4, 99, commands.ForwardedMessages("q", True, config=CONFIG), b"chunk"),
    commands.OutboxEntry(5, 99, commands.ForwardedAcks([commands.Ack(queue="q", spans=SPANS)])),
]
SETTLED = commands.Settled(3, [commands.Refused(1, 2, StaleReceipt("the lease is over"))], [(5, 2)])
STATS = commands.Stats(
    "q", 1, 2, 3, 4, 5, None, 7, {"main": commands.ChannelStats("main", 1, 2, 3, 4, 5, 6, True, 5, 9)}, {"c": 5}
)
INFO = commands.QueueInfo("q", 1 << 41, CONFIG, 5, 6, ["main"])
REDRIVE = commands.RedriveTask(3, "q.dead", None, "running", 1, 2, 3, 4, contains=b"x", sequences=[1])
RUNS = [
    Run(CHUNK, 0, 3, np.array([1, 2, 3], dtype=np.uint32), np.array([5, 6, 7], dtype=np.int64), [FAILURE]),
    Run(CHUNK, 1, 2, 4, 99),
]
DELIVERY = Delivery("q", 1 << 41, "main", 2, 1_000, 2_000, RUNS)
SENT = commands.Sent(1 << 41, 5, 2, [5, 3], [1])

EXAMPLES: list[tuple[Command, Any]] = [
    (commands.CreateQueue(name="q", config=CONFIG, channels=("a",), once=ONCE), INFO),
    (commands.ChangeQueue(name="q", changes={"lease_ms": 5, "tags": {"a": "b"}, "retention_ms": None}), INFO),
    (commands.DeleteQueue(name="q", unless_channels=True), None),
    (commands.PurgeQueue(name="q"), 17),
    (commands.DescribeQueue(name="q"), INFO),
    (commands.ListQueues(prefix="a", after="b", limit=3), ["q", "ä"]),
    (commands.QueueStats(name="q"), STATS),
    (SEND, SENT),
    (commands.Send(queue="q", bodies=PACKED), commands.Sent(1, 2, 3)),
    (commands.Send(queue="q", bodies=PackedBodies.even(b"onetwo", 3), attributes=[b"a", None]), SENT),
    (commands.Receive(queue="q", channel="c", limit=5, wait_ms=6, lease_ms=7, session=8, attempt_id="a"), DELIVERY),
    (commands.Receive(queue="q"), Delivery("q", 1, "main", 2, 3, 4)),
    (commands.Receive(queue="q"), None),
    (commands.SetCredit(subscription=3, credit=5, room_bytes=7), 2),
    (commands.AddCredit(subscription=3, credit=5), None),
    (commands.Ack(queue="q", spans=SPANS, channel="c", receipts=["r"], once=ONCE), SETTLED),
    (commands.AckSequences(queue="q", channel="c", sequences=SEQUENCES, session=3, durable=False), SETTLED),
    (commands.ReleaseSequences(queue="q", channel="c", sequences=SEQUENCES, session=3, delay_ms=5, error="e"), SETTLED),
    (commands.ExtendSequences(queue="q", channel="c", sequences=SEQUENCES[:0], session=3, lease_ms=5), SETTLED),
    (commands.Release(queue="q", spans=SPANS, delay_ms=5, error="e", receipts=["r"]), SETTLED),
    (commands.GiveBack(queue="q", spans=SPANS, channel="c"), SETTLED),
    (commands.Extend(queue="q", spans=SPANS, lease_ms=5, receipts=["r"]), commands.Settled(1)),
    (
        commands.CommitWork(
            acks=[commands.Ack(queue="q", spans=SPANS)],
            sends=[SEND, commands.Send(queue="q", bodies=PACKED)],
            mark=("name", 7),
            mark_after=6,
            check_only=True,
            ack_shards=[1],
            send_shards=[0, 2],
            once=ONCE,
        ),
        [SENT, commands.Sent(0, -1, 2)],
    ),
    (commands.CommitWork(acks=[], sends=[]), commands.AlreadyDone("name", 7)),
    (commands.HoldForWork(acks=[commands.Ack(queue="q", spans=SPANS)], lease_ms=5), SETTLED),
    (commands.RecallWork(named=ONCE, mark=("name", 7)), [SENT]),
    (commands.RecallWork(mark=("name", 7)), commands.AlreadyDone("name", 7)),
    (commands.RecallWork(), None),
    (commands.LastMark(name="name"), -1),
    (commands.StageWork(name="name", sends=[SEND], stage=3, send_shards=[1]), commands.Staged(3, "it is FIFO")),
    (commands.ReadOutbox(target=3, after=4, limit_bytes=5), ENTRIES),
    (commands.ForgetOutbox(target=3, up_to=4), 5),
    (commands.TallyQueues(after="a", limit=2), [commands.QueueTally("b", 1, 5, 3, 30, 0, 1, 1, 1, 9, 4, 1, 1)]),
    (commands.TakeOutbox(source="outbox 3", after=3, up_to=5, entries=ENTRIES), commands.Taken(5, True, 1, 2)),
    (commands.CreateChannel(queue="q", channel="c", start=5, offset=7), 3),
    (commands.DeleteChannel(queue="q", channel="c", purge_last=True), None),
    (commands.PauseChannel(queue="q", channel="c", paused=False), None),
    (commands.PauseQueue(queue="q", paused=False), None),
    (commands.PurgeBacklog(queue="q"), 3),
    (commands.PurgeChannel(queue="q", channel="c"), 3),
    (commands.OpenSession(name="s", ttl_ms=5), 9),
    (commands.Heartbeat(session=9), None),
    (commands.EndSession(session=9, error="e"), 4),
    (
        commands.ReadRecords(queue="q", consumer="c", offset=5, limit=6, end=7, bytes_max=8),
        commands.Records("q", 1, RUNS, 5, 6),
    ),
    (commands.AckUpTo(queue="q", channel="c", offset=5), 4),
    (
        commands.FindOffsets(queue="q", times_ms=(5, 6), after=7, bytes_max=8),
        commands.Offsets("q", 1, 2, 3, [4, 5], 6, 7),
    ),
    (
        commands.ListChunks(queue="q", offset=5, end=7, limit=6),
        commands.ChunkList("q", 1, [b"one key", b"another"], 6),
    ),
    (commands.AckConsumer(queue="q", consumer="c", offset=5, allow_rewind=True), 5),
    (commands.DeleteConsumer(queue="q", consumer="c"), None),
    (
        commands.Browse(queue="q", channel="c", after=5, limit=6, states=(State.LEASED,), contains=b"x", end=9),
        [Seen(CHUNK, 1, State.LEASED, 3, 5, [FAILURE])],
    ),
    (commands.Browse(queue="q"), []),
    (
        commands.LookUp(queue="q", sequences=[4, 5]),
        [commands.Life("q", 1, 4, 9, b"x", channels=[commands.ChannelLife("main", State.LEASED, failures=[FAILURE])])],
    ),
    (commands.DeleteMessages(queue="q", sequences=[4], channel="c"), commands.Changed(1, [5])),
    (
        commands.RescheduleMessages(queue="q", sequences=[4], channel="c", due_ms=5, error="e", delay_ms=6),
        commands.Changed(1),
    ),
    (commands.NameQueue(queue_id=5), "q"),
    (commands.CountQueues(prefix="a", after="b", limit=5), [STATS]),
    (
        commands.ListSessions(queue="q", after=3, limit=4),
        [commands.SessionInfo(4, "s", 5, 6, "c", True, [commands.HeldLeases("q", "main", 1, 2, 3)])],
    ),
    (
        commands.StartRedrive(
            queue="q",
            target="t",
            sequences=[1],
            contains=b"x",
            error="e",
            per_second=5,
            group="timeout after # s",
            discard=True,
        ),
        REDRIVE,
    ),
    (commands.CancelRedrive(task=3), REDRIVE),
    (commands.ListRedrives(queue="q"), [REDRIVE]),
    (Tick(), None),
]
"""A command with every field set to something else than its default, and a reply to it."""
ELSEWHERE = {commands.Subscribe, commands.CancelWait}
"""Those with tickets: see `test_links.py`, and below."""

ERRORS: list[PenstockError] = [
    QueueNotFound("there is no queue 'q'"),
    InvalidRequest("no"),
    WorkRefused("no"),
    DiskFull("no space"),
    ShardMoved(5, 17),
    NotReached(5, 0, "h:1"),
    LinkBroken("who knows"),
]


class Scripted:
    """A place that keeps the commands, and answers with what it is told."""

    def __init__(self) -> None:
        self.commands: list[tuple[int, Command]] = []
        self.reply: Any = None
        self.error: BaseException | None = None

    def submit(
        self, shard: int, command: Command, on_settled: Callable[[Call], None], caller: object = None
    ) -> CallbackCall:
        self.commands.append((shard, command))
        call = CallbackCall(command, on_settled)
        call.reply, call.error = self.reply, self.error
        asyncio.get_running_loop().call_soon(call.settle)
        return call

    def withdraw(self, call: CallbackCall) -> None:
        raise AssertionError("nothing waits here")


def plain(value: Any) -> Any:
    """Something that can be compared, whatever it is made of."""
    if isinstance(value, Run):
        messages = [
            [
                value.chunk.body(at),
                value.chunk.attributes(at),
                value.chunk.group(at),
                value.chunk.dedup_id(at),
                value.chunk.origin(at),
                value.chunk.due(at),
                value.chunk.sequence(at),
            ]
            for at in range(value.start, value.stop)
        ]
        rest = [value.attempts.tolist(), value.first_received_ms.tolist(), value.failures, value.chunk.sent_ms]
        return [messages, rest]
    if isinstance(value, Seen):
        return [plain(Run(value.chunk, value.index, value.index + 1, value.attempts, value.deadline_ms))]
    # of a compiled class that is a Sequence, `isinstance` says it of text, too
    if type(value) is PackedBodies or isinstance(value, np.ndarray):
        return [type(value).__name__, list(value)]
    if isinstance(value, PenstockError):
        return [type(value).__name__, str(value)]
    if isinstance(value, msgspec.Struct):
        return [type(value).__name__, [plain(getattr(value, name)) for name in value.__struct_fields__]]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [plain(each) for each in value]]
    return value


async def over_a_socket(command: Command, reply: Any, error: BaseException | None = None) -> tuple[Command, Any]:
    """The command as it arrives, and the reply as it comes back."""
    place = Scripted()
    place.reply, place.error = reply, error
    server = LinkServer(place, identity("b"))
    link = Link(await server.start("127.0.0.1:0"), identity("a"))
    try:
        answer = await Asked(link, 2, command).result()
    finally:
        await link.close()
        await server.close()
    shard, arrived = place.commands[0]
    assert shard == 2
    return arrived, answer


def all_commands() -> set[type[Command]]:
    """Every command of the core, by the family tree, whatever module it is in; and the shards' own."""
    found: set[type[Command]] = set()
    to_look_at: list[type[Command]] = [Command]
    while to_look_at:
        for kind in to_look_at.pop().__subclasses__():
            to_look_at.append(kind)
            is_earlier = any(each.__module__.startswith("penstock.core.") for each in kind.__subclasses__())
            if kind.__module__.startswith("penstock.core.") and not is_earlier:  # the last form of a command travels
                found.add(kind)
    return found | {Tick}


def test_every_command_of_the_core_travels_and_has_an_example_here() -> None:
    assert set(wire.COMMANDS) == all_commands()
    assert {type(command) for command, _ in EXAMPLES} | ELSEWHERE == all_commands()


@pytest.mark.parametrize(
    "index", range(len(EXAMPLES)), ids=lambda index: f"{type(EXAMPLES[index][0]).__name__}-{index}"
)
@in_loop
async def test_a_command_and_its_reply_arrive_as_they_were(index: int) -> None:
    command, reply = EXAMPLES[index]
    arrived, answer = await over_a_socket(command, reply)
    assert type(arrived) is type(command)
    assert plain(arrived) == plain(command)
    assert plain(answer) == plain(reply)


@in_loop
async def test_messages_in_one_piece_are_not_taken_apart() -> None:
    arrived, _ = await over_a_socket(commands.Send(queue="q", bodies=PACKED), SENT)
    assert isinstance(arrived, commands.Send)
    assert isinstance(arrived.bodies, PackedBodies)
    assert isinstance(arrived.bodies.data, bytes)
    assert arrived.bodies.longest() == 5


@in_loop
async def test_tickets_stay_at_home() -> None:
    subscriber = Subscriber()
    subscribe = commands.Subscribe(
        queue="q", channel="c", credit=5, lease_ms=6, session=7, ticket=subscriber, in_flight=True, room_bytes=8
    )
    arrived, answer = await over_a_socket(subscribe, commands.Subscribed(17))
    assert answer.subscription == 17
    assert isinstance(arrived, commands.Subscribe)
    assert arrived.ticket is not subscriber
    assert plain(msgspec.structs.replace(arrived, ticket=None)) == plain(
        msgspec.structs.replace(subscribe, ticket=None)
    )


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@in_loop
async def test_an_error_arrives_as_it_was(error: PenstockError) -> None:
    with pytest.raises(type(error)) as raised:
        await over_a_socket(commands.QueueStats(name="q"), None, error)
    assert type(raised.value) is type(error)
    assert str(raised.value) == str(error)
    assert vars(raised.value) == vars(error)


@in_loop
async def test_a_bug_at_the_other_node_is_an_error_here() -> None:
    with pytest.raises(PenstockError, match="unexpected"):
        await over_a_socket(commands.QueueStats(name="q"), None, KeyError("oops"))


@in_loop
async def test_a_reply_that_does_not_travel_is_an_error_and_nothing_else_breaks() -> None:
    with pytest.raises(PenstockError, match="cannot be sent on"):
        await over_a_socket(commands.QueueStats(name="q"), object())


@in_loop
async def test_a_reply_of_another_kind_is_an_error() -> None:
    with pytest.raises(BadAnswer, match="no reply to QueueStats"):
        await over_a_socket(commands.QueueStats(name="q"), 17)


@in_loop
async def test_a_command_that_does_not_travel_is_refused_and_nothing_else_breaks() -> None:
    with pytest.raises(InvalidRequest, match="cannot be sent on"):
        await over_a_socket(commands.ChangeQueue(name="q", changes={"lease_ms": object()}), None)


def test_a_command_of_wrong_types_is_told_apart_from_its_neighbours() -> None:
    given = [[1, 0, ["QueueStats", "q"], 0], [2, 0, ["QueueStats", 5], 0], [3, 0, ["Fly"], 0]]
    payload = msgspec.msgpack.encode([given, [9]])
    numbered, withdrawn = wire.decode_commands(payload)
    assert [type(command).__name__ for _, _, command, _ in numbered] == [
        "QueueStats",
        "InvalidRequest",
        "InvalidRequest",
    ]
    assert withdrawn == [9]


def test_an_error_made_of_more_than_its_text_becomes_what_it_is_a_kind_of_without_that() -> None:
    packed = PackedError(["ShardMoved", "PenstockError"], "gone")
    assert type(unpack_error(packed)) is PenstockError
    assert str(unpack_error(packed)) == "gone"


@given(st.binary(max_size=200))
def test_bytes_that_are_no_commands_are_refused(payload: bytes) -> None:
    try:
        numbered, withdrawn = wire.decode_commands(payload)
    except BadFrame:
        return
    assert all(isinstance(command, Command | InvalidRequest) for _, _, command, _ in numbered)
    assert all(isinstance(number, int) for number in withdrawn)


@given(st.data())
def test_commands_with_damaged_bytes_are_commands_or_refused(data: st.DataObject) -> None:
    command, _ = data.draw(st.sampled_from(EXAMPLES))
    payload = bytearray(wire.encode_commands([(1, 2, command, 0)], [5]))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        numbered, _ = wire.decode_commands(bytes(payload))
    except BadFrame:
        return
    assert all(isinstance(each, Command | InvalidRequest) for _, _, each, _ in numbered)


@given(st.binary(max_size=200), st.sampled_from(sorted(wire.COMMANDS, key=lambda kind: kind.__name__)))
def test_bytes_that_are_no_replies_are_refused(payload: bytes, kind: type[Command]) -> None:
    try:
        for _, _, raw in wire.decode_replies(payload):
            unpack_reply(kind, raw)
    except BadAnswer:
        pass


def test_what_a_node_asks_before_it_is_ready_is_known_to_nodes_of_every_build() -> None:
    """Else a node that is upgraded first never gets ready."""
    assert type(IS_SERVED) not in wire.SINCE and commands.TallyQueues in wire.SINCE
