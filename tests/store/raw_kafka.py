"""Kafka's protocol by hand, as far as it takes to write a transaction that nobody ends.

No client library does that. The broker has to be told to believe who says that a transaction has begun
(`transaction.partition.verification.enable = false`).
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

_PRODUCE, _INIT_PRODUCER = 0, 22
_RETRIED = frozenset({14, 15, 16, 51})
"""The coordinator loads, is not there, is elsewhere, is busy with the last transaction."""


class RawProducer:
    """Has a transactional id, and whoever had it before is fenced."""

    def __init__(self, address: str, transactional_id: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 30)
        self._id = _string(transactional_id)
        self._producer, self._epoch = self._init()

    def write(self, topic: str, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """The first messages of a transaction, to partition 0."""
        batch = _batch(self._producer, self._epoch, messages)
        partition = struct.pack(">ii", 1, 0) + struct.pack(">i", len(batch)) + batch
        body = self._id + struct.pack(">hi", -1, 30_000) + struct.pack(">i", 1) + _string(topic) + partition
        reply = self._ask(_PRODUCE, 3, body)
        (error,) = struct.unpack_from(">h", reply, 4 + 2 + len(topic) + 4 + 4)
        assert error == 0, f"Kafka refuses the messages: {error}"

    def close(self) -> None:
        self._socket.close()

    def _init(self) -> tuple[int, int]:
        deadline_s = time.monotonic() + 60
        while True:
            _, error, producer, epoch = struct.unpack(">ihqh", self._ask(_INIT_PRODUCER, 0, self._id + b"\0\0\xea\x60"))
            if error == 0:
                return producer, epoch
            assert error in _RETRIED and time.monotonic() < deadline_s, f"Kafka gives no producer id: {error}"
            time.sleep(0.1)

    def _ask(self, what: int, version: int, body: bytes) -> bytes:
        request = struct.pack(">hhih", what, version, 1, -1) + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)[4:]

    def _receive(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            piece = self._socket.recv(size - len(found))
            assert piece, "Kafka has closed the connection"
            found += piece
        return found


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _varint(number: int) -> bytes:
    number, found = (number << 1) ^ (number >> 63), b""
    while number >= 0x80:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def _batch(producer: int, epoch: int, messages: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A transactional batch of records, format 2."""
    now_ms, last = int(time.time() * 1_000), len(messages) - 1
    records = b""
    for index, (key, value) in enumerate(messages):
        record = b"\0\0" + _varint(index) + _varint(len(key)) + key + _varint(len(value)) + value + b"\0"
        records += _varint(len(record)) + record
    head = struct.pack(">hiqqqhii", 0x10, last, now_ms, now_ms, producer, epoch, 0, len(messages))
    checked = head + records
    return struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, _crc32c(checked)) + checked


def _crc32c(data: bytes) -> int:
    found = 0xFFFFFFFF
    for byte in data:
        found ^= byte
        for _ in range(8):
            found = found >> 1 ^ (0x82F63B78 if found & 1 else 0)
    return found ^ 0xFFFFFFFF
