"""The websocket as any client sees it: plain `websockets` and MessagePack, nothing of Penstock's own client."""

from __future__ import annotations

import asyncio
import io
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from penstock.core.commands import ListQueues
from penstock.core.storage.chunk import Chunk
from penstock.protocols.websocket.connection import Connection
from penstock.protocols.websocket.dispatcher import Dispatcher
from penstock.protocols.websocket.socket import Conversation, Flushes
from penstock.server.auth import Credential, Credentials, Grant, Principal, Secret
from penstock.server.log import RequestLog
from penstock.server.settings import LogSettings, ServerSettings, Settings, WebsocketSettings
from tests.client.serving import Server

pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode
REPLY, ERROR, PUSH = 0, 1, 2


class Client:
    """A conversation."""

    def __init__(self, server: Server, *, hello: bool = True, **options: Any) -> None:
        url = server.url.replace("penstock://", "ws://") + "/v1/ws"
        opening = connect(url, max_size=None, compression=None, **options)
        self.socket: ClientConnection = opening.__enter__()
        self.answers: list[Any] = []
        self.welcome = self.ask(["Hello", 1]) if hello else None
        self._number = 0

    def ask(self, command: list[Any], number: int = 0) -> Any:
        """The value of the answer; an error is raised as a LookupError."""
        self.socket.send(pack([[number, command]]))
        return self.answer(number)

    def answer(self, number: int, kinds: tuple[int, ...] = (REPLY, ERROR)) -> Any:
        while True:
            for each in self.answers:
                if each[0] == number and each[1] in kinds:
                    self.answers.remove(each)
                    if each[1] == ERROR:
                        raise LookupError(each[2][0][0], each[2][1])
                    return each[2]
            self.answers += unpack(self.socket.recv(timeout=60))[1]

    def closed(self) -> tuple[int, str]:
        with pytest.raises(ConnectionClosed) as closing:
            while True:
                self.socket.recv(timeout=60)
        received = closing.value.rcvd
        assert received is not None
        return received.code, received.reason


def test_the_first_answer_says_what_a_client_has_to_know(server: Server) -> None:
    welcome = Client(server).welcome
    assert welcome["version"] == 1
    assert welcome["limits"]["frame_bytes_max"] == 64 * 1024 * 1024
    assert welcome["session"] > 0


def test_send_receive_and_ack_with_nothing_but_messagepack(server: Server) -> None:
    client = Client(server)
    assert client.ask(["Send", "orders", [b"one", b"two"]], 1)["count"] == 2
    queue, _, channel, _, _, _, runs, _ = client.ask(["Receive", "orders", "main", 10], 2)
    chunk, attempt, _, failures = runs[0]
    decoded = Chunk.decode(chunk)
    assert (queue, channel, attempt, failures) == ("orders", "main", 1, [])
    assert decoded.body_list() == [b"one", b"two"]
    assert client.ask(["Ack", "orders", [[decoded.base, decoded.base + 1, attempt]]], 3)["count"] == 2


def test_bodies_may_come_end_to_end_with_their_lengths(server: Server) -> None:
    client = Client(server)
    lengths = (3).to_bytes(4, "little") + (0).to_bytes(4, "little") + (2).to_bytes(4, "little")
    assert client.ask(["Send", "orders", b"onetw", lengths], 1)["count"] == 3
    runs = client.ask(["Receive", "orders", "main", 10], 2)[6]
    assert Chunk.decode(runs[0][0]).body_list() == [b"one", b"", b"tw"]
    with pytest.raises(LookupError, match="add up to 5"):
        client.ask(["Send", "orders", b"onetwo", lengths], 3)
    with pytest.raises(LookupError, match="need `lengths`"):
        client.ask(["Send", "orders", b"onetwo"], 4)


def test_requests_of_one_frame_are_answered_in_one_frame(server: Server) -> None:
    client = Client(server)
    client.socket.send(pack([[number, ["Send", "orders", [b"x"]]] for number in range(1, 51)]))
    answers = unpack(client.socket.recv(timeout=60))[1]
    assert [answer[0] for answer in answers] == list(range(1, 51))


