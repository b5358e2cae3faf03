"""How often a client may ask: the same setting as REST's, and the same count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.core.errors import RateLimited, Throttled
from penstock.server.settings import RestSettings, Settings
from tests.client.serving import Server
from tests.protocols.rest.asking import done, refused
from tests.protocols.rest.serving import Server as RestServer
from tests.protocols.websocket.test_socket import Client, pack

SLOW = RestSettings(requests_per_second=0.01, requests_burst=3)
SECONDS_MAX = 60


def refusal(client: Client, command: list[Any], number: int) -> str:
    with pytest.raises(LookupError) as refused:
        client.ask(command, number)
    name, text = refused.value.args
    assert name == "RateLimited"
    return str(text)


def test_who_asks_too_often_is_told_when_to_ask_again_and_the_conversation_goes_on(
    make_server: Callable[..., Server],
) -> None:
    client = Client(make_server(settings=Settings(rest=SLOW)))
    client.ask(["Send", "q", [b"a"]], 1)
    client.ask(["StartPush", "q", "main", 0], 2)
    client.ask(["Send", "q", [b"b"]], 3)
    text = refusal(client, ["Send", "q", [b"c"]], 4)
    assert 90 < RateLimited(text).wait_s <= 100
    client.ask(["AddPushCredit", 2, 10], 5)
    assert client.answer(2, (2,))
    refusal(client, ["QueueStats", "q"], 6)
    client.ask(["Cancel", 99], 7)
    client.ask(["StopPush", 2], 8)


def test_requests_of_one_frame_are_counted_each(make_server: Callable[..., Server]) -> None:
    client = Client(make_server(settings=Settings(rest=SLOW)))
    client.socket.send(pack([[number, ["Send", "q", [b"x"]]] for number in range(1, 6)]))
    answered = [client.answer(number) for number in (1, 2, 3)]
    assert [each["first"] for each in answered] == [0, 1, 2]
    for number in (4, 5):
        with pytest.raises(LookupError, match="RateLimited"):
            client.answer(number)


@pytest.fixture
def both(tmp_path: Path) -> Iterator[RestServer]:
    """A server of REST and the websocket, with two callers."""
    text = "[rest]\nrequests_per_second = 0.01\nrequests_burst = 4\n"
    text += "".join(f"[[credentials]]\nname = '{name}'\naccess_key = '{name}'\ntoken = '{name}'\n" for name in "ab")
    server = RestServer(tmp_path / "data", text)
    yield server
    server.stop()


@pytest.mark.parametrize("transport", ["websocket", "long_poll"])
def test_rest_and_the_others_count_together_for_each_caller(both: RestServer, transport: Any) -> None:
    url = both.url.replace("http:", "penstock:")
    bearer = {"authorization": "Bearer a"}
    with both.client(headers=bearer) as http, penstock.connect(url, token="a", transport=transport) as ps:
        for _ in range(2):
            done(http.get("/v1/queues"))
            ps.queue("q").send(b"x")
        refused(http.get("/v1/queues"), 429, "rate_limited")
        with pytest.raises(penstock.RateLimited) as refusal:
            ps.queue("q").send(b"x")
        assert isinstance(refusal.value, Throttled)
        assert refusal.value.wait_s > 90
    with penstock.connect(url, token="b", transport=transport) as ps:
        assert ps.queue("q").stats().messages == 2


@pytest.mark.parametrize("transport", ["websocket", "long_poll"])
def test_a_listener_is_slowed_down_and_does_nothing_twice(make_server: Callable[..., Server], transport: Any) -> None:
    server = make_server(settings=Settings(rest=RestSettings(requests_per_second=20.0, requests_burst=5)))
    handled: list[str] = []

    def work(message: penstock.Message, tx: penstock.UnitOfWork) -> None:
        handled.append(message.text)
        tx.put("out", message.body)

    expected = sorted(str(number) for number in range(30))
    with penstock.connect(server.url, transport=transport) as ps:
        ps.create_queue("in", max_receives=0)
        ps.queue("in").send_many(expected)
        deadline = time.monotonic() + SECONDS_MAX
        with ps.listen("in", work, workers=8):
            while len(handled) < len(expected) or listing(ps) != expected:
                assert time.monotonic() < deadline, f"{len(handled)} were handled"
                time.sleep(0.2)
    assert sorted(handled) == expected


def listing(ps: penstock.Penstock) -> list[str] | None:
    """What has come out, unless we ask too often to be told."""
    try:
        return sorted(record.body.decode() for record in ps.queue("out").consumer("check").read(1_000))
    except (penstock.RateLimited, penstock.QueueNotFound):
        return None
