"""Requests as bytes on sockets, for what no client library does."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

from tests.compat.server import PATIENCE_S, Server


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)


def post(headers: dict[str, str], body: bytes, path: str = "/") -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


def json_request(action: str, parameters: Any) -> bytes:
    body = parameters if isinstance(parameters, bytes) else json.dumps(parameters).encode()
    headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
    return post(headers, body)


def poll(server: Server, queue: str, wait_s: int = 20) -> socket.socket:
    """A long poll for one message, on a socket of its own."""
    connection = connect(server)
    connection.sendall(json_request("ReceiveMessage", {"QueueUrl": server.queue_url(queue), "WaitTimeSeconds": wait_s}))
    return connection


def response(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of the next response."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, answer.read()


def bodies(answer: tuple[int, bytes]) -> list[str]:
    """The messages' bodies in the answer to a receive."""
    status, body = answer
    assert status == 200, body
    return [message["Body"] for message in json.loads(body).get("Messages", [])]
