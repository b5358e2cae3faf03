"""Both wire parsers with everything that is not as it should be: no 5xx, no connection without an answer.

`COMPAT_FUZZ_EXAMPLES` says how hard Hypothesis tries for each action, `COMPAT_MUTATIONS` how many damaged requests the
byte mutator sends.
"""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.sqs.actions import REQUESTS
from tests.compat.examples import QUEUE, as_form, as_json, examples, make_queues
from tests.compat.mutations import Mutator
from tests.compat.server import PATIENCE_S, Server, serving

EXAMPLES = int(os.environ.get("COMPAT_FUZZ_EXAMPLES", "50"))
MUTATIONS = int(os.environ.get("COMPAT_MUTATIONS", "5000"))
ACTIONS = sorted(REQUESTS)
WAIT = "WaitTimeSeconds"
NOT_ALLOWED = "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
"""Everything but the characters that the AWS API reference lists."""

hard = settings(max_examples=EXAMPLES)


class Asked:
    """One keep-alive connection, as clients have it, and what the requests start from."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.examples = examples(server, make_queues(server))
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)

    def ask(self, body: bytes, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        """Raises if the connection is dropped without an answer."""
        self._connection.request("POST", "/", body, headers)
        response = self._connection.getresponse()
        content = response.read()
        assert response.status < 500, (body, content)
        assert response.status == 200 or response.status >= 400
        return response, content

    def ask_json(self, action: str, body: bytes) -> None:
        headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
        response, content = self.ask(body, headers)
        if response.status == 200:
            assert not content or isinstance(json.loads(content), dict)
        else:
            error = json.loads(content)
            assert set(error) == {"__type", "message"}
            assert (response.getheader("x-amzn-query-error") or "").endswith(";Sender")

    def ask_form(self, body: bytes) -> None:
        response, content = self.ask(body, {"Content-Type": "application/x-www-form-urlencoded"})
        root = ElementTree.fromstring(content)
        if root.tag == "UnknownOperationException":
            assert response.status == 404
        elif response.status != 200:
            assert root.tag.endswith("}ErrorResponse")


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """A server of its own, which must be well at the end."""
    with serving(tmp_path_factory.mktemp("fuzz"), "--sqs-limits", "strict") as server:
        yield Asked(server)
        assert_well(server)


def assert_well(server: Server) -> None:
    sqs = server.client()
    assert server.is_healthy()
    url = sqs.create_queue(QueueName="well")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="still here")
    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert message["Body"] == "still here"


ODD_TEXTS = [
    "",
    " ",
    "\0",
    "\ufffe",
    "\ud800",
    "\U0010ffff",
    "a" * 300,
    "-1",
    "1e9",
    "9" * 30,
    "٣",
    "0x1",
    "true",
    "null",
]
ODD_NAMES = ["All", ".*", "../..", "http://", "http://[", "//", "arn:aws:sqs:::", "Number.", "="]
ODD_JSON = [
    "{}",
    "[",
    "[" * 2_000,
    '{"maxReceiveCount": []}',
    '{"deadLetterTargetArn": 1, "maxReceiveCount": "x"}',
    '{"redrivePermission": {}}',
]
odd_texts = st.text(max_size=20) | st.sampled_from([*ODD_TEXTS, *ODD_NAMES, *ODD_JSON])
odd_numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([-1, 0, 10**30, -(2**63), 2**63, 2**31, 1e308, -0.0, 10**400]),
)
junk = st.recursive(
    st.none() | st.booleans() | odd_numbers | odd_texts,
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(odd_texts, inner, max_size=4),
    max_leaves=8,
)


@st.composite
def edited(draw: st.DrawFn, value: Any) -> Any:
    """Here and there something else, something less or something more than the value had."""
    if draw(st.integers(0, 9)) == 0:
        return draw(junk)
    if isinstance(value, dict):
        kept = {name: draw(edited(each)) for name, each in value.items() if draw(st.integers(0, 11))}
        return kept | draw(
            st.dictionaries(odd_texts, junk, max_size=1) if draw(st.integers(0, 5)) == 0 else st.just({})
        )
    if isinstance(value, list):
        return [draw(edited(each)) for each in value] * draw(st.sampled_from([1, 1, 1, 0, 2, 11]))
    return value


def without_wait(parameters: Any) -> Any:
    """Receives that would wait do not."""
    if isinstance(parameters, dict) and WAIT in parameters and not is_wrong_wait(parameters[WAIT]):
        return {**parameters, WAIT: 0}
    return parameters


def is_wrong_wait(value: Any) -> bool:
    try:
        return not 0 <= float(value) <= 20
    except (TypeError, ValueError, OverflowError):
        return True


@pytest.mark.parametrize("action", ACTIONS)
def test_no_json_is_too_odd(asked: Asked, action: str) -> None:
    @hard
    @given(st.data())
    def run(data: st.DataObject) -> None:
        parameters = data.draw(edited(as_json(data.draw(st.sampled_from(asked.examples[action])))))
        asked.ask_json(action, json.dumps(without_wait(parameters)).encode())

    run()


@pytest.mark.parametrize("action", ACTIONS)
def test_no_form_is_too_odd(asked: Asked, action: str) -> None:
    @hard
    @given(st.data())
    def run(data: st.DataObject) -> None:
        fields = as_form(action, data.draw(st.sampled_from(asked.examples[action])))
        pairs = [("Action", action), *data.draw(edited_fields(fields)).items()]
        asked.ask_form(urlencode(pairs, errors="surrogatepass").encode())

    run()


@st.composite
def edited_fields(draw: st.DrawFn, fields: dict[str, str]) -> Any:
    """Fields renamed, renumbered, cut, doubled, with other values."""
    edited: dict[str, str] = {}
    for name, value in fields.items():
        match draw(st.integers(0, 14)):
            case 0:
                pass
            case 1:
                edited[name] = draw(odd_texts)
            case 2:
                edited[draw(odd_texts)] = value
            case 3:
                edited[name.replace("1", draw(st.sampled_from(["0", "-1", "2", "x", "", "9" * 20, "1.1"])))] = value
            case 4:
                edited[f"{name}.{draw(odd_texts)}"] = value
            case 5:
                edited[name.rpartition(".")[0]] = value
            case _:
                edited[name] = value
    return without_wait(edited)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"QueueUrl": "a", "QueueUrl": "b"}',
        b'{"QueueUrl": "\\ud800"}',
        b'{"QueueUrl": "\xed\xa0\x80"}',
        b'{"MaxResults": 1e400, "MaxNumberOfMessages": NaN}',
        b'{"Attributes": ' + b"[" * 100_000,
        b'{"Attributes": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_no_body_is_too_odd(asked: Asked, body: bytes) -> None:
    for action in ACTIONS:
        asked.ask_json(action, body)
    asked.ask_form(body)


def test_a_message_of_odd_unicode_comes_back_as_it_was_or_not_at_all(asked: Asked) -> None:
    sqs = asked.server.client()
    url = sqs.create_queue(QueueName=f"{QUEUE}-unicode", Attributes={"VisibilityTimeout": "0"})["QueueUrl"]

    @hard
    @given(st.text(min_size=1, max_size=50))
    def run(body: str) -> None:
        try:
            sqs.send_message(QueueUrl=url, MessageBody=body)
        except sqs.exceptions.InvalidMessageContents:
            assert re.search(NOT_ALLOWED, body)
            return
        (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        assert message["Body"] == body

    run()


def test_no_bytes_are_too_odd(asked: Asked) -> None:
    mutator = Mutator(asked.server, asked.examples, seed=5)
    mutator.run(MUTATIONS)
    print(dict(sorted(mutator.statuses.items())))
    assert mutator.statuses[200] > MUTATIONS // 50
    assert mutator.statuses[400] > MUTATIONS // 50
