"""How far a message walks through the code: these figures may fall, and not rise.

To see the way itself: `python -m tools.walk --calls "SQS Send"`.
"""

from __future__ import annotations

import asyncio

import pytest

from penstock.server import shard
from tools.walk import walks

CALLS_MAX = {
    "SQS SendMessage": 86,
    "SQS ReceiveMessage": 88,
    "SQS DeleteMessage": 84,
    "NSQ PUB to FIN": 206,
    "websocket send to ack": 312,
}
FILES_MAX = {
    "SQS SendMessage": 25,
    "SQS ReceiveMessage": 23,
    "SQS DeleteMessage": 24,
    "NSQ PUB to FIN": 31,
    "websocket send to ack": 42,
}


@pytest.mark.skipif(not str(shard.__file__).endswith(".py"), reason="calls of compiled code cannot be counted")
def test_no_message_walks_further_than_before() -> None:
    found = asyncio.run(walks())
    assert {title: len(walk.calls) for title, walk in found.items() if len(walk.calls) > CALLS_MAX[title]} == {}
    assert {title: walk.files for title, walk in found.items() if walk.files > FILES_MAX[title]} == {}
    assert min(len(walk.calls) for walk in found.values()) > 50, "nothing was counted"
