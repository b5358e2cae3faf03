"""Requests made by hand, without an SDK."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

from tests.protocols.sqs.serving import Server

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"
Plain = dict[str, Any]


class Answer:
    """Status, headers and body of a response."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def xml(self) -> ElementTree.Element:
        return ElementTree.fromstring(self.body)


def send(
    server: Server, method: str, target: str, body: bytes | str | None = None, headers: dict[str, str] | None = None
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, target, body, headers or {})
        return Answer(connection.getresponse())
    finally:
        connection.close()


def send_json(server: Server, action: str, body: Any, path: str = "/", **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return send(
        server,
        "POST",
        path,
        data,
        {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0", **headers},
    )


def send_form(server: Server, action: str, path: str = "/", **fields: Any) -> Answer:
    """A Query request; `__` in a field's name is a dot."""
    form = {"Action": action, "Version": "2012-11-05"} | {
        name.replace("__", "."): value for name, value in fields.items()
    }
    return send(server, "POST", path, urlencode(form), {"Content-Type": "application/x-www-form-urlencoded"})


def tag_of(element: ElementTree.Element) -> str:
    assert element.tag.startswith(NAMESPACE)
    return element.tag.removeprefix(NAMESPACE)


def plain(element: ElementTree.Element) -> Any:
    """Elements as dicts of lists, texts as texts."""
    if not len(element):
        return element.text or ""
    found: dict[str, list[Any]] = {}
    for child in element:
        found.setdefault(tag_of(child), []).append(plain(child))
    return found


def result_of(answer: Answer, action: str) -> Any:
    """What is in the result of a Query answer; None if it has none."""
    root = answer.xml
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "text/xml"
    assert tag_of(root) == f"{action}Response"
    metadata = root.find(f"{NAMESPACE}ResponseMetadata/{NAMESPACE}RequestId")
    assert metadata is not None
    assert metadata.text == answer.headers["x-amzn-requestid"]
    result = root.find(f"{NAMESPACE}{action}Result")
    return None if result is None else plain(result)


def error_of(answer: Answer) -> dict[str, str]:
    """What a Query error says."""
    root = answer.xml
    assert tag_of(root) == "ErrorResponse"
    said = plain(root)
    assert said["RequestId"] == [answer.headers["x-amzn-requestid"]]
    (error,) = said["Error"]
    assert list(error) == ["Type", "Code", "Message", "Detail"]
    return {name: values[0] for name, values in error.items()}
