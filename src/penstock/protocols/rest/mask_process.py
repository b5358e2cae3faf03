r"""The process that looks for masks in texts.

A pattern can take very long on a text that somebody made for it: `\S+@` takes minutes for a mebibyte of one letter. A
match cannot be interrupted, and keeps all threads of its process waiting. So it happens in a process of its own, which
the system ends when one text takes more than `TEXT_S` of its time. `masks` starts it, and knows at which text it was.

Frames with a length of four bytes, big-endian, in MessagePack: patterns, then lists of texts. For each text there is an
answer: the text with what matched hidden, and whether anything did. It ends when its input does.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Sequence
from typing import BinaryIO

import msgspec

MASKED = "•••"
TEXT_S = 0.25
_LENGTH_BYTES = 4
_ESCAPE = re.compile(r"\\(?:u(?![dD][89a-fA-F])([0-9a-fA-F]{4})|/)")
"""A character as JSON may write it."""


def masked(patterns: Sequence[re.Pattern[str]], text: str) -> tuple[str, bool]:
    r"""A text with what matches hidden, and whether anything did: also as JSON's escapes (`\u0065`).

    >>> masked([re.compile("[0-9]{16}")], "card 4111111111111111, 2 pieces")
    ('card •••, 2 pieces', True)
    >>> masked([re.compile("secret")], r'{"k": "s\u0065cret"}')
    ('{"k": "•••"}', True)
    """
    count = 0
    if "\\" in text:
        plain = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else "/", text)
        if any(pattern.search(plain) for pattern in patterns):
            text = plain
    for pattern in patterns:
        text, found = pattern.subn(MASKED, text)
        count += found
    return text, bool(count)


def put(file: BinaryIO, value: object) -> None:
    """Write a frame."""
    data = msgspec.msgpack.encode(value)
    file.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    file.flush()


def take(file: BinaryIO) -> bytes:
    """What is in the next frame; `EOFError` at the end."""
    length = file.read(_LENGTH_BYTES)
    data = file.read(int.from_bytes(length, "big"))
    if len(length) < _LENGTH_BYTES or len(data) < int.from_bytes(length, "big"):
        raise EOFError
    return data


def main() -> None:
    """Answer until there is no more input."""
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)  # ends the process, whatever Python is at
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGVTALRM})
    asked, told = sys.stdin.buffer, sys.stdout.buffer
    try:
        patterns = [re.compile(each) for each in msgspec.msgpack.decode(take(asked), type=list[str])]
        while True:
            for text in msgspec.msgpack.decode(take(asked), type=list[str]):
                signal.setitimer(signal.ITIMER_VIRTUAL, TEXT_S)
                answer = masked(patterns, text)
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                put(told, answer)
    except (EOFError, BrokenPipeError):
        return


if __name__ == "__main__":
    main()
