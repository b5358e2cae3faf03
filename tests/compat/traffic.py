"""boto3 clients in threads that go on whatever happens to the server, and what it has promised them.

What a client is about to try is noted before it tries, and what was acknowledged after the answer: so whatever the
moment of a crash, "acknowledged" is never too much and "tried" never too little.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

import penstock
from tests.compat.server import Server, until
from tests.kill.killer import EVERYTHING, PromiseBroken, Promises

QUEUE = "traffic"
LINE = "traffic.fifo"
GROUPS = 3
VISIBILITY_S = 600
"""Nothing is delivered twice while the test runs, unless the server has forgotten what it promised."""


class Traffic:
    """Senders and receivers on one standard queue, and a sender on a FIFO queue who repeats what was not answered."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._failures: list[BaseException] = []
        self._number = 0
        self._line_number = 0
        self._line_acknowledged: list[int] = []
        self._done_order: dict[int, int] = {}
        self.promises = Promises()
        self.counts: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        sqs = self._server.client()
        attributes = {"VisibilityTimeout": str(VISIBILITY_S)}
        sqs.create_queue(QueueName=QUEUE, Attributes=attributes)
        sqs.create_queue(QueueName=LINE, Attributes={**attributes, "FifoQueue": "true"})
        work = [self._send, self._send, self._receive, self._receive, self._send_in_line]
        clients = [self._server.client(connect_timeout=2, read_timeout=20) for _ in work]
        self._threads = [
            threading.Thread(target=self._repeat, args=(each, client, random.Random(self._rng.random())), daemon=True)
            for each, client in zip(work, clients, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def run_for(self, seconds: float) -> None:
        """Let it flow: until something was acknowledged, then for so long."""
        before = self.counts["answered"]
        until(lambda: self.counts["answered"] > before or self._failures)
        time.sleep(seconds)

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)
        self._raise_failures()

    def _raise_failures(self) -> None:
        if self._failures:
            raise self._failures[0]

    def _repeat(self, work: Callable[[Any, random.Random], None], sqs: Any, rng: random.Random) -> None:
        try:
            while not self._is_over.is_set():
                try:
                    work(sqs, rng)
                except (BotoCoreError, ClientError) as error:
                    self._note_error(error)
                    self._is_over.wait(0.02)
                else:
                    self.counts["answered"] += 1
        except BaseException as failure:
            self._failures.append(failure)

    def _note_error(self, error: Exception) -> None:
        """Dropped and refused connections are what a dead server gives; an error of ours would be a fault."""
        if isinstance(error, ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] != 503:
            raise error
        self.counts["unanswered"] += 1

    # -- the standard queue --

    def _send(self, sqs: Any, rng: random.Random) -> None:
        size = rng.choice([1, 1, 3, 10])
        with self._lock:
            numbers = range(self._number + 1, self._number + 1 + size)
            self._number += size
            self.promises.tried.update(numbers)
        url = self._server.queue_url(QUEUE)
        if size == 1:
            sqs.send_message(QueueUrl=url, MessageBody=str(numbers[0]))
        else:
            entries = [{"Id": str(number), "MessageBody": str(number)} for number in numbers]
            _all_well(sqs.send_message_batch(QueueUrl=url, Entries=entries))
        with self._lock:
            self.promises.sent.update(numbers)

    def _receive(self, sqs: Any, rng: random.Random) -> None:
        url = self._server.queue_url(QUEUE)
        with self._lock:
            done_before = len(self._done_order)
        messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=rng.choice([1, 10]), WaitTimeSeconds=1)
        handles = {int(message["Body"]): message["ReceiptHandle"] for message in messages.get("Messages", [])}
        with self._lock:
            back = [number for number in handles if self._done_order.get(number, done_before) < done_before]
        if back:
            raise PromiseBroken(f"deleted, and received again: {back}")
        chosen = [number for number in handles if rng.random() < 0.8]
        if chosen:
            self._delete(sqs, url, {number: handles[number] for number in chosen})

    def _delete(self, sqs: Any, url: str, handles: dict[int, str]) -> None:
        with self._lock:
            self.promises.maybe_done.update(handles)
        if len(handles) == 1:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=next(iter(handles.values())))
        else:
            entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in handles.items()]
            _all_well(sqs.delete_message_batch(QueueUrl=url, Entries=entries))
        with self._lock:
            for number in handles:
                self._done_order[number] = len(self._done_order)
            self.promises.done.update(handles)

    # -- the FIFO queue --

    def _send_in_line(self, sqs: Any, _rng: random.Random) -> None:
        """The same numbers with the same deduplication ids until they are acknowledged."""
        numbers = range(self._line_number, self._line_number + 5)
        entries = [
            {
                "Id": str(number),
                "MessageBody": str(number),
                "MessageGroupId": str(number % GROUPS),
                "MessageDeduplicationId": str(number),
            }
            for number in numbers
        ]
        _all_well(sqs.send_message_batch(QueueUrl=self._server.queue_url(LINE), Entries=entries))
        self._line_acknowledged.extend(numbers)
        self._line_number += len(numbers)

    # -- the books --

    def check(self) -> None:
        """Compare the directory of a server that is down with what was promised."""
        self._raise_failures()
        acknowledged = list(self._line_acknowledged)
        with penstock.open(self._server.data) as opened, self._lock:
            waiting = [int(bytes(message.body)) for message in opened.queue(QUEUE).browse(limit=EVERYTHING)]
            line = [int(bytes(message.body)) for message in opened.queue(LINE).browse(limit=EVERYTHING)]
            _demand(len(waiting) == len(set(waiting)), "a message is there twice")
            self.promises.check(set(waiting), [])
        _demand(line[: len(acknowledged)] == acknowledged, "the line is not what was acknowledged, in order and once")
        _demand(line == list(range(len(line))), "the line has gaps or repetitions")
        self.counts |= {"sent": len(self.promises.sent), "deleted": len(self.promises.done), "in line": len(line)}


def _all_well(answer: Any) -> None:
    _demand("Failed" not in answer, f"entries failed: {answer.get('Failed')}")


def _demand(condition: object, message: str) -> None:
    if not condition:
        raise PromiseBroken(message)
