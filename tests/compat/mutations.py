"""A byte mutator: valid requests, damaged at random, each on a connection of its own.

Whatever the bytes were, the client stops sending after them and reads to the end: it must find an answer.
"""

from __future__ import annotations

import random
import re
import socket
from collections import Counter
from urllib.parse import urlencode

from tests.compat import raw
from tests.compat.examples import Parameters, as_form, as_json
from tests.compat.server import Server

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_TOKENS = [b"\r\n", b"\n", b"\0", b":", b" ", b"{", b"}", b"[", b'"', b"\\u", b"\\ud800", b"%", b"%00", b"%zz", b"&"]
_TOKENS += [b"=", b".", b"+", b"-1", b"1e999", b"99999999999999999999", b"null", b"\xff\xfe", b"\xed\xa0\x80", b"<!--"]
_TOKENS += [b"Transfer-Encoding: chunked\r\n", b"Content-Length: 0\r\n", b"Expect: 100-continue\r\n", b"HTTP/1.0"]
_TOKENS += [b"Connection: close\r\n", b"Host: \xff\r\n", b"GET / HTTP/1.1\r\n\r\n"]


class Mutator:
    """Asks a server with damaged requests, and notes what it answers."""

    def __init__(self, server: Server, examples: dict[str, list[Parameters]], seed: int) -> None:
        self._server = server
        self._rng = random.Random(seed)
        self._requests = valid_requests(examples)
        self._harmless = [request for request in self._requests if b"DeleteQueue" not in request]
        self.statuses: Counter[int] = Counter()

    def run(self, times: int) -> None:
        for _ in range(times):
            self.ask(self._damaged())

    def ask(self, sent: bytes) -> None:
        answered = self._answer(sent)
        statuses = [int(status) for status in _STATUS.findall(answered)]
        if sent.strip(b"\r\n"):
            assert statuses, f"no answer to {sent!r}: {answered!r}"
        assert all(status < 500 for status in statuses), f"{answered!r} to {sent!r}"
        self.statuses.update(statuses)

    def _answer(self, sent: bytes) -> bytes:
        with raw.connect(self._server) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))

    def _damaged(self) -> bytes:
        """One request or two; run together, a deletion would find the name of a queue that is needed."""
        rng = self._rng
        data = rng.choice(self._requests) if rng.random() < 0.75 else b"".join(rng.choices(self._harmless, k=2))
        for _ in range(self._rng.choice([1, 1, 1, 2, 4])):
            data = self._damage(data)
        return _with_length(data) if self._rng.random() < 0.6 else data

    def _damage(self, data: bytes) -> bytes:
        rng = self._rng
        at = rng.randrange(len(data) + 1)
        until = min(len(data), at + rng.choice([1, 1, 2, 8, 64]))
        match rng.randrange(6):
            case 0:
                return data[:at] + rng.randbytes(until - at) + data[until:]
            case 1:
                return data[:at] + data[until:]
            case 2:
                return data[:at] + data[at:until] * rng.randrange(2, 9) + data[until:]
            case 3:
                return data[:at] + rng.choice(_TOKENS) + data[until:]
            case 4:
                return data[:at] + rng.choice(_TOKENS) + data[at:]
            case _:
                return data[:at] if rng.random() < 0.1 else data[:at] + data[at:until].swapcase() + data[until:]


def _with_length(data: bytes) -> bytes:
    """The damaged body as a whole, so that it reaches the parser."""
    head, separator, body = data.partition(b"\r\n\r\n")
    return re.sub(rb"Content-Length: \d+", b"Content-Length: %d" % len(body), head) + separator + body


def valid_requests(examples: dict[str, list[Parameters]]) -> list[bytes]:
    """Every example by both protocols. None says how long it waits, so that no damage makes it wait."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    requests = []
    for action, parameter_sets in examples.items():
        for each in parameter_sets:
            parameters = {name: value for name, value in each.items() if name != "WaitTimeSeconds"}
            requests.append(raw.json_request(action, as_json(parameters)))
            fields = {"Action": action, "Version": "2012-11-05", **as_form(action, parameters)}
            requests.append(raw.post(form, urlencode(fields).encode()))
            requests.append(f"GET /?{urlencode(fields)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return requests
