"""The same bytes to nsqd and to Penstock, thousands of damaged conversations: both answer the same.

What nsqd and Penstock say differently on purpose (docs/nsq.md) is made alike before the comparison.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import struct
from pathlib import Path

from tests.protocols.nsq.clients.mutations import Mutator
from tests.protocols.nsq.clients.servers import Broker, Nsqd, Penstock, running
from tests.protocols.nsq.clients.wire import MESSAGE, PATIENCE_S

CONVERSATIONS = int(os.environ.get("NSQ_CONVERSATIONS", "3000"))
_CUT_OFF = re.compile(rb"E_BAD_(BODY|MESSAGE) .*failed to read.*", re.DOTALL)
"""nsqd's words about a command whose end never came; Penstock closes without them."""
_MPUB = re.compile(rb"E_BAD_(BODY|MESSAGE) MPUB .*", re.DOTALL)
"""A wrong MPUB is wrong for both; which of its faults is named depends on where one looks first."""


_REFUSED = (b"E_INVALID", b"E_BAD_TOPIC", b"E_BAD_CHANNEL")
"""A second SUB with a bad name is refused for either reason."""
_MAGIC_BYTES = 4


class Conversations(Mutator):
    """Damaged conversations, to be sent to whom one likes."""

    def next(self) -> bytes:
        return self._damaged()


def answers(server: Broker, sent: bytes) -> list[bytes]:
    """The responses and errors to it, in order; messages are left out."""
    with socket.create_connection(server.address, PATIENCE_S) as connection:
        received = b""
        with contextlib.suppress(OSError):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                received += data
    return [alike(frame) for frame in frames(received)]


def frames(received: bytes) -> list[bytes]:
    found, at = [], 0
    while at + 8 <= len(received):
        size, kind = struct.unpack_from(">ii", received, at)
        if kind != MESSAGE:
            found.append(received[at + 8 : at + 4 + size])
        at += 4 + size
    return found


def alike(frame: bytes) -> bytes:
    """Errors by their code alone: what they say is compared, word for word, in `clients/test_errors.py`."""
    if frame.startswith(b"{"):
        return b"an agreement"
    if _MPUB.fullmatch(frame):
        return b"E_BAD MPUB"
    if _CUT_OFF.fullmatch(frame):
        return b"cut off"
    code = frame.split(b" ")[0] if frame.startswith(b"E_") else frame
    return b"refused" if code in _REFUSED else code


def is_same(ours: list[bytes], theirs: list[bytes]) -> bool:
    """Penstock refuses an MPUB that does not add up, where nsqd reads on: from there on they cannot be compared.

    And it judges an MPUB when it is whole, which those that are cut off never are.
    """
    ours, theirs = ([frame for frame in each if frame != b"cut off"] for each in (ours, theirs))
    if ours[-1:] == [b"E_BAD MPUB"]:
        return theirs[: len(ours) - 1] == ours[:-1]
    return ours == theirs or [*ours, b"E_BAD MPUB"] == theirs


def without_last_refusal(answers: list[bytes]) -> list[bytes]:
    """After SUB, AUTH and IDENTIFY are refused, by nsqd before it looks at their bodies."""
    return answers[:-1] if answers[-1:] in ([b"refused"], [b"E_BAD_BODY"]) else answers


def test_nsqd_and_penstock_answer_the_same(tmp_path: Path) -> None:
    seed = int(os.environ.get("NSQ_SEED", str(random.randrange(1 << 30))))
    different = []
    with running(Nsqd(tmp_path / "nsqd")) as nsqd, running(Penstock(tmp_path / "penstock")) as penstock:
        conversations = Conversations(penstock, [f"topic-{number}" for number in range(5)], seed)
        for _ in range(CONVERSATIONS):
            sent = conversations.next()
            ours, theirs = answers(penstock, sent), answers(nsqd, sent)
            if b"AUTH\n" in sent or b"IDENTIFY\n" in sent[_MAGIC_BYTES + 1 :]:
                ours, theirs = without_last_refusal(ours), without_last_refusal(theirs)
            if len(sent) >= _MAGIC_BYTES and not is_same(ours, theirs):
                different.append((sent, ours, theirs))
    lines = [f"{sent!r}\n  Penstock {ours!r}\n  nsqd     {theirs!r}" for sent, ours, theirs in different[:10]]
    assert not different, f"seed {seed}, {len(different)} differ:\n" + "\n".join(lines)
