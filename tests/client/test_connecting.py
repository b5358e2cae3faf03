"""What is different over a network: connections that break, answers that get lost, servers that come and go."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.remote.address import TRANSPORTS
from penstock.client.remote.caller import RemoteCaller
from penstock.client.remote.http import HttpConnection
from penstock.client.remote.prefetch import Prefetcher
from penstock.client.remote.request import Outstanding
from penstock.core.commands import (
    Ack,
    Command,
    DescribeQueue,
    Once,
    QueueInfo,
    Receive,
    Refused,
    Release,
    Settled,
    Span,
)
from penstock.core.errors import StaleReceipt
from penstock.core.queues.config import QueueConfig
from penstock.server.audit import audit_of
from penstock.server.auth import Credential, Credentials, Grant, Principal, Secret
from penstock.server.settings import Settings, WebsocketSettings
from penstock.store.memory import MemoryStore
from penstock.wire.requests import StartPush
from tests.client.adapter import LoopThread
from tests.client.lossy import LossyProxy
from tests.client.serving import Server, serve
from tests.server.stores import TroubledStore
from tests.shards import not_for_clusters, one_shard_only, open_shards, stepping_clock

FINITE = {"timeout": 10, "connect_timeout": 5}


def eventually(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
    return value


class Site:
    """A server in a thread, and a proxy in front of it."""

    def __init__(self, **options: Any) -> None:
        self.loop = LoopThread()
        self.stores: dict[int, Any] = {}
        self.options = options
        self.server: Server = self.loop.run(self._serve(0))
        self.proxy = LossyProxy(self.server.port)
        self.loop.run(self.proxy.start())
        self.clients: list[Any] = []

    async def _serve(self, port: int) -> Server:
        shards = open_shards(lambda number: self.stores.setdefault(number, MemoryStore()), stepping_clock())
        return await serve(shards, port=port, **self.options)

    def connect(self, url: str | None = None, **options: Any) -> penstock.Penstock:
        client = penstock.connect(url or self.server.url, **{**FINITE, **options})
        self.clients.append(client)
        return client

    def stop(self) -> None:
        self.loop.run(self.server.stop())

    def restart(self) -> None:
        self.stop()
        self.start()

    def start(self) -> None:
        self.server = self.loop.run(self._serve(self.server.port))

    def cut(self) -> None:
        """End every connection. Answers that were lost are so for good: only the next connections get any."""
        self.loop.run(self._cut())

    async def _cut(self) -> None:
        await self.proxy.cut()
        self.proxy.answers_lost = False

    def count(self, action: str, outcome: str = "ok") -> int:
        counts = self.server.answered()
        return sum(n for (_, what, how), n in counts.items() if (what, how) == (action, outcome))

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.loop.run(self.proxy.stop())
        self.loop.run(self.server.stop())
        self.loop.close()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.fixture
def make_site() -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(**options: Any) -> Site:
        made.append(Site(**options))
        return made[-1]

    yield make
    for site in made:
        site.close()


# -- getting there -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_client_says_which_transport_it_uses(site: Site, transport: Any) -> None:
    assert site.connect(transport=transport).transport == transport


def test_the_best_transport_is_used_by_itself(site: Site) -> None:
    assert site.connect().transport == "websocket"


def test_where_nobody_speaks_websocket_the_client_polls(make_site: Callable[..., Site]) -> None:
    site = make_site(sockets=False)
    ps = site.connect()
    assert ps.transport == "long_poll"
    ps.queue("orders").send(b"a")
    assert ps.queue("orders").receive(wait=5).body == b"a"


def test_long_polls_that_are_cut_become_plain_polls(site: Site) -> None:
    ps, beside = site.connect(site.proxy.url, transport="long_poll"), site.connect()
    ps.create_queue("orders")
    received: list[Any] = []
    receiver = threading.Thread(target=lambda: received.append(ps.queue("orders").receive(wait=30)))
    receiver.start()
    eventually(lambda: beside.queue("orders").stats().channels["main"].waiting_receivers == 1)

    def cut() -> bool:
        site.cut()
        return ps.transport == "poll"

    eventually(cut)
    beside.queue("orders").send(b"a")
    receiver.join(10)
    assert received[0].body == b"a"


def test_a_long_poll_that_is_cut_waits_no_longer_than_was_asked(site: Site) -> None:
    ps, beside = site.connect(site.proxy.url, transport="long_poll", timeout=2), site.connect()
    ps.create_queue("orders")
    failures: list[BaseException] = []
    received: list[Any] = []

    def receive() -> None:
        try:
            received.append(ps.queue("orders").receive(wait=4))
        except penstock.OutcomeUnknown as error:
            failures.append(error)

    started = time.monotonic()
    receiver = threading.Thread(target=receive)
    receiver.start()
    eventually(lambda: beside.queue("orders").stats().channels["main"].waiting_receivers == 1)
    time.sleep(max(0.0, started + 3.5 - time.monotonic()))
    site.cut()
    receiver.join(30)
    assert (received, failures) == ([None], [])


def test_nobody_there_is_not_sent(site: Site) -> None:
    site.loop.run(site.proxy.stop())
    with pytest.raises(penstock.NotSent, match="cannot be reached"):
        penstock.connect(site.proxy.url)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close", "does not look like a Penstock server"),
        (b"HTTP/1.1 200 OK\r\nConnection: close", "cannot be reached"),
    ],
    ids=["of-a-length", "up-to-its-end"],
)
def test_something_else_there_is_said_so(head: bytes, said: str) -> None:
    loop = LoopThread()

    async def listen() -> Any:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head + b"\r\n\r\nhi")
            writer.close()

        return await asyncio.start_server(answer, "127.0.0.1", 0)

    server = loop.run(listen())
    try:
        with pytest.raises(penstock.NotSent, match=said):
            penstock.connect(f"penstock://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        loop.loop.call_soon_threadsafe(server.close)
        loop.close()


@pytest.mark.parametrize(
    "url",
    [
        "localhost",
        "http://localhost:9325/v1/docs",
        "ftp://localhost",
        "penstock://",
        "penstock://h/path",
        "penstock://h:x",
        "penstock://a..b",
        None,
        b"penstock://h",
    ],
)
def test_an_address_that_is_none_is_refused(url: Any) -> None:
    with pytest.raises(penstock.InvalidRequest, match="not the address of a server"):
        penstock.connect(url)


@pytest.mark.parametrize(
    "url",
    [
        "penstock://worker:s3cret@localhost:9325",
        "penstock://worker:s3cret@:x",
        "penstock://worker:s3cret/@localhost",
        "http://s3cret@localhost",
        "worker:s3cret@localhost",
        "penstock://localhost?token=s3cret",
    ],
)
def test_a_secret_in_an_address_is_not_shown(url: str) -> None:
    for call in (penstock.connect, penstock.open):
        if call is penstock.connect or url.startswith("penstock://"):
            with pytest.raises(penstock.InvalidRequest) as refusal:
                call(url)
            assert "s3cret" not in str(refusal.value)


def test_options_that_make_no_sense_are_refused() -> None:
    for options in (
        {"transport": "pigeon"},
        {"timeout": 0},
        {"timeout": 1e300},
        {"prefetch": -1},
        {"prefetch": None},
        {"prefetch": "10"},
        {"heartbeat": -2},
        {"name": None},
        {"name": "half \ud800"},
        {"tls": True},
        {"token": 5},
    ):
        with pytest.raises(penstock.InvalidRequest):
            penstock.connect("penstock://localhost", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("token", ["s3cret\n", "s3cr\u00e9t", " s3cret"])
def test_a_token_that_no_header_can_hold_is_refused_at_once_and_not_shown(token: str) -> None:
    with pytest.raises(penstock.InvalidRequest, match="strip it") as refusal:
        penstock.connect("penstock://localhost", token=token)
    assert token.strip() not in str(refusal.value)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    paths = str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-out", paths[0], "-keyout", paths[1]], check=True, capture_output=True)
    return paths


@pytest.mark.skipif(shutil.which("openssl") is None and not os.environ.get("CI"), reason="there is no openssl here")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_tls_is_spoken_and_certificates_are_checked(
    make_site: Callable[..., Site], certificate: tuple[str, str], transport: Any
) -> None:
    site = make_site(certificate=certificate)
    url = site.server.url.replace("penstock://", "penstocks://")
    trusting = ssl.create_default_context(cafile=certificate[0])
    ps = site.connect(url, transport=transport, tls=trusting)
    ps.queue("orders").send(b"a")
    assert ps.queue("orders").receive(wait=5).body == b"a"
    with pytest.raises(penstock.AccessDenied, match="is not trusted"):
        site.connect(url, transport=transport)


# -- answers that get lost ---------------------------------------------------------------------------------------------


def lose_the_answer(site: Site, action: str, call: Callable[[], Any]) -> Any:
    """Call something whose answer is lost once it is done; then the connection breaks. What came of it in the end."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(call())
        except Exception as error:
            result.append(error)

    before = site.count(action)
    site.proxy.answers_lost = True
    caller = threading.Thread(target=run)
    caller.start()
    eventually(lambda: site.count(action) > before)
    assert not result
    site.cut()
    caller.join(15)
    assert site.count(action) > before + 1, "it was not sent again"
    return result[0]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_send_whose_answer_was_lost_is_sent_again_and_makes_one(site: Site, transport: Any) -> None:
    orders = site.connect(site.proxy.url, transport=transport).queue("orders")
    orders.send(b"first")
    sent = lose_the_answer(site, "Send", lambda: orders.send(b"second"))
    assert sent.sequence == 1
    assert [message.body for message in orders.peek()] == [b"first", b"second"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_ack_whose_answer_was_lost_counts_as_done(site: Site, transport: Any) -> None:
    orders = site.connect(site.proxy.url, transport=transport).queue("orders")
    orders.send(b"a")
    message = orders.receive()
    assert lose_the_answer(site, "Ack", message.ack) is None
    assert orders.stats().messages == 0


def test_a_unit_of_work_whose_answer_was_lost_is_done_once(site: Site) -> None:
    ps = site.connect(site.proxy.url)
    ps.queue("in").send(b"a")
    unit = ps.unit_of_work()
    unit.take("in")
    unit.put("out", b"b")
    lose_the_answer(site, "CommitWork", unit.commit)
    assert unit.state == "committed"
    assert (ps.queue("in").stats().messages, ps.queue("out").stats().messages) == (0, 1)


def test_a_purge_whose_answer_was_lost_does_not_take_what_came_later(site: Site) -> None:
    orders = site.connect(site.proxy.url).queue("orders")
    orders.send_many([b"a", b"b"])
    assert lose_the_answer(site, "PurgeQueue", orders.purge) == 2


def test_what_was_not_answered_in_time_is_of_unknown_outcome(site: Site) -> None:
    orders = site.connect(site.proxy.url, timeout=0.5).queue("orders")
    site.proxy.answers_lost = True
    with pytest.raises(penstock.OutcomeUnknown):
        orders.send(b"a")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("sends", [1, 100])
def test_what_left_and_is_too_large_to_be_sent_again_is_of_unknown_outcome(
    site: Site, transport: Any, sends: int
) -> None:
    async def main() -> list[Any]:
        async with penstock.connect_async(site.proxy.url, transport=transport, timeout=20) as ps:
            orders = await ps.create_queue("orders")
            site.proxy.answers_lost = True
            bodies = [b"x" * (100_000 // sends)] * sends
            sending = asyncio.gather(*(orders.send(body) for body in bodies), return_exceptions=True)
            await asyncio.to_thread(eventually, lambda: site.count("Send"))
            site.options["settings"] = Settings(websocket=WebsocketSettings(frame_bytes_max=50_000))
            await asyncio.to_thread(site.restart)
            site.cut()
            return await sending

    assert {type(outcome) for outcome in asyncio.run(main())} == {penstock.OutcomeUnknown}
    assert site.connect().queue("orders").stats().messages == sends


def test_what_never_left_is_not_sent(site: Site) -> None:
    orders = site.connect(site.proxy.url, timeout=0.5).queue("orders")
    site.loop.run(site.proxy.stop())
    eventually(lambda: orders._caller.transport is None)  # type: ignore[attr-defined]
    with pytest.raises(penstock.NotSent):
        orders.send(b"a")
    assert site.count("Send") == 0


def test_a_client_may_give_up_reconnecting(site: Site) -> None:
    orders = site.connect(site.proxy.url, retry_for=0.2, timeout=60).queue("orders")
    site.loop.run(site.proxy.stop())
    eventually(lambda: orders._caller.transport is None)  # type: ignore[attr-defined]
    started = time.monotonic()
    with pytest.raises(penstock.ConnectionLost):
        orders.send(b"a")
    assert time.monotonic() - started < 15


def test_a_silent_server_is_noticed_by_the_heartbeat(site: Site) -> None:
    orders = site.connect(site.proxy.url, heartbeat=0.2, timeout=20).queue("orders")
    orders.send(b"a")
    site.proxy.answers_lost = True
    before = site.proxy.connections
    eventually(lambda: site.proxy.connections > before)
    site.proxy.answers_lost = False
    assert orders.stats().messages == 1


# -- connections that end ----------------------------------------------------------------------------------------------


def test_a_lost_connection_releases_its_leases_at_once(site: Site) -> None:
    orders = site.connect(site.proxy.url, name="worker 7").queue("orders")
    orders.send(b"a")
    message = orders.receive(lease=3600)
    site.cut()
    again = site.connect().queue("orders").receive(wait=10)
    assert (again.body, again.attempts) == (b"a", 2)
    assert again.history[0].session == "worker 7"
    with pytest.raises(penstock.StaleReceipt):
        message.ack()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_closing_releases_what_is_in_hand(site: Site, transport: Any) -> None:
    first = site.connect(transport=transport)
    first.queue("orders").send(b"a")
    first.queue("orders").receive(lease=3600)
    first.close()
    assert site.connect().queue("orders").receive(wait=10).body == b"a"


def test_a_session_of_its_own_outlives_the_connection(site: Site) -> None:
    ps = site.connect(site.proxy.url)
    ps.queue("orders").send(b"a")
    message = ps.session("batch").queue("orders").receive(lease=3600)
    site.cut()
    message.ack()
    assert ps.queue("orders").stats().messages == 0


def test_nobody_can_end_the_session_of_another_by_guessing_its_number(site: Site) -> None:
    session = site.connect().session("mine")
    from penstock.core.commands import EndSession

    for guess in (1, 2, session._number & 0xFFFFFFFF, session._number + (1 << 32)):
        with pytest.raises(penstock.SessionNotFound):
            site.connect()._caller.call(EndSession(session=guess))
    session.heartbeat()


def test_consume_once_holds_when_the_connection_breaks_in_mid_delivery(site: Site) -> None:
    ps = site.connect(site.proxy.url)
    ps.create_queue("orders", policy="consume_once")
    ps.queue("orders").send(b"a")
    site.proxy.answers_lost = True
    got: list[Any] = []
    receiver = threading.Thread(target=lambda: got.append(ps.queue("orders").receive(wait=1)))
    receiver.start()
    eventually(lambda: site.count("Receive"))
    site.cut()
    receiver.join(15)
    assert got == [None], "the message may have been seen: it must not come again"
    assert site.connect().queue("orders.dead").receive(wait=5).body == b"a"


def test_a_server_that_restarts_is_found_again(site: Site) -> None:
    orders = site.connect().queue("orders")
    orders.send(b"a")
    site.restart()
    assert orders.send(b"b").sequence == 1


def test_a_wait_goes_on_over_a_restart(site: Site) -> None:
    orders = site.connect().queue("orders")
    orders.send(b"a")
    orders.receive().ack()
    received: list[Any] = []
    receiver = threading.Thread(target=lambda: received.append(orders.receive(wait=30)))
    receiver.start()
    eventually(lambda: orders.stats().channels["main"].waiting_receivers == 1)
    site.restart()
    eventually(lambda: orders.stats().channels["main"].waiting_receivers == 1)
    orders.send(b"b")
    receiver.join(10)
    assert received[0].body == b"b"


# -- receivers that leave ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_cancelled_wait_takes_no_message_with_it(site: Site, transport: Any) -> None:
    async def main() -> None:
        async with penstock.connect_async(site.server.url, transport=transport) as ps:
            orders = await ps.create_queue("orders")
            for _ in range(20):
                waiting = asyncio.create_task(orders.receive(wait=20, lease=3600))
                await asyncio.sleep(0.002)
                sending = asyncio.create_task(orders.send(b"a"))
                await asyncio.sleep(0)
                waiting.cancel()
                await sending
                message = (
                    await orders.receive(wait=5) if not waiting.done() or waiting.cancelled() else waiting.result()
                )
                assert message is not None, "the message went with who had left"
                assert message.attempts == 1
                await message.ack()

    asyncio.run(main())


@pytest.mark.parametrize("transport", ["long_poll", "poll"])
def test_messages_that_are_on_their_way_to_a_poll_that_is_cancelled_go_back(
    site: Site, transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        post, arrived, is_free = HttpConnection.post, asyncio.Event(), asyncio.Event()

        async def slow(connection: HttpConnection, path: str, headers: dict[str, str], body: bytes) -> Any:
            response = await post(connection, path, headers, body)
            if b"Receive" in body:
                arrived.set()
                await is_free.wait()
            return response

        async with penstock.connect_async(site.server.url, transport=transport) as ps:
            orders = await ps.create_queue("orders")
            await orders.send(b"a")
            monkeypatch.setattr(HttpConnection, "post", slow)
            waiting = asyncio.create_task(orders.receive(wait=20, lease=3600))
            await arrived.wait()
            waiting.cancel()
            await asyncio.wait([waiting])
            is_free.set()
            message = await orders.receive(wait=5)
            assert message is not None, "the message went with who had left"
            assert message.attempts == 1

    asyncio.run(main())


@pytest.mark.parametrize("prefetch", [0, 5])
def test_an_answer_that_comes_in_the_turn_of_its_cancellation_goes_back(
    site: Site, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with penstock.connect_async(site.server.url, prefetch=prefetch) as ps:
            orders = await ps.create_queue("orders")
            await orders.send(b"a")
            answered, waiting = RemoteCaller.answered, asyncio.create_task(orders.receive(wait=20))

            def cancelling(caller: RemoteCaller, now_ms: int, answers: list[Any]) -> None:
                answered(caller, now_ms, answers)
                if waiting._fut_waiter is not None and waiting._fut_waiter.done():  # type: ignore[attr-defined]
                    waiting.cancel()  # its task has not run again: it hears of the cancellation, and not of the answer

            with monkeypatch.context() as patch:
                patch.setattr(RemoteCaller, "answered", cancelling)
                await asyncio.wait([waiting])
            assert waiting.cancelled()
            message = await orders.receive(wait=20)
            assert message is not None, "the message went with who had left"
            assert message.attempts == 1

    asyncio.run(main())


def test_another_loop_is_told_that_nothing_was_sent(site: Site) -> None:
    async def connect() -> Any:
        return await penstock.connect_async(site.server.url)

    async def send(ps: Any) -> None:
        await ps.queue("orders").send(b"a")

    home = asyncio.new_event_loop()
    try:
        ps = home.run_until_complete(connect())
        with pytest.raises(penstock.InvalidRequest, match="another event loop"):
            asyncio.run(send(ps))
        home.run_until_complete(ps.close())
    finally:
        home.close()
    assert site.connect().queues() == []


# -- many at a time ----------------------------------------------------------------------------------------------------


def test_sends_of_many_tasks_share_commands(site: Site) -> None:
    async def main() -> list[Any]:
        async with penstock.connect_async(site.server.url) as ps:
            orders = ps.queue("orders")
            return await asyncio.gather(*(orders.send(b"%d" % number) for number in range(500)))

    sent = asyncio.run(main())
    assert site.count("Send") < 20
    bodies = {message.sequence: message.body for message in site.connect().queue("orders").browse(limit=1000)}
    assert all(bodies[message.sequence] == b"%d" % number for number, message in enumerate(sent))
    assert len({message.id for message in sent}) == 500


def test_one_bad_send_among_many_fails_alone(site: Site) -> None:
    async def main() -> list[Any]:
        async with penstock.connect_async(site.server.url) as ps:
            orders = await ps.create_queue("orders", message_bytes_max=10)
            bodies = [b"x" * 11 if number == 7 else b"x" for number in range(20)]
            return await asyncio.gather(*map(orders.send, bodies), return_exceptions=True)

    sent = asyncio.run(main())
    assert isinstance(sent[7], penstock.MessageTooLarge)
    assert site.connect().queue("orders").stats().messages == 19


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_command_that_cannot_be_written_is_refused_and_takes_no_other_along(site: Site, transport: Any) -> None:
    half = "\ud800"

    async def main() -> list[Any]:
        async with penstock.connect_async(site.server.url, transport=transport) as ps:
            orders = await ps.create_queue("orders")
            return await asyncio.gather(
                orders.send(b"before"),
                orders.receive(wait=0, attempt_id=half),
                orders.send(b"bad", group=half),
                orders.receive(wait=5, attempt_id=half),
                orders.browse(limit=2**70),
                orders.send(b"after"),
                return_exceptions=True,
            )

    before, *refused, after = asyncio.run(main())
    assert all(isinstance(each, penstock.InvalidRequest) for each in refused), refused
    assert {before.sequence, after.sequence} == {0, 1}
    with pytest.raises(penstock.InvalidRequest, match="cannot be sent"):
        site.connect(transport=transport).queue(half).send(b"a")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_one_command_that_cannot_travel_fails_alone_and_at_once(site: Site, transport: Any) -> None:
    """Text from a command line may hold half a surrogate pair, and no wire takes that."""

    async def main() -> list[Any]:
        async with penstock.connect_async(site.server.url, transport=transport) as ps:
            orders = ps.queue("orders")
            return await asyncio.gather(
                orders.send(b"before"),
                orders.send(b"x", group="\udcff"),
                orders.send(b"x", delay=1e300),
                ps.queue("\udcff").send(b"x"),
                ps.queue("orders\udcff").receive(wait=1),
                orders.send(b"x", group=object()),  # type: ignore[arg-type]
                orders.send(b"after"),
                return_exceptions=True,
            )

    before, *refused, after = asyncio.run(main())
    assert {before.sequence, after.sequence} == {0, 1}
    assert [type(each) for each in refused] == [penstock.InvalidRequest] * 5
    assert "Send: groups cannot be sent" in str(refused[0])
    assert "delay is 1e+300: give seconds, at most" in str(refused[1])
    assert site.connect().queue("orders").stats().messages == 2


def test_an_error_that_is_no_text_releases_its_message_all_the_same(site: Site) -> None:
    orders = site.connect().queue("orders")
    orders.send(b"x")
    orders.receive_batch(1).messages()[0].release(error="no file \udcff")
    assert [failure.error for failure in orders.browse()[0].history] == ["no file ?"]


def test_threads_share_a_connection(site: Site) -> None:
    orders = site.connect().queue("orders")
    threads = [threading.Thread(target=lambda: [orders.send(b"x") for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert orders.stats().messages == 400


def test_a_call_larger_than_a_frame_says_so(make_site: Callable[..., Site]) -> None:
    site = make_site(settings=Settings(websocket=WebsocketSettings(frame_bytes_max=100_000)))
    orders = site.connect().queue("orders")
    with pytest.raises(penstock.BatchTooLarge, match="too many for one call"):
        orders.send_many([b"x" * 1000] * 200)
    assert orders.send_many([b"x" * 1000] * 50)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_unit_larger_than_a_frame_says_so_at_the_put_and_can_still_be_committed(
    make_site: Callable[..., Site], transport: Any
) -> None:
    site = make_site(settings=Settings(websocket=WebsocketSettings(frame_bytes_max=100_000)))
    ps = site.connect(transport=transport)
    work, puts = ps.unit_of_work(), 0
    with pytest.raises(penstock.BatchTooLarge, match="commit first"):
        for puts in range(10_000):
            work.put("orders", b"x", group="g" * 100, dedup_id=f"{puts}")
    assert len(work.commit()) == puts
    work = ps.unit_of_work()
    with pytest.raises(penstock.BatchTooLarge):
        work.put("orders", b"x" * 200_000)
    work.put("orders", b"x" * 80_000)
    assert len(work.commit()) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"due": 1},
        {"due": 1, "priority": 9, "attributes": {"a": 1}},
        {"due": 1, "priority": 9, "attributes": {"a": 1}, "group": "g", "dedup_id": "d"},
        {"delay": 1, "attributes": {"a": "x" * 250}, "group": "g" * 100, "dedup_id": "d" * 100},
    ],
)
def test_a_unit_of_many_sends_is_not_too_large_for_a_frame_before_it_says_so(
    make_site: Callable[..., Site], options: dict[str, Any]
) -> None:
    site = make_site(settings=Settings(websocket=WebsocketSettings(frame_bytes_max=100_000)))
    work, puts = site.connect().unit_of_work(), 0
    when = "due" if "due" in options else "delay"
    with pytest.raises(penstock.BatchTooLarge, match="commit first"):
        for puts in range(10_000):
            work.put("orders" * 10, b"x", **{**options, when: 2_000_000_000 + puts})
    assert len(work.commit()) == puts


def test_more_requests_than_the_server_takes_at_once_wait_for_their_turn(make_site: Callable[..., Site]) -> None:
    site = make_site(settings=Settings(websocket=WebsocketSettings(requests_max=10)))

    async def main() -> list[Any]:
        async with penstock.connect_async(site.server.url) as ps:
            await ps.create_queue("orders")
            return await asyncio.gather(*(ps.queue("orders").stats() for _ in range(100)))

    assert len(asyncio.run(main())) == 100


# -- who may -----------------------------------------------------------------------------------------------------------


def worker(*grants: Grant) -> Credentials:
    principal = Principal("worker", "AK", grants)
    return Credentials([Credential("AK", Secret("secret"), principal, Secret("token-1"))])


@pytest.mark.parametrize("transport", [None, "long_poll"])
@pytest.mark.parametrize("token", ["sesame\n", "sesame\r\nX-Other: 1", "sesame\udcff", "ses\u20acme"])
def test_a_token_that_no_header_carries_is_refused_at_once_and_not_shown(
    site: Site, transport: Any, token: str
) -> None:
    with pytest.raises(penstock.InvalidRequest, match="strip it") as refusal:
        site.connect(token=token, transport=transport)
    assert "ses" not in str(refusal.value)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_token_is_needed_where_there_are_credentials(make_site: Callable[..., Site], transport: Any) -> None:
    site = make_site(credentials=worker(Grant()))
    for token in (None, "wrong", "AK:wrong"):
        with pytest.raises(penstock.AccessDenied):
            site.connect(transport=transport, token=token)
    for token in ("token-1", "AK:secret"):
        assert site.connect(transport=transport, token=token).queues() == []


def test_what_was_sent_before_the_token_was_revoked_is_of_unknown_outcome(make_site: Callable[..., Site]) -> None:
    site = make_site(credentials=worker(Grant()))
    orders = site.connect(site.proxy.url, token="token-1").queue("orders")
    site.proxy.answers_lost = True
    raised: list[BaseException] = []

    def send() -> None:
        try:
            orders.send(b"a")
        except penstock.PenstockError as error:
            raised.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    eventually(lambda: site.count("Send"))
    site.options["credentials"] = Credentials(
        [Credential("AK", Secret("secret"), Principal("worker", "AK", (Grant(),)), Secret("token-2"))]
    )
    site.restart()
    site.cut()
    sender.join(15)
    assert [type(error) for error in raised] == [penstock.OutcomeUnknown]
    with pytest.raises(penstock.AccessDenied):
        orders.send(b"b")
    assert [message.body for message in site.connect(token="token-2").queue("orders").peek()] == [b"a"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sessions_are_seen_and_ended_by_the_rights_on_what_they_hold(
    make_site: Callable[..., Site], transport: str
) -> None:
    reader = Principal("reader", "AK1", [Grant(("shop",), ("read",))])
    boss = Principal("boss", "AK2", [Grant()])
    known = [Credential("AK1", Secret("s"), reader, Secret("one")), Credential("AK2", Secret("s"), boss, Secret("two"))]
    site = make_site(credentials=Credentials(known))
    small, great = site.connect(token="one", transport=transport), site.connect(token="two", transport=transport)
    for queue in ("shop", "till"):
        great.queue(queue).send(b"a")
        great.session(f"of {queue}").queue(queue).receive()
    idle = great.session("idle")
    assert [each.name for each in small.sessions()] == ["of shop"]
    ids = {each.name: each.id for each in great.sessions()}
    assert {"of shop", "of till"} <= ids.keys()
    for name in ("of shop", "of till", *(["idle"] if "idle" in ids else [])):
        with pytest.raises(penstock.AccessDenied, match="admin right on"):
            small.end_session(ids[name])
    with pytest.raises(penstock.AccessDenied, match="reader needs the right to read queue 'till'"):
        small.sessions("till")
    with pytest.raises(penstock.SessionNotFound):
        small.end_session("0-999999")
    idle.heartbeat()
    assert [great.end_session(ids[name]) for name in ("of shop", "of till")] == [1, 1]
    assert great.sessions("shop") == []
    noted = [
        each
        for each in audit_of(site.server.services).entries(50)
        if each.what == "EndSession" and each.outcome == "ok"
    ]
    named = {f"{each.scope['shard']}-{each.scope['session']}" for each in noted}
    assert (named, {each.who for each in noted}) == ({ids["of shop"], ids["of till"]}, {"boss"})


def test_rights_are_checked_command_by_command(make_site: Callable[..., Site]) -> None:
    grants = (Grant(("in",), ("read",)), Grant(("out",), ("write",)), Grant(("in", "out", "mine*"), ("admin",)))
    site = make_site(credentials=worker(*grants))
    ps = site.connect(token="token-1")
    for name in ("in", "out"):
        ps.create_queue(name)
    ps.queue("out").send(b"a")
    assert ps.queue("in").receive() is None
    unit = ps.unit_of_work()
    unit.put("in", b"x")
    denied: list[Callable[[], Any]] = [
        lambda: ps.create_queue("other"),
        lambda: ps.create_queue("mine", dead_letter="other"),
        lambda: ps.queue("in").send(b"x"),
        lambda: ps.queue("out").receive(),
        lambda: ps.queue("out").stats(),
        lambda: ps.queue("out").peek(),
        lambda: ps.redrive("in", to="other"),
        unit.commit,
    ]
    for call in denied:
        with pytest.raises(penstock.AccessDenied, match="worker needs the right"):
            call()
    assert ps.queues() == ["in"]
    assert site.server.services.meter is not None


# -- prefetching -------------------------------------------------------------------------------------------------------


def test_prefetched_messages_are_received_without_asking_the_server(site: Site) -> None:
    orders = site.connect(prefetch=50).queue("orders")
    orders.send_many([b"%d" % number for number in range(200)])
    bodies = []
    for _ in range(200):
        with orders.receive(wait=5) as message:
            bodies.append(message.body)
    assert bodies == [b"%d" % number for number in range(200)]
    assert site.count("Receive") == 0
    assert site.count("AddCredit") < 30
    assert orders.receive() is None
    assert orders.stats().messages == 0


def test_a_prefetching_receive_knows_when_there_is_nothing(site: Site) -> None:
    orders = site.connect(prefetch=2).queue("orders")
    with pytest.raises(penstock.QueueNotFound):
        orders.receive()
    orders.send_many([b"a"] * 9)
    assert sum(len(orders.receive(5)) for _ in range(9)) == 9
    assert orders.receive() is None
    started = time.monotonic()
    assert orders.receive(wait=0.2) is None
    assert time.monotonic() - started >= 0.2
    sender = threading.Timer(0.1, lambda: orders.send(b"b"))
    sender.start()
    assert orders.receive(wait=10).body == b"b"


def test_what_is_prefetched_or_worked_on_stays_leased(site: Site) -> None:
    ps = site.connect(prefetch=10)
    ps.create_queue("orders", lease=3.0)
    ps.queue("orders").send_many([b"a", b"b"])
    message = ps.queue("orders").receive(wait=5)
    assert site.connect().queue("orders").receive(wait=4.0) is None
    message.ack()
    other = ps.queue("orders").receive()
    assert other.attempts == 1
    other.ack()


def test_what_is_prefetched_stays_leased_when_the_queues_lease_becomes_shorter(site: Site) -> None:
    ps = site.connect(prefetch=10)
    orders = ps.create_queue("orders", lease=600)
    orders.send(b"first")
    orders.receive(wait=5).ack()
    orders.configure(lease=4)
    orders.send_many([b"a", b"b"])
    message = orders.receive(wait=5)
    assert site.connect().queue("orders").receive(wait=6) is None
    message.ack()
    other = orders.receive()
    assert other.attempts == 1
    other.ack()


def test_a_prefetched_message_whose_lease_was_lost_is_not_received(site: Site) -> None:
    ps = site.connect(prefetch=10)
    orders = ps.create_queue("orders", lease=3)
    orders.send_many([b"a", b"b", b"c", b"d"])
    message = orders.receive(wait=5)
    lost = [Span(1, 1, 1), Span(3, 3, 1)]
    site.connect()._caller.call(Release(queue="orders", spans=lost, delay_ms=600_000))
    before = site.count("Extend")
    eventually(lambda: site.count("Extend") > before)
    message.ack()
    assert [message.body for message in orders.receive(10)] == [b"c"]


def test_prefetched_messages_whose_leases_were_lost_make_room_for_others(site: Site) -> None:
    ps = site.connect(prefetch=3)
    orders = ps.create_queue("orders", lease=3)
    orders.send_many([b"a", b"b", b"c"])
    orders.receive(wait=5).ack()
    site.connect()._caller.call(Release(queue="orders", spans=[Span(1, 2, 1)], delay_ms=600_000))
    before = site.count("Extend")
    eventually(lambda: site.count("Extend") > before)
    orders.send(b"d")
    assert orders.receive(wait=5).body == b"d"


def test_closing_gives_prefetched_messages_back_uncounted(site: Site) -> None:
    first = site.connect(prefetch=10)
    first.queue("orders").send_many([b"a", b"b", b"c"])
    first.queue("orders").receive(wait=5).ack()
    first.close()
    assert [message.attempts for message in site.connect().queue("orders").receive(10, wait=5)] == [1, 1]


@one_shard_only
def test_what_was_prefetched_is_kept_or_goes_back_when_the_servers_store_is_opened_again(site: Site) -> None:
    site.stop()
    store = site.stores[0] = TroubledStore()
    site.start()
    ps, others = site.connect(prefetch=10), site.connect()
    orders = ps.create_queue("orders", lease=4)
    orders.send_many([b"a", b"b"])
    message = orders.receive(wait=5)
    others.queue("another").send(b"a commit, which takes the leases along")
    store.fail_next(kept=False)
    with pytest.raises(penstock.CommitFailed):
        others.queue("another").send(b"lost")
    other = others.queue("orders").receive(wait=20, lease=600)
    assert (other.body, other.attempts) == (b"b", 1), "nobody had received it, and it did not go back"
    assert others.queue("orders").receive(wait=6) is None
    message.ack()


def test_prefetching_goes_on_after_the_connection_broke(site: Site) -> None:
    orders = site.connect(site.proxy.url, prefetch=10).queue("orders")
    orders.send_many([b"a", b"b", b"c"])
    orders.receive(wait=5).ack()
    connections = site.proxy.connections
    site.cut()
    eventually(lambda: site.proxy.connections > connections)
    got = [orders.receive(wait=10) for _ in range(2)]
    assert sorted(message.body for message in got) == [b"b", b"c"]
    for message in got:
        message.ack()
    assert orders.stats().messages == 0


def test_a_connection_that_breaks_while_prefetching_begins_leaves_one_push(site: Site) -> None:
    async def main() -> None:
        async with penstock.connect_async(site.server.url, prefetch=10) as ps:
            caller: Any = ps._caller
            waiting = asyncio.create_task(ps.queue("orders").receive(wait=60))
            await asyncio.sleep(0)
            caller.flush()
            caller._link._socket.abort()  # the question what queue this is has left, and has no answer
            while not (await orders.stats()).channels["main"].waiting_receivers:
                await asyncio.sleep(0.005)
            assert (await orders.stats()).channels["main"].waiting_receivers == 1
            await orders.send_many([b"%d" % number for number in range(30)])
            message = await waiting
            assert message is not None
            assert message.body == b"0"

    async def with_another() -> None:
        nonlocal orders
        async with penstock.connect_async(site.server.url) as other:
            orders = await other.create_queue("orders")
            await main()

    orders: Any = None
    asyncio.run(with_another())


def test_heartbeats_of_prefetched_messages_do_not_become_more_when_the_push_begins_again() -> None:
    class Carrier:
        def carry(self, command: Command, settle: Any) -> Outstanding:
            return Outstanding(command, settle, 0.0)

    async def main() -> None:
        prefetcher = Prefetcher(Carrier(), "orders", "main", 10)
        prefetcher._started(None, None)
        first = prefetcher._beat
        assert first is not None
        prefetcher.give_back()  # nobody has received for a minute; then somebody does
        prefetcher._started(None, None)
        assert first.cancelled()
        prefetcher.close()

    asyncio.run(main())


def test_a_prefetched_message_that_comes_again_is_kept_whatever_becomes_of_its_last_attempt() -> None:
    class Carrier:
        def __init__(self) -> None:
            self.settle: Any = None

        def carry(self, command: Any, settle: Any) -> Any:
            self.settle = settle

        def send_later(self, outstanding: Any) -> None:
            raise AssertionError("nobody waits")

    async def main() -> None:
        carrier = Carrier()
        prefetcher = Prefetcher(carrier, "orders", "main", 10)
        prefetcher._held.add([Span(0, 9, 1)])
        prefetcher._heartbeat()
        prefetcher._held.add([Span(5, 5, 2)])  # its lease was lost, and it was pushed once more
        stale = StaleReceipt("somebody else has it")
        carrier.settle(Settled(8, [Refused(4, 5, stale)]), None)
        assert list(prefetcher._held) == [Span(0, 3, 1), Span(5, 5, 2), Span(6, 9, 1)]
        prefetcher.settled(Ack(queue="orders", spans=[Span(0, 9, 1)]))  # the late handler's, which is refused for 5
        assert list(prefetcher._held) == [Span(5, 5, 2)]
        prefetcher.close()

    asyncio.run(main())


def test_a_push_that_ended_before_it_was_answered_begins_again_with_the_next_receive() -> None:
    """So it can be with several partitions: the queue is gone in one of them before all have answered."""

    class Carrier:
        def __init__(self) -> None:
            self.carried: list[Outstanding] = []

        def carry(self, command: Command, settle: Any) -> Outstanding:
            self.carried.append(Outstanding(command, settle, 0.0))
            return self.carried[-1]

    async def main() -> None:
        carrier = Carrier()
        prefetcher = Prefetcher(carrier, "orders", "main", 10)  # type: ignore[arg-type]
        answers: list[Any] = []
        for _ in range(2):
            prefetcher.receive(Outstanding(Receive(queue="orders"), lambda *answer: answers.append(answer), 0.0))
            info = QueueInfo("orders", 1, QueueConfig(), 0, 0, ["main"])
            carrier.carried[-1].settle(info, None)
            start = carrier.carried[-1]
            prefetcher.ended(penstock.QueueNotFound("the queue is gone"))
            start.settle(None, None)
        assert [type(error) for _, error in answers] == [penstock.QueueNotFound] * 2
        assert [type(each.command) for each in carrier.carried] == [DescribeQueue, StartPush] * 2
        prefetcher.close()

    asyncio.run(main())


@not_for_clusters("a node's part that is stopped here ends its sessions before its connections, and pushes hear of it")
def test_who_waits_for_a_prefetched_message_is_told_when_nobody_tries_to_connect_any_more(site: Site) -> None:
    ps = site.connect(prefetch=10, retry_for=0.2)
    orders = ps.create_queue("orders")
    failures: list[BaseException] = []

    def receive() -> None:
        try:
            orders.receive(wait=50)
        except penstock.NotSent as error:
            failures.append(error)

    waiting = threading.Thread(target=receive)
    waiting.start()
    eventually(lambda: orders.stats().channels["main"].waiting_receivers)
    site.stop()
    waiting.join(20)
    site.start()
    assert len(failures) == 1
    orders.send(b"a")
    assert orders.receive(wait=5).body == b"a"


def test_a_queue_that_promises_at_most_once_is_not_prefetched(site: Site) -> None:
    ps = site.connect(prefetch=10)
    ps.create_queue("orders", policy="consume_once")
    ps.queue("orders").send_many([b"a", b"b"])
    ps.queue("orders").receive(wait=5).ack()
    assert ps.queue("orders").stats().channels["main"].ready == 1
    ps.close()
    assert site.connect().queue("orders").receive().body == b"b"


@not_for_clusters("a node's part that is stopped here ends its sessions before its connections, and pushes hear of it")
@pytest.mark.parametrize("asks", ["before", "meanwhile"])
def test_who_waits_for_a_prefetched_message_gets_it_where_nobody_can_push_any_more(site: Site, asks: str) -> None:
    ps = site.connect(prefetch=10)
    orders = ps.create_queue("orders")
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(orders.receive(wait=20)))
    if asks == "before":
        waiting.start()
        eventually(lambda: orders.stats().channels["main"].waiting_receivers)
    site.stop()
    eventually(lambda: ps.transport is None)
    if asks == "meanwhile":
        waiting.start()
    site.options["sockets"] = False
    site.start()
    eventually(lambda: ps.transport == "long_poll")
    site.connect().queue("orders").send(b"a")
    waiting.join(30)
    assert [message.body for message in got] == [b"a"]


@not_for_clusters("a node's part that is stopped here ends its sessions before its connections, and pushes hear of it")
def test_who_is_taken_to_the_server_after_all_waits_no_longer_than_was_asked(site: Site) -> None:
    ps = site.connect(prefetch=10)
    orders = ps.create_queue("orders")
    started = time.monotonic()
    waiting = threading.Thread(target=lambda: orders.receive(wait=6))
    waiting.start()
    eventually(lambda: orders.stats().channels["main"].waiting_receivers)
    site.stop()
    time.sleep(max(0.0, started + 4 - time.monotonic()))
    site.options["sockets"] = False
    site.start()
    waiting.join(60)
    assert 5.9 < time.monotonic() - started < 9.9  # all of it once more would be 10


def test_a_cancelled_wait_takes_no_message_of_a_queue_that_is_not_prefetched(site: Site) -> None:
    async def main() -> None:
        async with penstock.connect_async(site.server.url, prefetch=10) as ps:
            orders = await ps.create_queue("orders", policy="consume_once")
            waiting = asyncio.create_task(orders.receive(wait=20))
            while not (await orders.stats()).channels["main"].waiting_receivers:
                await asyncio.sleep(0.005)
            waiting.cancel()
            await asyncio.wait([waiting])
            await orders.send(b"a")
            assert await orders.receive(wait=5) is not None, "the message went with who had left"

    asyncio.run(main())


def test_an_interrupted_receive_takes_no_message_wherever_it_is_interrupted(site: Site) -> None:
    class Inbox(deque[Any]):
        def append(self, waiting: Any) -> None:
            super().append(waiting)
            caller._inbox = deque(self)
            raise KeyboardInterrupt

    orders = site.connect().queue("orders")
    orders.send(b"a")
    caller: Any = orders._caller
    caller._inbox = Inbox()
    with pytest.raises(KeyboardInterrupt):
        orders.receive()
    assert orders.stats().channels["main"].leased == 0
    assert orders.stats().channels["main"].leased == 0, "it was taken along by the next call"
    assert orders.receive().attempts == 1


def test_names_of_commands_are_the_clients_own(site: Site) -> None:
    caller = site.connect()._caller
    with pytest.raises(penstock.InvalidRequest, match="takes no name"):
        caller.call(Receive(queue="orders", once=Once("c", 1)))


@pytest.mark.parametrize("transport", ["websocket", "long_poll"])
def test_a_look_at_many_messages_is_not_cut_short_by_what_one_answer_may_hold(
    make_site: Callable[..., Site], transport: str
) -> None:
    site = make_site(settings=Settings(websocket=WebsocketSettings(receive_max=10)))
    orders = site.connect(transport=transport).queue("orders")
    orders.send_many([str(number).encode() for number in range(35)])
    assert [message.sequence for message in orders.browse(limit=33)] == list(range(33))
    assert [message.sequence for message in orders.browse(after=20, limit=100)] == list(range(21, 35))
    assert len(orders.search(b"1", limit=100)) == 13