def test_who_polls_and_confirms_what_cannot_be_a_number_is_answered_all_the_same(server: Server) -> None:
    url = server.url.replace("penstock://", "http://") + "/v1/commands"
    session = unpack(httpx.post(url, content=pack([[1, ["Hello", 1]]])).content)[1][0][2]["session"]
    headers = {"penstock-session": str(session), "penstock-received": f"{'9' * 5_000}, 1"}
    answer = httpx.post(url, content=pack([[2, ["Send", "orders", [b"x"]]]]), headers=headers)
    assert (answer.status_code, unpack(answer.content)[1][0][:2]) == (200, [2, REPLY])


@pytest.mark.parametrize("body_bytes", [1, 200_000], ids=["small", "large"])
def test_who_polls_holds_nothing_that_others_wait_for_while_it_waits_for_room(
    make_server: Callable[..., Server], body_bytes: int
) -> None:
    """Two that held their bodies, and waited for room for their answers, waited for each other for ever."""
    server = make_server(settings=Settings(server=ServerSettings(buffer_bytes_max=600_000)))
    url = server.url.replace("penstock://", "http://") + "/v1/commands"
    sender = Client(server)
    for number in range(20):
        sender.ask(["Send", "orders", [b"x" * 30_000]], number + 1)

    def poll(times: int) -> int:
        session = unpack(httpx.post(url, content=pack([[1, ["Hello", 1]]])).content)[1][0][2]["session"]
        requests = [[2, ["Send", "other", [b"x" * body_bytes]]], [3, ["ReadRecords", "orders", None, 0, 10]]]
        requests.append([4, ["ReadRecords", "orders", None, 0, 10]])
        headers = {"penstock-session": str(session)}
        answered = 0
        for _ in range(times):
            answer = httpx.post(url, content=pack(requests), headers=headers, timeout=10)
            answered += [each[1] for each in unpack(answer.content)[1]] == [REPLY] * 3
        return answered

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(poll, [10] * 4)) == [10] * 4
    assert server.services.budget.held_bytes == 0


def test_messages_are_pushed_while_there_is_credit(server: Server) -> None:
    client = Client(server)
    client.ask(["Send", "orders", [b"a", b"b", b"c"]], 1)
    assert client.ask(["StartPush", "orders", "main", 2], 2) is None
    runs = client.answer(2, (PUSH,))[6]
    assert sum(Chunk.decode(run[0]).count for run in runs) == 2
    assert client.ask(["QueueStats", "orders"], 3)["channels"]["main"]["ready"] == 1
    client.ask(["AddPushCredit", 2, 5], 4)
    assert Chunk.decode(client.answer(2, (PUSH,))[6][0][0]).body(0) == b"c"
    client.ask(["Send", "orders", [b"d"]], 5)
    assert Chunk.decode(client.answer(2, (PUSH,))[6][0][0]).body(0) == b"d"
    client.ask(["StopPush", 2], 6)
    client.ask(["Send", "orders", [b"e"]], 7)
    assert client.ask(["QueueStats", "orders"], 8)["channels"]["main"]["ready"] == 1


def test_credit_that_comes_before_the_push_has_started_counts(server: Server) -> None:
    client = Client(server)
    client.ask(["Send", "orders", [b"a", b"b", b"c"]], 1)
    client.socket.send(pack([[2, ["StartPush", "orders", "main", 1]], [3, ["AddPushCredit", 2, 2]]]))
    assert client.answer(3) is None
    counts: list[Any] = []
    while sum(counts) < 3:
        counts += [Chunk.decode(run[0]).count for run in client.answer(2, (PUSH,))[6]]
    assert sum(counts) == 3


