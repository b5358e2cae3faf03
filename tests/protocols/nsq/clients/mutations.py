"""A byte mutator: a client's whole conversation, damaged at random. The server may say anything but nothing."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections import Counter

from tests.protocols.nsq.clients.servers import Broker
from tests.protocols.nsq.clients.wire import PATIENCE_S, dpub, identify, mpub, pub, sized, sub

_TOKENS = [b"\n", b"\r\n", b" ", b"\0", b"FIN ", b"REQ ", b"SUB ", b"PUB ", b"MPUB ", b"RDY 2500\n", b"CLS\n", b"NOP\n"]
_TOKENS += [
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\0\0\0\0",
    b"\0\0\0\1",
    b"-1",
    b"99999999999999999999",
    b"#ephemeral",
]
_TOKENS += [b"{", b"}", b"null", b'"', b"  V2", b"0123456789abcdef", b"IDENTIFY\n", b"TOUCH ", b"AUTH\n"]


class Mutator:
    """Damaged conversations, each on a connection of its own."""

    def __init__(self, server: Broker, topics: list[str], seed: int) -> None:
        self._server = server
        self._topics = topics
        self._rng = random.Random(seed)
        self.ends: Counter[str] = Counter()

    def run(self, times: int) -> None:
        for _ in range(times):
            self.ends.update(errors_in(self._answer(self._damaged())))

    def _answer(self, sent: bytes) -> bytes:
        """What the server says until it closes, or has nothing more to say."""
        with socket.create_connection(self._server.address, PATIENCE_S) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                return b"".join(iter(lambda: connection.recv(1 << 16), b""))
        return b""

    def _damaged(self) -> bytes:
        data = b"".join(self._conversation())
        for _ in range(self._rng.choice([0, 1, 1, 2, 4])):
            data = self._damage(data)
        return data

    def _conversation(self) -> list[bytes]:
        rng = self._rng
        topic = rng.choice(self._topics)
        start = [b"  V2"]
        if rng.random() < 0.5:
            start.append(identify(feature_negotiation=rng.random() < 0.5, msg_timeout=1000, client_id="x"))
        commands = [
            pub(topic, rng.randbytes(rng.choice([1, 10, 300]))),
            mpub(topic, [rng.randbytes(5) for _ in range(rng.randrange(1, 20))]),
            dpub(topic, rng.choice([0, 10]), b"later"),
            b"NOP\n",
            sub(topic, rng.choice(["ch", "other", "ch#ephemeral"])),
            b"RDY %d\n" % rng.choice([0, 1, 100]),
            b"FIN %016x\n" % rng.getrandbits(64) * rng.choice([1, 3, 100]),
            b"REQ %016x %d\n" % (rng.getrandbits(64), rng.choice([0, 10])),
            b"TOUCH %016x\n" % rng.getrandbits(64) * rng.choice([1, 5]),
            b"AUTH\n" + sized(b"secret"),
            b"CLS\n",
        ]
        return start + rng.choices(commands, k=rng.randrange(1, 8))

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
                return data[:at]


def errors_in(answered: bytes) -> list[str]:
    """The codes of the error frames; every byte must belong to a whole frame."""
    codes, at = [], 0
    while at < len(answered):
        assert len(answered) >= at + 8, f"not a frame: {answered[at:]!r}"
        size, kind = struct.unpack_from(">ii", answered, at)
        assert kind in (0, 1, 2), answered[at : at + 50]
        if kind == 1:
            codes.append(answered[at + 8 : at + 4 + size].split()[0].decode())
        at += 4 + size
    return codes or ["no error"]
