"""Whatever bytes come: the parsers say what is wrong with them, and the front end answers with a documented error."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote_plus

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.http import Exchange, Request
from penstock.protocols.sqs import errors, json_wire, query_wire
from penstock.protocols.sqs.actions import REQUESTS
from penstock.protocols.sqs.errors import SqsError
from penstock.protocols.sqs.shapes import wire_name
from tests.protocols.sqs.serving import Server

MEMBERS = sorted({wire_name(field) for shape in REQUESTS.values() for field in shape.__struct_fields__})
FIELDS = sorted(
    {
        f"{many.name}.{rest}"
        for many in query_wire._MANY_IN
        for rest in ("1", "1.Name", "1.Value", "1.Value.DataType", "x")
    }
    | {"Action", "Version", *MEMBERS}
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["All", "String"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=4), values, max_size=5)
forms = st.dictionaries(
    st.sampled_from(FIELDS) | st.text(max_size=6), st.text(max_size=8) | st.integers().map(str), max_size=6
)


def urlencoded(form: dict[str, str]) -> str:
    pairs = (f"{quote_plus(name, errors='surrogatepass')}={quote_plus(value)}" for name, value in form.items())
    return "&".join(pairs)


@given(
    action=st.sampled_from(sorted(REQUESTS)),
    body=st.binary(max_size=64) | objects.map(lambda o: json.dumps(o).encode()),
)
def test_json_is_read_or_malformed(action: str, body: bytes) -> None:
    try:
        msgspec.json.decode(body, type=REQUESTS[action])
    except json_wire.UNREADABLE as error:
        assert json_wire.malformed(error).kind is errors.MALFORMED_INPUT


@given(action=st.sampled_from(sorted(REQUESTS)), text=st.text(max_size=64) | forms.map(urlencoded))
def test_forms_are_read_or_malformed(action: str, text: str) -> None:
    try:
        query_wire.decode(query_wire.parse_form(text), REQUESTS[action])
    except SqsError as error:
        assert error.kind is errors.MALFORMED_INPUT


class Catching:
    """Stands where a connection would."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []

    def answer(self, exchange: Exchange, status: int, _headers: Any, body: bytes) -> None:
        exchange.connection = exchange.on_abandoned = None
        self.answers.append((status, body))

    def answer_well(self, exchange: Exchange, _lines: str, body: bytes) -> None:
        self.answer(exchange, 200, (), body)


def statuses(server: Server, *requests: Request) -> list[int]:
    """What the front end answers; long polls are let run out."""
    caught = Catching()

    def handle() -> None:
        for request in requests:
            server.front_end.handle(Exchange(caught, request, False))

    server.do(handle)
    deadline = time.monotonic() + 60
    while len(caught.answers) < len(requests) and time.monotonic() < deadline:
        server.advance(21)
    return [status for status, _ in caught.answers]


KNOWN = {kind.status for kind in errors.KINDS if kind.status < 500} | {200}


@settings(max_examples=150)
@given(action=st.sampled_from(sorted(REQUESTS)), json_object=objects, form=forms)
def test_every_request_gets_one_answer_and_never_a_failure(
    server: Server, action: str, json_object: dict[str, Any], form: dict[str, str]
) -> None:
    address = {"QueueUrl": f"{server.url}/000000000000/fuzzed", "QueueName": "fuzzed"}
    headers = {"host": "x", "x-amz-target": f"AmazonSQS.{action}"}
    requests = [
        Request("POST", b"/", headers, json.dumps(json_object | address).encode()),
        Request("POST", b"/", {"host": "x"}, urlencoded(form | address | {"Action": action}).encode()),
    ]
    found = statuses(server, *requests)
    assert len(found) == 2
    assert set(found) <= KNOWN