def test_credit_that_comes_before_a_push_that_cannot_start_is_refused(server: Server) -> None:
    client = Client(server)
    client.socket.send(pack([[2, ["StartPush", "nowhere", "main", 1]], [3, ["AddPushCredit", 2, 2]]]))
    with pytest.raises(LookupError, match="QueueNotFound"):
        client.answer(2)
    with pytest.raises(LookupError, match="SessionNotFound"):
        client.answer(3)


def test_a_deleted_queue_ends_its_pushes(server: Server) -> None:
    client = Client(server)
    client.ask(["CreateQueue", "orders"], 1)
    client.ask(["StartPush", "orders", "main", 2], 2)
    client.ask(["DeleteQueue", "orders"], 3)
    assert client.answer(2, (3,))[0][0] == "QueueNotFound"


def test_what_was_pushed_is_released_when_the_connection_ends(server: Server) -> None:
    first, second = Client(server), Client(server)
    first.ask(["Send", "orders", [b"a"]], 1)
    first.ask(["StartPush", "orders", "main", 2], 2)
    first.answer(2, (PUSH,))
    first.socket.close()
    runs = second.ask(["Receive", "orders", "main", 1, 10_000], 1)[6]
    assert runs[0][1] == 2


def test_a_cancelled_receive_is_answered_with_nothing(server: Server) -> None:
    client = Client(server)
    client.ask(["CreateQueue", "orders"], 1)
    client.socket.send(pack([[2, ["Receive", "orders", "main", 1, 60_000]]]))
    client.ask(["Cancel", 2], 3)
    assert client.answer(2) is None


@pytest.mark.parametrize(
    ("command", "error", "text"),
    [
        (["Fly"], "InvalidRequest", "there is no command 'Fly'"),
        (["CancelWait", 1], "InvalidRequest", "there is no command"),
        (["AckSequences", "orders", "main", b"", 1], "InvalidRequest", "there is no command"),
        (["Receive", 5], "InvalidRequest", "queue is 5: it must be text"),
        (["Receive", "q", "main", 1, "long"], "InvalidRequest", "wait_ms is 'long': it must be a whole number or None"),
        (["Receive"], "InvalidRequest", "its fields are: queue, channel"),
        ([], "InvalidRequest", "starts with its name"),
        ("Receive", "InvalidRequest", "starts with its name"),
        (["Receive", "nowhere"], "QueueNotFound", "there is no queue"),
        (["Receive", "orders", "main", 0], "InvalidRequest", "limit is 0"),
        (["Receive", "orders", "main", 1, None, None, 7], "SessionNotFound", "session 7"),
        (["EndSession", 1], "SessionNotFound", "session 1"),
        (["AddPushCredit", 77, 1], "SessionNotFound", "push 77"),
        (["StartPush", "orders", "main", -1], "InvalidRequest", "credit is -1"),
        (["Hello", 1], "InvalidRequest", "comes once"),
    ],
)
def test_what_is_wrong_is_said_and_the_conversation_goes_on(
    server: Server, command: Any, error: str, text: str
) -> None:
    client = Client(server)
    client.ask(["CreateQueue", "orders"], 1)
    with pytest.raises(LookupError) as refusal:
        client.ask(command, 2)
    assert refusal.value.args[0] == error
    assert text in refusal.value.args[1]
    assert client.ask(["ListQueues"], 3) == ["orders"]


@pytest.mark.parametrize(
    "attributes",
    [
        b"\xff\xff",
        b"\x81\xa1a\xa2\xff\xfe",
        pack(["a"]),
        pack({1: 2}),
        pack({"a": [1]}),
        pack({"a": None}),
        pack({"a": True}),
        pack({"a": msgspec.msgpack.Ext(1, b"\xff")}),
        pack({"a": msgspec.msgpack.Ext(1, pack(["Number", 5]))}),
        pack({"a": msgspec.msgpack.Ext(2, b"")}),
    ],
)
def test_attributes_that_nobody_could_read_are_refused(server: Server, attributes: bytes) -> None:
    client = Client(server)
    send = ["Send", "orders", [b"bad", b"good"], None, [attributes, None]]
    for number, command in enumerate([send, ["CommitWork", [], [send]]], start=1):
        with pytest.raises(LookupError, match="attributes cannot be read"):
            client.ask(command, number)
    typed = pack({"a": "x", "b": b"\xff", "c": 7, "d": 0.5, "e": msgspec.msgpack.Ext(1, pack(["Number", "5"]))})
    assert client.ask(["Send", "orders", [b"a", b"b"], None, [typed, typed]], 3)["count"] == 2
    assert client.ask(["QueueStats", "orders"], 4)["messages"] == 2


