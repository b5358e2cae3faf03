"""Clients and servers agree on a version of the conversation that both speak, or say clearly that there is none."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import httpx
import msgspec
import pytest

import penstock
from penstock.core import commands
from penstock.wire import requests
from penstock.wire.requests import Versions
from tests.client.serving import Server
from tests.upgrade import builds

pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


def hello(server: Server, *fields: object) -> dict[str, object]:
    """What a server says to the first request of a conversation."""
    url = server.url.replace("penstock:", "http:") + requests.COMMANDS_PATH
    return dict(unpack(httpx.post(url, content=pack([[0, ["Hello", *fields]]])).content)[1][0][2])


@pytest.fixture
def speaking(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, int], None]:
    """Have one side speak other versions than this build."""
    places = {
        "server": ["penstock.protocols.websocket.admission.VERSIONS"],
        "client": ["penstock.client.remote.websocket.VERSIONS", "penstock.client.remote.polling.VERSIONS"],
    }

    def speak(side: str, oldest: int, newest: int) -> None:
        for place in places[side]:
            monkeypatch.setattr(place, Versions(oldest, newest))

    return speak


def test_the_newest_version_that_both_speak_is_agreed_on(server: Server, speaking: Callable[..., None]) -> None:
    assert hello(server, 1)["version"] == 1
    speaking("server", 1, 3)
    assert hello(server, 1)["version"] == 1
    assert hello(server, 1, None, "", 0, None, 0, 2)["version"] == 2
    assert hello(server, 2, None, "", 0, None, 0, 9, "and what a later build adds")["version"] == 3


@pytest.mark.parametrize("transport", ["websocket", "long_poll"])
@pytest.mark.parametrize("newer", ["server", "client"])
def test_without_a_common_version_both_are_told(
    server: Server, speaking: Callable[..., None], transport: str, newer: str
) -> None:
    speaking(newer, 7, 8)
    text = r"speaks version 7 to 8 of the conversation, and the client 1: upgrade the one with the lower number"
    if newer == "client":
        text = r"speaks version 1 of the conversation, and the client 7 to 8: upgrade the one with the lower number"
    with pytest.raises(penstock.NoCommonVersion, match=text):
        penstock.connect(server.url, transport=transport)


def test_fields_that_say_nothing_are_passed_over_and_others_are_refused() -> None:
    ack = ["Ack", "orders", [[1, 1, 1]], "main", [], False, None, 0, False]
    work = ["CommitWork", [ack], [["Send", "cups", [b"tea"]]], None, None, 0]
    for known in (ack, work):
        (_, command), (_, longer) = requests.decode_requests(pack([[1, known], [2, [*known, None, 0]]]))
        assert command == longer
        ((_, refused),) = requests.decode_requests(pack([[1, [*known, None, "new"]]]))
        assert isinstance(refused, penstock.InvalidRequest) and "the sender is a newer build" in str(refused)
    nested = ["CommitWork", [[*ack, False]], [], None, None, 0]
    ((_, read),) = requests.decode_requests(pack([[1, nested]]))
    assert isinstance(read, requests.CommitWork) and read.acks[0].spans == [commands.Span(1, 1, 1)]


@pytest.mark.parametrize("transport", ["websocket", "long_poll"])
def test_a_client_of_the_first_build_hears_why_a_later_server_refuses_it(
    server: Server, speaking: Callable[..., None], transport: str
) -> None:
    speaking("server", 2, 3)
    command = [sys.executable, str(builds.HERE / "talk.py"), server.url, transport]
    ran = subprocess.run(command, env=builds.environment(builds.FIRST), capture_output=True, text=True, timeout=60)
    assert ran.returncode and re.search(r"InvalidRequest: this server .* speaks version 2 to 3 .* client 1", ran.stderr)
