"""Penstock's HTTP front end with nothing behind it: every request gets the same small answer.

Run as a process: the argument is a file, to which the port is written when the server listens.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from penstock.process import seldom_look_for_garbage
from penstock.protocols.front_end import UNREAD
from penstock.protocols.http import Exchange, HttpServer

_HEADERS = (("content-type", "application/x-amz-json-1.0"),)
_BODY = b'{"MD5OfMessageBody":"5d41402abc4b2a76b9719d911017c592","MessageId":"01234567-89ab-4cde-8f01-23456789abcd"}'


def handle(exchange: Exchange) -> None:
    """Answer, whatever was asked."""
    exchange.respond(200, _HEADERS, _BODY)


async def serve(port_file: Path) -> None:
    """Serve until killed."""
    port = await HttpServer(handle, unread=UNREAD).start("127.0.0.1", 0)
    seldom_look_for_garbage()
    partial = port_file.with_suffix(".partial")
    partial.write_text(str(port))
    partial.rename(port_file)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(sys.argv[1])))