def test_a_bad_request_does_not_spoil_the_others_of_its_frame(server: Server) -> None:
    client = Client(server)
    client.socket.send(pack([[1, ["Send", "orders", [b"a"]]], [2, ["Send", 5]], [3, ["Send", "orders", [b"b"]]]]))
    assert client.answer(1)["count"] == client.answer(3)["count"] == 1
    with pytest.raises(LookupError, match="Send"):
        client.answer(2)


@pytest.mark.parametrize(
    ("frame", "code"),
    [("text", 1003), (b"\xc1", 1007), (pack({"a": 1}), 1007), (pack([[1]]), 1007), (pack([["x", ["Hello"]]]), 1007)],
)
def test_frames_that_are_none_end_the_connection_with_a_code(server: Server, frame: str | bytes, code: int) -> None:
    client = Client(server)
    client.socket.send(frame)
    assert client.closed()[0] == code


def test_a_conversation_starts_with_hello(server: Server) -> None:
    client = Client(server, hello=False)
    client.socket.send(pack([[0, ["ListQueues"]]]))
    assert client.closed() == (1008, "the first request is a Hello, and not ListQueues")


def test_a_version_that_nobody_speaks_is_refused(server: Server) -> None:
    client = Client(server, hello=False)
    client.socket.send(pack([[0, ["Hello", 99]]]))
    code, reason = client.closed()
    assert code == 1008 and "version 1" in reason


def test_a_frame_that_is_too_large_ends_the_connection(make_server: Callable[..., Server]) -> None:
    server = make_server(settings=Settings(websocket=WebsocketSettings(frame_bytes_max=1000)))
    client = Client(server)
    client.socket.send(b"x" * 1001)
    assert client.closed()[0] == 1009


def test_more_requests_than_allowed_are_refused(make_server: Callable[..., Server]) -> None:
    client = Client(make_server(settings=Settings(websocket=WebsocketSettings(requests_max=3))))
    client.ask(["CreateQueue", "orders"], 1)
    client.socket.send(pack([[number, ["Receive", "orders", "main", 1, 60_000]] for number in range(2, 6)]))
    with pytest.raises(LookupError, match="3 requests are not answered yet"):
        client.answer(5)
    with pytest.raises(LookupError, match="not answered yet: use"):
        client.ask(["Receive", "orders", "main", 1, 60_000], 2)


def test_more_connections_than_allowed_are_turned_away(make_server: Callable[..., Server]) -> None:
    server = make_server(settings=Settings(websocket=WebsocketSettings(connections_max=1)))
    first = Client(server)
    with pytest.raises(InvalidStatus, match="503"):
        Client(server)
    first.socket.close()
    deadline = time.monotonic() + 60
    while True:
        try:
            Client(server)
            return
        except InvalidStatus:
            assert time.monotonic() < deadline


def test_who_does_not_read_is_let_go_and_its_messages_with_it(make_server: Callable[..., Server]) -> None:
    server = make_server(settings=Settings(websocket=WebsocketSettings(read_timeout_s=0.5, heartbeat_s=60)))
    slow = _socket_that_does_not_read(server)
    other = Client(server)
    other.ask(["Send", "orders", [b"x" * 1_000_000] * 50], 1)
    slow.sendall(_frame(pack([[2, ["StartPush", "orders", "main", 50]]])))
    deadline = time.monotonic() + 60
    while True:
        main = other.ask(["QueueStats", "orders"], 2)["channels"]["main"]
        if main["failed"] and not main["leased"]:
            break
        assert time.monotonic() < deadline, f"its messages are still leased: {main}"
        time.sleep(0.02)
    assert main["failed"] < 50, "it was pushed everything, although it reads nothing"
    slow.close()


