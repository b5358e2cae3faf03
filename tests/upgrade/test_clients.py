"""Clients and servers of different builds understand each other."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.upgrade import builds

TRANSPORTS = ("websocket", "long_poll", "poll")


def said(client: Path, server: Path, directory: Path, transport: str) -> dict[str, Any]:
    with builds.serving(server, directory) as ready:
        return builds.run(client, "talk.py", f"penstock://127.0.0.1:{ready['listening']['http']['port']}", transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_clients_of_an_earlier_build_see_what_this_builds_clients_see(tmp_path: Path, transport: str) -> None:
    own = said(builds.SOURCES, builds.SOURCES, tmp_path / "own", transport)
    assert own["transport"] == transport and own["handled"] == own["cups"] and own["queues"] == ["cups"]
    assert said(builds.FIRST, builds.SOURCES, tmp_path / "earlier", transport) == own


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_clients_of_this_build_can_talk_to_an_earlier_server(tmp_path: Path, transport: str) -> None:
    earlier = said(builds.FIRST, builds.FIRST, tmp_path / "earlier", transport)
    assert said(builds.SOURCES, builds.FIRST, tmp_path / "own", transport) == earlier


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_earlier_server_refuses_later_commands_by_name_and_the_conversation_goes_on(
    tmp_path: Path, transport: Any
) -> None:
    with contextlib.ExitStack() as stack:
        ready = stack.enter_context(builds.serving(builds.FIRST, tmp_path / "earlier"))
        url = f"penstock://127.0.0.1:{ready['listening']['http']['port']}"
        ps = stack.enter_context(penstock.connect(url, transport=transport))
        cups = ps.queue("cups")
        cups.send(b"tea")
        with pytest.raises(penstock.InvalidRequest, match="there is no command 'LookUp'"):
            cups.look_up(0)
        cups.receive().ack()
        assert cups.stats().messages == 0
