"""The proxy does what its faults say: otherwise the runs with faults prove nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.faults.proxy import DIRECTIONS, ENDINGS, Cut, Direction, Ending, Proxy

PATIENCE_SECONDS = 60


class Echo:
    """A server that sends back what it gets, and knows how its connections ended."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.ends: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while piece := connection.recv(65_536):
                connection.sendall(piece)
            self.ends.append("end")
            connection.sendall(b"goodbye")
        except OSError:
            self.ends.append("reset")
        connection.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.listener.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    proxy = Proxy(echo.port)
    yield proxy
    proxy.close()


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_SECONDS) as client:
        assert said(client, b"hello") == b"hello"
        yield client


def said(client: socket.socket, words: bytes) -> bytes:
    client.sendall(words)
    answer = b""
    while len(answer) < len(words) and (piece := client.recv(65_536)):
        answer += piece
    return answer


def test_what_goes_in_comes_back_whole(client: socket.socket) -> None:
    words = bytes(range(256)) * 4_000
    threading.Thread(target=client.sendall, args=(words,), daemon=True).start()
    answer = b""
    while len(answer) < len(words):
        answer += client.recv(65_536)
    assert answer == words


def test_a_cut_is_an_end(proxy: Proxy, client: socket.socket) -> None:
    proxy.cut()
    assert client.recv(10) == b""


def test_a_reset_is_a_reset(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(10)
    wait_for(lambda: echo.ends == ["reset"])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("after", [0, 1, 4, 5])
def test_a_cut_lets_exactly_so_many_bytes_through_one_way_of_one_connection(
    proxy: Proxy, client: socket.socket, direction: Direction, ending: Ending, after: int
) -> None:
    cut = Cut(direction, after, ending)
    proxy.cut_one(cut)
    client.sendall(b"01234")
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(100):
            heard += piece
    wait_for(lambda: cut.is_done)
    assert cut.passed == after
    assert b"01234goodbye".startswith(heard) or heard == b"01234"[:after] + b"goodbye"
    if direction == "answers" and ending != "reset":
        assert heard == b"01234"[:after]
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_SECONDS) as another:
        assert said(another, b"01234") == b"01234"


def test_truncation_lets_so_many_bytes_through(proxy: Proxy, client: socket.socket) -> None:
    proxy.truncate(5)
    with pytest.raises(ConnectionResetError):
        answer = said(client, b"0123456789")
        assert answer[:5] == b"01234"[: len(answer)]
        client.recv(10)


def test_half_a_close_towards_the_server_leaves_the_other_way_open(
    proxy: Proxy, client: socket.socket, echo: Echo
) -> None:
    proxy.half_close(to_server=True)
    assert client.recv(10) == b"goodbye"
    assert echo.ends == ["end"]


def test_half_a_close_towards_the_client_is_an_end_for_it_alone(
    proxy: Proxy, client: socket.socket, echo: Echo
) -> None:
    proxy.half_close(to_server=False)
    assert client.recv(10) == b""
    assert echo.ends == []


def test_a_stalled_connection_goes_on_with_what_was_held_back(proxy: Proxy, client: socket.socket) -> None:
    proxy.stall(True)
    client.sendall(b"patience")
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(10)
    client.settimeout(PATIENCE_SECONDS)
    proxy.stall(False)
    assert client.recv(10) == b"patience"


def test_a_slow_network_takes_its_time_both_ways_for_old_and_new_connections(
    proxy: Proxy, client: socket.socket
) -> None:
    proxy.slow(0.2)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_SECONDS) as newer:
        for connection in (client, newer):
            asked = time.monotonic()
            assert said(connection, b"slowly") == b"slowly"
            assert time.monotonic() - asked >= 0.4


def test_a_black_hole_says_nothing_to_old_and_new_connections_and_resets_them_in_the_end(
    proxy: Proxy, client: socket.socket
) -> None:
    proxy.black_hole(True)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_SECONDS) as late:
        for each in (client, late):
            each.sendall(b"anybody?")
            each.settimeout(0.2)
            with pytest.raises(TimeoutError):
                each.recv(10)
            each.settimeout(PATIENCE_SECONDS)
        proxy.black_hole(False)
        for each in (client, late):
            with pytest.raises(ConnectionResetError):
                each.recv(10)


def test_lost_answers_reach_nobody_while_the_server_hears_everything(
    proxy: Proxy, client: socket.socket, echo: Echo
) -> None:
    proxy.lose_answers()
    client.sendall(b"anybody?")
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(10)
    client.shutdown(socket.SHUT_WR)
    wait_for(lambda: echo.ends == ["end"])


def test_a_shut_door_resets_who_comes(proxy: Proxy, client: socket.socket) -> None:
    proxy.shut(True)
    with pytest.raises(ConnectionResetError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_SECONDS).recv(10)
    proxy.shut(False)
    assert said(client, b"still here") == b"still here"


def wait_for(claim: object) -> None:
    assert callable(claim)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.01)