def test_who_reads_is_pushed_more_than_fits_at_once(server: Server) -> None:
    client = Client(server)
    client.ask(["Send", "orders", [b"x" * 1_000_000] * 30], 1)
    client.socket.send(pack([[2, ["StartPush", "orders", "main", 30]]]))
    other = Client(server)
    deadline = time.monotonic() + 60
    while other.ask(["QueueStats", "orders"], 2)["channels"]["main"]["leased"] != 30:
        assert time.monotonic() < deadline
        client.socket.recv(timeout=60)


def _socket_that_does_not_read(server: Server) -> socket.socket:
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", server.port))
    lines = ["GET /v1/ws HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""]
    slow.sendall("\r\n".join(lines).encode())
    slow.recv(1)
    slow.sendall(_frame(pack([[0, ["Hello", 1]]])))
    return slow


def _frame(data: bytes) -> bytes:
    assert len(data) < 126
    return bytes([0x82, 0x80 | len(data), 0, 0, 0, 0]) + data


# -- who may talk ------------------------------------------------------------------------------------------------------


def connection_of(server: Server) -> Connection:
    """The server's side of the only connection."""
    (connection,) = server.http._upgraded
    assert isinstance(connection, Connection)
    return connection


def test_frames_are_heard_without_a_task_once_hello_was_answered(server: Server) -> None:
    client = Client(server)
    client.ask(["Send", "orders", [b"one"]], 1)
    connection = connection_of(server)
    assert connection.hear is not None
    assert not connection._messages


def test_answers_keep_their_order_although_some_wait_for_a_client_that_reads_late(server: Server) -> None:
    client = Client(server)
    client.ask(["Send", "orders", [b"x" * 100_000]], 1)
    numbers = range(2, 302)
    for number in numbers:
        client.socket.send(pack([[number, ["Browse", "orders"]]]))
    came: list[int] = []
    while len(came) < len(numbers):
        came += [answer[0] for answer in unpack(client.socket.recv(timeout=60))[1]]
    assert came == list(numbers)
    assert client.ask(["Send", "orders", [b"two"]], 400)["count"] == 1


def test_who_has_too_many_answers_unread_is_not_read_from_and_then_goes_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.protocols.websocket.socket._UNREAD_MAX", 3)
    client = Client(server)
    client.ask(["Send", "orders", [b"one"]], 1)
    client.socket.send(pack([[number, ["Fly"]] for number in range(2, 12)]))  # answered before anything can be written
    for number in range(12, 40):
        client.socket.send(pack([[number, ["QueueStats", "orders"]]]))
    came: list[int] = []
    while len(came) < 38:
        came += [answer[0] for answer in unpack(client.socket.recv(timeout=60))[1]]
    assert came == list(range(2, 40))
    until_heard(connection_of(server))


def until_heard(connection: Connection) -> None:
    deadline = time.monotonic() + 60
    while connection.hear is None:
        assert time.monotonic() < deadline, "frames still go the long way"
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("start", "status"),
    [
        (b"GET /v1/ws HTTP/1.1\r\nx: " + b"y" * 40_000 + b"\r\n", 431),
        (b"GET /v1/ws HTTP/1.1\r\n" + b"x: y\r\n" * 8_000, 431),
        (b"GET /v1/ws?" + b"y" * 40_000 + b" HTTP/1.1\r\n", 431),
        (b"GET /v1/ws HTTP/1.1\r\ncontent-length: 1\r\n", 400),
        (b"GET /v1/ws HTTP/1.1\r\nsec-websocket-key: another\r\n", 400),
        (b"GET /v1/ws HTTP/1.1\r\nsec-websocket-version: 12\r\n", 400),
    ],
)
def test_a_handshake_that_cannot_be_followed_is_answered_and_over(server: Server, start: bytes, status: int) -> None:
    offer = b"host: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        connection.sendall(start + offer + b"sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n")
        answer = b""
        while part := connection.recv(65_536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 %d " % status)


def test_sessions_are_counted(make_server: Callable[..., Server]) -> None:
    rest = msgspec.structs.replace(Settings().rest, sessions_max=3)
    client = Client(make_server(settings=Settings(rest=rest)))
    sessions = [client.ask(["OpenSession", "mine"], number) for number in (1, 2)]
    with pytest.raises(LookupError, match="there are 3 sessions"):
        client.ask(["OpenSession", "mine"], 3)
    client.ask(["EndSession", sessions[0]], 4)
    client.ask(["OpenSession", "mine"], 5)


def test_pages_in_browsers_are_kept_out_where_there_are_no_credentials(server: Server) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        Client(server, origin="https://evil.example")


def test_with_credentials_pages_of_known_origins_may_call_with_a_token_in_the_first_frame(
    make_server: Callable[..., Server],
) -> None:
    principal = Principal("page", "AK", [Grant()])
    credentials = Credentials([Credential("AK", Secret("s"), principal, Secret("token-1"))])
    rest = Settings().rest
    known = msgspec.structs.replace(rest, cors_origins=["https://console.example"])
    server = make_server(credentials=credentials, settings=Settings(rest=known))
    with pytest.raises(InvalidStatus, match="403"):
        Client(server, origin="https://evil.example", hello=False)
    page = Client(server, origin="https://console.example", hello=False)
    assert page.ask(["Hello", 1, "token-1"])["version"] == 1
    stranger = Client(server, origin="https://console.example", hello=False)
    stranger.socket.send(pack([[0, ["Hello", 1, "guess"]]]))
    assert stranger.closed()[0] == 1008


def test_whoever_tries_tokens_is_in_the_log(make_server: Callable[..., Server]) -> None:
    credentials = Credentials([Credential("AK", Secret("s"), Principal("page", "AK", [Grant()]), Secret("token-1"))])
    written = io.StringIO()
    log = RequestLog(LogSettings(format="text", requests="errors"), written)
    stranger = Client(make_server(credentials=credentials, request_log=log), hello=False)
    stranger.socket.send(pack([[0, ["Hello", 1, "guess"]]]))
    assert stranger.closed()[0] == 1008
    log.flush()
    assert "401" in written.getvalue() and "AccessDenied" in written.getvalue()
    assert "guess" not in written.getvalue()


def test_who_may_only_read_marks_nothing_as_done(make_server: Callable[..., Server]) -> None:
    principal = Principal("reader", "AK", [Grant(rights=("read",))])
    credentials = Credentials([Credential("AK", Secret("s"), principal, Secret("token-1"))])
    client = Client(make_server(credentials=credentials), hello=False)
    client.ask(["Hello", 1, "token-1"])
    with pytest.raises(LookupError, match="needs the right to write"):
        client.ask(["CommitWork", [], [], ["somebody's stream", 1 << 62]], 1)
    assert client.ask(["CommitWork", [], []], 2) == []


def test_labels_are_set_by_the_server(make_server: Callable[..., Server]) -> None:
    """A label could say that a topic is to be delivered to a queue on which its owner has no right."""
    principal = Principal("mine", "AK", [Grant(("sns.mine*",), ("admin",))])
    credentials = Credentials([Credential("AK", Secret("s"), principal, Secret("token-1"))])
    client = Client(make_server(credentials=credentials), hello=False)
    client.ask(["Hello", 1, "token-1"])
    target = '{"protocol":"sqs","endpoint":"billing","target":"billing","url":""}'
    labels = {"sns.topic": "{}", "sns.subscription.x": target}
    with pytest.raises(LookupError, match="labels are set by the server"):
        client.ask(["CreateQueue", "sns.mine", {"labels": labels}], 1)
    client.ask(["CreateQueue", "sns.mine"], 2)
    with pytest.raises(LookupError, match="labels are set by the server"):
        client.ask(["ChangeQueue", "sns.mine", {"labels": labels}], 3)


# -- anything at all ---------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
NAMES = """Send Receive Ack Release Extend CommitWork Browse CreateQueue ChangeQueue StartPush OpenSession EndSession
ReadRecords AckConsumer StartRedrive CreateChannel ListQueues"""
names = st.sampled_from(NAMES.split())
fields = st.lists(st.just("orders") | st.just("main") | values, max_size=8)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.builds(lambda name, rest: [name, *rest], names, fields), min_size=1, max_size=4))
def test_odd_commands_are_all_answered_and_break_nothing(server: Server, commands: list[list[Any]]) -> None:
    client = Client(server)
    client.ask(["Send", "orders", [b"a"]], 1)
    client.socket.send(pack([[number, command] for number, command in enumerate(commands, start=2)]))
    for number, command in enumerate(commands, start=2):
        if command[0] == "Receive":
            client.ask(["Cancel", number], 100 + number)
        try:
            client.answer(number)
        except LookupError as refusal:
            assert "unexpected" not in refusal.args[1], (command, refusal)
    client.socket.close()


