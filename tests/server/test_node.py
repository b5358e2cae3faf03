"""A node as users meet it: the process, its files, its ports, its stop."""

from __future__ import annotations

import asyncio
import base64
import http.client
import io
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import __version__
from penstock.assembly import front_ends
from penstock.core.commands import CreateQueue, DescribeQueue, QueueInfo, Send
from penstock.core.queues.config import QueueConfig
from penstock.protocols.http import Exchange, Handler
from penstock.protocols.http_front_end import HttpFrontEnd
from penstock.server import log
from penstock.server.node import Node, Ready, Services
from penstock.server.settings import InvalidSettings, LogSettings, Settings, parse
from penstock.server.tasks import HEALTH_S
from penstock.store.embedded import open_store

PATIENCE_S = 60.0
DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "server.md"
Reply = tuple[int, dict[str, str], bytes]


def ask(
    url: str, path: str = "/", *, method: str = "GET", body: bytes = b"", headers: dict[str, str] | None = None
) -> Reply:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        content = response.read()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, content
    finally:
        connection.close()


def call_sqs(url: str, action: str, **request: Any) -> dict[str, Any]:
    """An SQS call without signature, for servers that need none."""
    headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
    status, _, body = ask(url, method="POST", body=json.dumps(request).encode(), headers=headers)
    assert status == 200, body
    decoded: dict[str, Any] = json.loads(body)
    return decoded


# -- in this process ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[tuple[Node, Ready]]:
    node = Node(settings, front_ends(settings), __version__)
    async with node as ready:
        yield node, ready


def settings_in(data: Path, text: str = "") -> Settings:
    return parse(text).overridden("server", data=str(data), sqs_port=0, http_port=0, nsq_tcp_port=0, nsq_http_port=0)


async def config_of(node: Node, queue: str) -> QueueConfig:
    info: QueueInfo = await node.services.shard.call(DescribeQueue(name=queue))
    return info.config


DECLARED = """
[[queues]]
name = "orders"
lease = 5
max_receives = 3
dead_letter = "orders-dead"
tags = { team = "sales" }

[[queues]]
name = "orders-dead"
retention = "none"

[[queues]]
name = "billing.fifo"
"""


def test_declared_queues_are_there_when_the_node_is_ready(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(settings_in(tmp_path, DECLARED)) as (node, _):
            orders = await config_of(node, "orders")
            assert (orders.lease_ms, orders.max_receives, orders.dead_letter) == (5_000, 3, "orders-dead")
            assert orders.tags == {"team": "sales"}
            assert (await config_of(node, "orders-dead")).retention_ms is None
            assert (await config_of(node, "billing.fifo")).is_fifo

    asyncio.run(main())


def test_a_declaration_changes_what_it_gives_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(settings_in(tmp_path)) as (node, _):
            await node.services.shard.call(CreateQueue(name="orders", config=QueueConfig(lease_ms=1_000, delay_ms=7)))
            await node.services.shard.call(Send(queue="orders", bodies=[b"kept"]))
        async with running(settings_in(tmp_path, DECLARED)) as (node, _):
            orders = await config_of(node, "orders")
            assert (orders.lease_ms, orders.delay_ms) == (5_000, 7)
        async with running(settings_in(tmp_path, DECLARED)) as (node, _):
            assert await config_of(node, "orders") == orders

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[queues]]\nname = 'there'\nkind = 'fifo'", "cannot become fifo"),
        ("[[queues]]\nname = 'new'\ndead_letter = 'nowhere'", "'nowhere', does not exist"),
    ],
)
def test_a_declaration_that_cannot_be_met_keeps_the_node_from_starting(tmp_path: Path, text: str, words: str) -> None:
    async def main() -> None:
        async with running(settings_in(tmp_path)) as (node, _):
            await node.services.shard.call(CreateQueue(name="there"))
        with pytest.raises(InvalidSettings, match=words):
            await Node(settings_in(tmp_path, text), [], __version__).start()

    asyncio.run(main())


def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    async def main(taken: int) -> None:
        settings = settings_in(tmp_path).overridden("server", http_port=taken)
        with pytest.raises(
            InvalidSettings, match=rf"http cannot listen on 127\.0\.0\.1:{taken}: the port is taken.*--http-port"
        ):
            await Node(settings, front_ends(settings), __version__).start()
        open_store(tmp_path).close()

    with socket.create_server(("127.0.0.1", 0)) as other:
        asyncio.run(main(other.getsockname()[1]))


