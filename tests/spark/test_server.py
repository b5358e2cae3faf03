"""The connector's own HTTP connection, to a server that breaks off in the middle of its answers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.spark.errors import ServerFailed
from penstock.spark.options import Where
from penstock.spark.server import Connection, reachable
from tests.ports import free_port

ANSWER = b'{"queues": ["orders"], "last": ""}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER)


@contextmanager
def breaking(answers: list[bytes]) -> Iterator[str]:
    """A server that gives one answer to each connection, and hangs up. The last one stays."""

    def serve() -> None:
        left = list(answers)
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # the listener is closed
                return
            with connection:
                asked = b""
                while b"\r\n\r\n" not in asked and (more := connection.recv(65_536)):
                    asked += more
                connection.sendall(left.pop(0) if len(left) > 1 else left[0])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("there", [0, 10, len(ANSWER) - 1])
def test_an_answer_that_breaks_off_is_asked_for_again(there: int) -> None:
    """A server that was killed between the head of an answer and its end, and is there again."""
    with (
        breaking([HEAD + ANSWER[:there], HEAD + ANSWER]) as url,
        contextlib.closing(Connection(Where(url=url))) as connection,
    ):
        assert connection.ask("GET", "/v1/bulk/queues") == {"queues": ["orders"], "last": ""}


@pytest.mark.parametrize("there", range(0, len(HEAD), 5))
def test_an_answer_that_breaks_off_in_its_head_is_asked_for_again(there: int) -> None:
    """Half a head is no head: nothing of what it says is believed, not even that there was no body."""
    with (
        breaking([HEAD[:there], HEAD + ANSWER]) as url,
        contextlib.closing(Connection(Where(url=url))) as connection,
    ):
        assert connection.ask("GET", "/v1/bulk/queues") == {"queues": ["orders"], "last": ""}


def test_answers_that_always_break_off_are_an_error_in_the_end() -> None:
    with (
        breaking([HEAD + ANSWER[:10]]) as url,
        contextlib.closing(Connection(Where(url=url, timeout_s=0.3))) as connection,
        pytest.raises(ServerFailed, match=r"cannot be reached: IncompleteRead\(10 bytes read, 24 more expected\)"),
    ):
        connection.ask("GET", "/v1/bulk/queues")


def test_when_the_first_of_several_servers_is_dead_the_next_one_is_asked() -> None:
    with breaking([HEAD + ANSWER]) as url:
        several = f"http://127.0.0.1:{free_port()},127.0.0.1:{free_port()},{url.removeprefix('http://')}"
        began_s = time.monotonic()
        with contextlib.closing(Connection(Where(url=several, timeout_s=0.3))) as connection:
            for _ in range(3):
                assert connection.ask("GET", "/v1/bulk/queues")["queues"] == ["orders"]
        assert time.monotonic() - began_s < 5, "no pauses before a server that was not asked yet"


def test_a_server_that_dies_is_left_for_the_next_one() -> None:
    with breaking([HEAD + ANSWER]) as other:
        with breaking([HEAD + ANSWER]) as one:
            connection = Connection(Where(url=f"{one},{other.removeprefix('http://')}", timeout_s=5))
            assert connection.ask("GET", "/v1/bulk/queues")["queues"] == ["orders"]
        assert connection.ask("GET", "/v1/bulk/queues")["queues"] == ["orders"]
        connection.close()


def test_a_write_goes_to_the_first_server_that_can_be_reached_and_to_no_other() -> None:
    dead = free_port()
    with breaking([HEAD + ANSWER]) as url:
        there = url.removeprefix("http://")
        found = reachable(Where(url=f"http://127.0.0.1:{dead},{there},127.0.0.1:1", token="t"))
        assert found == Where(url=f"penstock://{there}", token="t")
        assert reachable(Where(url=url)) == Where(url=url)
    assert reachable(Where(url=f"http://127.0.0.1:{dead},127.0.0.1:1")) == Where(url=f"penstock://127.0.0.1:{dead}")


def test_when_none_of_several_servers_answers_the_error_names_them_all() -> None:
    url = f"http://127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    with pytest.raises(ServerFailed, match=f"{url} cannot be reached: ConnectionRefusedError"):
        Connection(Where(url=url, timeout_s=0.3)).ask("GET", "/v1/bulk/queues")