def test_a_conversation_whose_answers_cannot_be_written_keeps_no_other_from_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        is_given_up = False

        def flush(self) -> None:
            raise ValueError("there is a bug")

        def give_up(self) -> None:
            self.is_given_up = True

    class Flushed:
        count = 0

        def flush(self) -> None:
            self.count += 1

    async def flush_all() -> int:
        flushes, flushed, broken = Flushes(), Flushed(), [Broken(), Broken()]
        for each in (broken[0], flushed, broken[1]):
            flushes.plan(cast("Conversation", each))
        await asyncio.sleep(0)
        flushes.flush()
        assert all(each.is_given_up for each in broken)
        return flushed.count

    assert asyncio.run(flush_all()) == 1
    assert "answers could not be written" in caplog.text


def test_a_conversation_whose_answers_are_lost_by_a_bug_ends(
    server: Server, breaking: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client, other = Client(server), Client(server)
    take_frame = Dispatcher.take_frame

    def fail_once(self: Dispatcher) -> bytes:
        breaking.setattr(Dispatcher, "take_frame", take_frame)
        raise ValueError("there is a bug")

    breaking.setattr(Dispatcher, "take_frame", fail_once)
    client.socket.send(pack([[1, ["QueueStats", "orders"]]]))
    assert client.closed() == (1011, "the server has failed to answer: connect again")
    with pytest.raises(LookupError, match="QueueNotFound"):
        other.ask(["QueueStats", "orders"], number=1)


class Watching:
    """The shards, and what they are asked for."""

    def __init__(self, shards: Any) -> None:
        self._shards = shards
        self.pages: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards, name)

    def submit(self, command: Any, *arguments: Any) -> Any:
        if isinstance(command, ListQueues):
            self.pages.append(command.limit)
        return self._shards.submit(command, *arguments)


def test_however_many_names_are_asked_for_a_step_gives_a_thousand(server: Server) -> None:
    watching: Any = Watching(server.services.shard)
    server.services.shard = watching
    client = Client(server)
    names = [f"queue-{number:04d}" for number in range(2_300)]
    client.socket.send(pack([[number, ["CreateQueue", name]] for number, name in enumerate(names, 1)]))
    for number in range(1, len(names) + 1):
        client.answer(number)
    assert client.ask(["ListQueues", "", "", 1 << 31], 5_000) == names
    assert watching.pages == [1_000, 1_000, 1_000]
    assert client.ask(["ListQueues", "queue-1", "queue-1499", 300], 5_001) == names[1_500:1_800]
    assert client.ask(["ListQueues", "queue-2", "", 1_200], 5_002) == names[2_000:]