def test_health_version_and_metrics_are_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(settings_in(tmp_path, DECLARED)) as (node, ready):
            url, sqs_url = ready.listening["http"].url, ready.listening["sqs"].url
            status, _, body = await asyncio.to_thread(ask, url, "/healthz")
            assert (status, json.loads(body)) == (200, {"status": "ok"})
            _, _, body = await asyncio.to_thread(ask, url, "/version")
            assert json.loads(body) == {"name": "penstock", "version": __version__}
            assert (await asyncio.to_thread(ask, url, "/nothing"))[0] == 404
            await node.services.shard.call(Send(queue="orders", bodies=[b"a", b"b"]))
            await asyncio.to_thread(call_sqs, sqs_url, "ListQueues")
            await asyncio.to_thread(ask, sqs_url, "/", method="POST", headers={"X-Amz-Target": "AmazonSQS.Nonsense"})
            status, headers, body = await asyncio.to_thread(ask, url, "/metrics")
            lines = body.decode().splitlines()
            assert status == 200
            assert headers["content-type"].startswith("text/plain")
            assert 'penstock_requests_total{action="ListQueues",outcome="ok",protocol="sqs"} 1.0' in lines
            assert 'penstock_requests_total{action="unknown",outcome="InvalidAction",protocol="sqs"} 1.0' in lines
            assert 'penstock_channel_ready_messages{channel="main",queue="orders"} 2.0' in lines
            assert 'penstock_queue_messages_sent_total{queue="orders"} 2.0' in lines
            assert 'penstock_http_connections_total{protocol="sqs"} 2.0' in lines
            infinity = 'penstock_request_duration_seconds_bucket{action="ListQueues",le="+Inf",protocol="sqs"} 1.0'
            assert infinity in lines
            assert any(line.startswith("process_resident_memory_bytes") for line in lines)
            names = {line.split()[2] for line in lines if line.startswith("# TYPE penstock_")}
            undocumented = [name for name in names if name.split("_", 2)[-1] not in DOCUMENTATION.read_text()]
            assert len(names) > 20
            assert not undocumented

    asyncio.run(main())


def test_health_says_so_when_the_store_takes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(settings_in(tmp_path)) as (node, ready):
            await node.services.shard.close()
            for path in ("/healthz", "/readyz"):
                status, _, body = await asyncio.to_thread(ask, ready.listening["http"].url, path)
                assert status == 503
                assert "closed" in json.loads(body)["reason"]
            assert (await asyncio.to_thread(ask, ready.listening["http"].url, "/livez"))[0] == 200

    asyncio.run(main())


