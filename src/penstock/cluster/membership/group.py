"""Who is alive: the members of the group of nodes, as the group's coordinator says it.

The coordinator alone is asked, with librdkafka's `describe_consumer_groups`: other brokers may stand still. That call
can end the whole process when the broker that is asked goes away meanwhile (confluentinc/librdkafka issue 4605, seen
with 2.16: an assertion). So a process of its own makes it (`main`, below): if that ends, another one is started,
and the node goes on.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from penstock.store.journal.kafka_options import KafkaOptions

OVERDUE_S = 30.0
"""A process that has not answered for so long does not answer at all. It takes a while to start on a busy machine."""
_CHUNK_BYTES = 65_536


class GroupSilent(Exception):
    """Nobody says who is in the group."""


def nodes_group(options: KafkaOptions) -> str:
    """The consumer group that says who is alive."""
    return f"{options.prefix}.nodes"


class GroupAsker:
    """Asks the coordinator who is in the group. `ask`, then look for the answer: nothing here waits by itself."""

    def __init__(self, options: KafkaOptions) -> None:
        self._opening = Opening(options.client_properties(), nodes_group(options))
        self._process: subprocess.Popen[bytes] | None = None
        self._asked_s = 0.0
        self._received = b""
        self.is_asked = False
        """Whether a question has no answer yet."""

    def ask(self, timeout_s: float) -> None:
        """Ask, if the last question is answered. The coordinator may take so long. `GroupSilent` if nobody can ask."""
        if self.is_asked:
            return
        lines: list[Opening | Question] = [Question(timeout_s)]
        if self._process is None:
            self._process = self._started()
            lines.insert(0, self._opening)
        self.is_asked, self._asked_s = True, time.monotonic()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: `answer` will say so
            self._process.stdin.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
            self._process.stdin.flush()

    @staticmethod
    def _started() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "penstock.cluster.membership.group"]
        try:  # in a session of its own: Ctrl-C is for the node
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            raise GroupSilent(f"nobody can be started who asks for it: {error}") from error

    def answer(self, wait_s: float = 0.0) -> set[str] | None:
        """The names of the nodes in the group, if that was answered within this time. `GroupSilent` if nobody can say.

        No names if there is no such group.
        """
        deadline_s = time.monotonic() + wait_s
        while self.is_asked and b"\n" not in self._received:
            if not self._receive(max(0.0, deadline_s - time.monotonic())):
                if time.monotonic() - self._asked_s < OVERDUE_S:
                    return None
                self.close()
                raise GroupSilent(f"whoever asks for it has not answered in {OVERDUE_S:g} s")
        if not self.is_asked:
            return None
        line, _, self._received = self._received.partition(b"\n")
        self.is_asked = False
        answer = msgspec.json.decode(line, type=Answer)
        if answer.error is not None:
            raise GroupSilent(answer.error)
        return set(answer.members)

    def close(self) -> None:
        """Ask no more. The next question starts another process."""
        process, self._process = self._process, None
        self.is_asked, self._received = False, b""
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _receive(self, wait_s: float) -> bool:
        """Take what has come from the process. Whether anything has."""
        assert self._process is not None and self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        watch = select.poll()
        watch.register(descriptor, select.POLLIN)
        if not watch.poll(wait_s * 1_000):
            return False
        received = os.read(descriptor, _CHUNK_BYTES)
        if not received:
            self.close()
            raise GroupSilent("whoever asks for it has ended, and is started again")
        self._received += received
        return True


# -- the process that asks ---------------------------------------------------------------------------------------------

# A question a line, an answer a line. It ends when nobody can ask any more. The client is made again after a failure:
# one that knows a coordinator goes on asking it for minutes, even if the group has got another one.

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
