"""Whatever is asked of the HTTP side, it answers with one of its own words, and goes on."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.protocols.lookup.serving import HOST, PATIENCE_S
from tests.protocols.nsq.http.serving import RunningNode, node

PATHS = ["/pub", "/mpub", "/stats", "/info", "/ping", "/config/log_level", "/config/nothing", "/", "/debug/pprof/"]
PATHS += [f"/topic/{verb}" for verb in ("create", "delete", "empty", "pause", "unpause", "other")]
PATHS += [f"/channel/{verb}" for verb in ("create", "delete", "empty", "pause", "unpause", "other")]
NAMES = ["topic", "channel", "defer", "binary", "format", "include_clients", "include_mem", "order", "%74opic", ""]
VALUES = [
    "t",
    "t%23ephemeral",
    "",
    "json",
    "true",
    "0",
    "-1",
    "9" * 30,
    "%00",
    "%ff",
    "%zz",
    ";",
    "a+b",
    "x" * 65,
]

arguments = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=5)
bodies = st.one_of(st.just(b""), st.binary(max_size=40), st.just(b"\0\0\0\1\0\0\0\1x"), st.just(b"a\nb\n"))


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with node(tmp_path_factory.mktemp("fuzzed")) as running:
        yield running


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["GET", "POST", "PUT", "HEAD", "DELETE"]), st.sampled_from(PATHS), arguments, bodies)
def test_every_answer_is_ok_or_a_known_refusal(
    fuzzed: RunningNode, method: str, path: str, arguments: list[tuple[str, str]], body: bytes
) -> None:
    target = path + "?" + "&".join(f"{name}={value}" for name, value in arguments)
    connection = http.client.HTTPConnection(HOST, fuzzed.port, timeout=PATIENCE_S)
    try:
        connection.putrequest(method, target, skip_host=True)
        connection.putheader("Host", "localhost")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    assert response.status in (200, 400, 404, 405, 413)
    if response.status != 200 and method != "HEAD":
        assert set(json.loads(content)) == {"message"}


def test_it_still_serves(fuzzed: RunningNode) -> None:
    assert fuzzed.post("/pub", b"x", topic="after-all") == "OK"