def test_health_does_not_wait_for_a_store_that_stands_still(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(settings_in(tmp_path)) as (node, ready):
            shard, step = node.services.shard, asyncio.get_running_loop().create_future()
            shard._asked = step  # type: ignore[attr-defined]  # the last question has no answer yet
            url = ready.listening["http"].url
            began_s = time.monotonic()
            asked = [asyncio.to_thread(ask, url, path) for path in ("/healthz", "/readyz", "/healthz")]
            for status, _, body in await asyncio.gather(*asked):
                assert (status, json.loads(body)) == (200, {"status": "degraded", "waiting": [0]})
            assert time.monotonic() - began_s < 2 * len(asked) * HEALTH_S
            step.set_result(None)
            _, _, body = await asyncio.to_thread(ask, url, "/readyz")
            assert json.loads(body) == {"status": "ok"}

    asyncio.run(main())


GUARDED = """
[[credentials]]
name = "worker"
access_key = "AKWORKER"
secret_key = "worker secret"

[[credentials.allow]]
queues = "orders*"
rights = ["read"]
"""


def basic(access_key: str, secret_key: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{access_key}:{secret_key}".encode()).decode()}


def test_metrics_show_a_key_the_queues_that_it_may_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(settings_in(tmp_path, DECLARED + GUARDED)) as (_, ready):
            url = ready.listening["http"].url
            strangers = [{}, basic("AKWORKER", "guess"), basic("AKNOBODY", ""), {"Authorization": "Basic \u00e9"}]
            for headers in strangers:
                status, answered, body = await asyncio.to_thread(lambda h=headers: ask(url, "/metrics", headers=h))  # type: ignore[misc]
                assert status == 401
                assert answered["www-authenticate"].startswith("Basic")
                assert b"orders" not in body
            headers = basic("AKWORKER", "worker secret")
            status, _, body = await asyncio.to_thread(lambda: ask(url, "/metrics", headers=headers))
            assert status == 200
            assert b'queue="orders"' in body
            assert b"billing" not in body
            assert (await asyncio.to_thread(ask, url, "/healthz"))[0] == 200

    asyncio.run(main())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://example.com"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "none", "Accept-Language": "de"}, 200),
        ({"Accept-Language": "de"}, 403),  # an image that a page shows, from another machine without TLS
        ({}, 200),
    ],
)
def test_web_pages_may_not_call_an_open_server(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    async def main() -> None:
        async with running(settings_in(tmp_path)) as (_, ready):
            url = ready.listening["sqs"].url
            answered = await asyncio.to_thread(lambda: ask(url, "/?Action=ListQueues", headers=headers))
            assert answered[0] == status

    asyncio.run(main())


def test_a_request_without_a_signature_is_refused_where_keys_are_configured(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(settings_in(tmp_path, GUARDED)) as (_, ready):
            status, _, body = await asyncio.to_thread(ask, ready.listening["sqs"].url, "/?Action=ListQueues")
            assert status == 403
            assert b"MissingAuthenticationToken" in body

    asyncio.run(main())


def answering(answer: Callable[[Exchange], None]) -> Callable[[Services], Handler]:
    return lambda services: answer


def test_a_stop_lets_what_is_in_flight_finish_and_its_effects_be_committed(tmp_path: Path) -> None:
    async def main() -> None:
        settings = settings_in(tmp_path)
        held: list[Exchange] = []
        node = Node(settings, [HttpFrontEnd("held", 0, answering(held.append))], __version__)
        ready = await node.start()
        asking = asyncio.create_task(asyncio.to_thread(ask, ready.listening["held"].url))
        while not held:
            await asyncio.sleep(0.001)
        stopping = asyncio.create_task(node.stop())
        await asyncio.sleep(0.02)
        assert not stopping.done()
        await node.services.shard.call(Send(queue="late", bodies=[b"committed"]))
        held[0].respond(200, (), b"done")
        assert (await asking)[2] == b"done"
        await stopping
        await node.stop()
        async with running(settings) as (again, _):
            assert await config_of(again, "late")

    asyncio.run(main())


# -- as a process ------------------------------------------------------------------------------------------------------


class Process:
    """`penstock serve` in a process of its own."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self._ready_file = directory / "ready.json"
        self._ready_file.unlink(missing_ok=True)
        ports = [f"--{name}-port=0" for name in ("sqs", "http", "nsq-tcp", "nsq-http")]
        ports += ["--data", str(directory / "data")]
        command = [sys.executable, "-m", "penstock", "serve", *ports, "--ready-file", str(self._ready_file), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ready(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while not self._ready_file.exists():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "the process does not become ready"
            time.sleep(0.01)
        ready: dict[str, Any] = json.loads(self._ready_file.read_text())
        return ready

    def ended(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def starting(*flags: str) -> Process:
        started.append(Process(tmp_path, *flags))
        return started[-1]

    yield starting
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_long_polls_empty_keeps_what_was_sent_and_exits_with_0(
    start: Callable[..., Process], number: signal.Signals
) -> None:
    served = start()
    ready = served.ready()
    url = ready["listening"]["sqs"]["url"]
    queue_url = call_sqs(url, "CreateQueue", QueueName="orders")["QueueUrl"]
    empty_url = call_sqs(url, "CreateQueue", QueueName="empty")["QueueUrl"]
    call_sqs(url, "SendMessage", QueueUrl=queue_url, MessageBody="kept")
    address = (ready["listening"]["sqs"]["host"], ready["listening"]["sqs"]["port"])
    body = json.dumps({"QueueUrl": empty_url, "WaitTimeSeconds": 20}).encode()
    with socket.create_connection(address, PATIENCE_S) as poll:
        head = f"POST / HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
        before = time.monotonic()
        poll.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until_received(ready["listening"]["http"]["url"], "empty")
        served.process.send_signal(number)
        answered = b"".join(iter(lambda: poll.recv(65_536), b""))
        assert time.monotonic() - before < 20, "it waited to its end"
    code, out, err = served.ended()
    assert answered.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close\r\n" in answered
    assert "Messages" not in json.loads(answered.partition(b"\r\n\r\n")[2])
    assert (code, err) == (0, "")
    where = ", ".join(f"{name} {address['url']}" for name, address in ready["listening"].items())
    assert list(ready["listening"]) == ["sqs", "http", "nsq", "nsq-http"]
    first, *rest = out.splitlines()
    assert first == f"penstock {__version__} ready: {where}, data {ready['data']}"
    url = ready["listening"]["http"]["url"]
    assert len(rest) == 3 and f"{url}/ is the console, {url}/v1/docs has" in rest[0]
    again = start()
    url = again.ready()["listening"]["sqs"]["url"]
    received = call_sqs(url, "ReceiveMessage", QueueUrl=f"{url}/000000000000/orders")
    assert [message["Body"] for message in received["Messages"]] == ["kept"]


def wait_until_received(http_url: str, queue: str) -> None:
    """Until somebody waits for messages of the queue."""
    line = f'penstock_channel_waiting_receivers{{channel="main",queue="{queue}"}} 1.0'
    deadline = time.monotonic() + PATIENCE_S
    while line not in ask(http_url, "/metrics")[2].decode():
        assert time.monotonic() < deadline, "the receive never came to wait"
        time.sleep(0.01)


def test_a_server_that_others_could_reach_refuses_to_start_without_credentials(start: Callable[..., Process]) -> None:
    code, out, err = start("--host", "0.0.0.0").ended()
    assert (code, out) == (2, "")
    assert "[[credentials]]" in err
    assert len(err.splitlines()) == 1


def test_a_directory_that_another_server_has_open_is_refused_with_a_line(start: Callable[..., Process]) -> None:
    start().ready()
    code, _, err = start().ended()
    assert code == 4
    assert len(err.splitlines()) == 1


def test_what_is_wrong_with_a_flag_is_said_of_the_flag(start: Callable[..., Process]) -> None:
    code, _, err = start("--sqs-port", "99999").ended()
    assert (code, err) == (2, "penstock: --sqs-port is 99999: it must be from 0 to 65535\n")


def test_flags_of_a_cluster_are_refused_without_its_engine(start: Callable[..., Process]) -> None:
    code, _, err = start("--bootstrap", "127.0.0.1:1", "--node", "n1").ended()
    assert (code, err) == (2, "penstock: --bootstrap, --node: only for nodes of a cluster; add --engine kafka\n")


def test_a_file_of_settings_is_followed_and_flags_win(start: Callable[..., Process], tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(
        '[server]\nsqs_port = 1\n[log]\nformat = "json"\nrequests = "all"\n[[queues]]\nname = "declared"\n'
    )
    served = start("--config", str(config))
    url = served.ready()["listening"]["sqs"]["url"]
    assert call_sqs(url, "ListQueues")["QueueUrls"] == [f"{url}/000000000000/declared"]
    served.process.terminate()
    code, _, err = served.ended()
    assert code == 0
    [line] = [json.loads(line) for line in err.splitlines() if '"event":"request"' in line]
    assert line["action"] == "ListQueues"
    assert line["outcome"] == "ok"
    assert line["status"] == 200
    assert line["request_id"]
    assert line["duration_ms"] > 0


# -- the log -----------------------------------------------------------------------------------------------------------


def logged(settings: LogSettings) -> str:
    stream = io.StringIO()

    async def main() -> None:
        request_log = log.RequestLog(settings, stream)
        for status in (200, 400, 500):
            if request_log.wants(status):
                request_log.note("sqs", status, 0.0123, action="SendMessage", queue="orders", principal="a\nb")
        request_log.flush()

    asyncio.run(main())
    return stream.getvalue()


@pytest.mark.parametrize(("requests", "statuses"), [("all", [200, 400, 500]), ("errors", [400, 500]), ("none", [])])
def test_the_requests_that_are_asked_for_are_logged(requests: Any, statuses: list[int]) -> None:
    lines = [json.loads(line) for line in logged(LogSettings(format="json", requests=requests)).splitlines()]
    assert [line["status"] for line in lines] == statuses


def test_a_line_of_text_stays_a_line() -> None:
    text = logged(LogSettings(requests="all"))
    assert len(text.splitlines()) == 3
    assert "sqs SendMessage orders: 200  12.3 ms" in text
