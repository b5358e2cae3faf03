"""The process that asks a group's coordinator who is in the group: a question a line, an answer a line.

It exists because the question can end the process that puts it (`group.py` says why). It ends when nobody can ask any
more. The client is made again after a failure: one that knows a coordinator goes on asking it for minutes, even if the
group has got another one.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

CONNECT_MS = 2_000
"""How long a broker may take to let us in, before another one is asked."""
SLACK_S = 5.0
_NO_GROUP = frozenset({KafkaError.GROUP_ID_NOT_FOUND})


class Opening(msgspec.Struct):
    """The first line: whom to ask for what. By a pipe, because there are secrets in it."""

    properties: dict[str, str | int | float | bool]
    group: str


class Question(msgspec.Struct):
    """Who is in the group? Kafka may take so long to say it."""

    timeout_s: float


class Answer(msgspec.Struct):
    """The client ids of the members, or why they are not known."""

    members: list[str] = []
    error: str | None = None


def main() -> None:
    """Answer until there are no more questions."""
    first = sys.stdin.buffer.readline()
    if not first:  # whoever wanted to ask has ended already
        return
    opening = msgspec.json.decode(first, type=Opening)
    opening.properties["log_level"] = 0  # what goes wrong is in the answers
    admin: AdminClient | None = None
    for line in sys.stdin.buffer:
        question = msgspec.json.decode(line, type=Question)
        try:
            admin = admin or AdminClient(quick(opening.properties, question.timeout_s))
            answer = Answer(members(admin, opening.group, question.timeout_s))
        except (KafkaException, TimeoutError, TypeError, ValueError) as error:
            admin, answer = None, Answer(error=_said(error))
        try:
            os.write(sys.stdout.fileno(), msgspec.json.encode(answer) + b"\n")
        except BrokenPipeError:  # whoever has asked was killed: its log is no place for a traceback
            return


def members(admin: AdminClient, group: str, timeout_s: float) -> list[str]:
    """The client ids of a group's members."""
    asked: dict[str, Any] = admin.describe_consumer_groups([group], request_timeout=timeout_s)
    try:
        found = asked[group].result(timeout_s + SLACK_S)
    except KafkaException as error:
        if error.args[0].code() in _NO_GROUP:
            return []
        raise
    return [member.client_id for member in found.members]


def quick(properties: dict[str, str | int | float | bool], timeout_s: float) -> dict[str, Any]:
    """Properties of a client that soon turns to another broker, unless they say it themselves.

    >>> quick({"socket.timeout.ms": 9_000}, 4.0)["socket.timeout.ms"], quick({}, 4.0)["socket.timeout.ms"]
    (9000, 2000)
    """
    patience = {"socket.timeout.ms": round(timeout_s * 500), "socket.connection.setup.timeout.ms": CONNECT_MS}
    return {**patience, **properties}


def _said(error: Exception) -> str:
    if isinstance(error, KafkaException):
        return f"{error.args[0].str()} ({error.args[0].name()})"
    return str(error) or "Kafka does not answer"


if __name__ == "__main__":
    main()
