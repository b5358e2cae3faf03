"""Rates and depths over time: what is kept, for how long, and what a restart or damage does to it."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core.commands import Ack, CreateQueue, Receive, Send
from penstock.server.clock import SystemClock
from penstock.server.events import LatencySampler
from penstock.server.history import COLUMNS, RINGS, History, HistoryFile, size_of
from penstock.server.settings import HistorySettings
from penstock.server.shard import Shard
from penstock.server.tasks import AsyncShard
from penstock.store.memory import MemoryStore

GOLDEN = Path(__file__).parents[1] / "upgrade" / "golden" / "history-1.gz"
"""Three series: "" with 1, "orders" with 2 and "billing" with 3 in every column, at 1,700,000,000 s, in every ring."""
AT_S = 1_700_000_000


def _values(number: float) -> Any:
    return np.full(len(COLUMNS), number, np.float32)


def _last(file: HistoryFile, name: str, ring: int = 0, until_s: int = AT_S) -> float:
    return float(file.read(name, RINGS[ring], until_s)[1][-1, 0])


def _written(path: Path) -> None:
    file = HistoryFile(path, 3)
    file.name_series(1, "orders")
    file.name_series(2, "billing")
    for ring in range(len(RINGS)):
        file.write(ring, AT_S, {0: _values(1), 1: _values(2), 2: _values(3)})
    file.close()


def test_the_first_format_is_still_read_and_still_written(tmp_path: Path) -> None:
    (tmp_path / "golden").write_bytes(gzip.decompress(GOLDEN.read_bytes()))
    file = HistoryFile(tmp_path / "golden", 3)
    for ring in range(len(RINGS)):
        assert [_last(file, name, ring) for name in ("", "orders", "billing")] == [1, 2, 3]
    file.close()
    _written(tmp_path / "new")
    assert (tmp_path / "new").read_bytes() == (tmp_path / "golden").read_bytes()


def test_the_file_stays_within_its_size_and_older_rounds_do_not_show(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "history", 2)
    for turn in range(3 * RINGS[0].slots):
        file.write(0, AT_S + 10 * turn, {0: _values(turn)})
    until_s = AT_S + 10 * (3 * RINGS[0].slots - 1)
    times, values = file.read("", RINGS[0], until_s)
    assert values[:, 0].tolist() == list(range(2 * RINGS[0].slots, 3 * RINGS[0].slots))
    assert times[-1] == until_s
    assert np.isnan(_last(file, "", until_s=until_s + 5_000))
    assert (tmp_path / "history").stat().st_size <= size_of(2)
    file.close()


def test_a_chart_of_one_queue_reads_nothing_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = HistoryFile(tmp_path / "history", 501)
    assert file.may_write()
    file.name_series(500, "orders")
    file.write(2, AT_S, {500: _values(4)})
    pread, sizes = os.pread, []

    def counted(descriptor: int, size: int, at: int) -> bytes:
        sizes.append(size)
        return pread(descriptor, size, at)

    monkeypatch.setattr(os, "pread", counted)
    _, values = file.read("orders", RINGS[2], AT_S)
    assert float(values[-1, 0]) == 4
    assert sum(sizes) < 200_000, "all rings of all series have 145 million bytes"
    file.close()


def test_a_point_with_a_wrong_checksum_counts_as_none(tmp_path: Path) -> None:
    _written(tmp_path / "history")
    data = bytearray((tmp_path / "history").read_bytes())
    at = data.index(np.float32(2).tobytes())
    data[at] ^= 1
    (tmp_path / "history").write_bytes(data)
    file = HistoryFile(tmp_path / "history", 3)
    assert np.isnan(_last(file, "orders")) and _last(file, "billing") == 3
    file.close()


@pytest.mark.parametrize("content", [b"", b"junk", b"PENSTOCK HISTORY" + bytes(5_000)])
def test_a_file_that_is_no_history_is_put_aside_and_begun_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "history").write_bytes(content)
    file = HistoryFile(tmp_path / "history", 2)
    file.write(0, AT_S, {0: _values(1)})
    assert _last(file, "") == 1
    file.close()
    assert (tmp_path / "history.old").exists() == bool(content)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_put_aside(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "history")
    file = HistoryFile(tmp_path / "history", 2)
    file.write(0, AT_S, {0: _values(1)})
    assert _last(file, "") == 1
    file.close()


def test_a_full_disk_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(OSError, match="No space"):
            HistoryFile(tmp_path / "history", 2)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_series_that_went_to_another_queue_shows_nothing_of_the_first(tmp_path: Path) -> None:
    _written(tmp_path / "history")
    file = HistoryFile(tmp_path / "history", 3)
    file.name_series(1, "shipping")
    assert np.isnan(_last(file, "shipping")) and np.isnan(_last(file, "orders"))
    file.close()


def test_one_process_of_several_writes_and_the_others_read(tmp_path: Path) -> None:
    writer, reader = HistoryFile(tmp_path / "history", 2), HistoryFile(tmp_path / "history", 2)
    assert writer.may_write() and not reader.may_write()
    writer.name_series(1, "orders")
    writer.write(0, AT_S, {1: _values(4)})
    assert _last(reader, "orders") == 4
    writer.close()
    assert reader.may_write(), "who is left goes on"
    reader.close()


# -- ticks over a real shard --


class Server:
    def __init__(self, data: Path, **settings: Any) -> None:
        self.shard = AsyncShard(Shard(MemoryStore, SystemClock(), lambda: bytes(range(64))))
        self.history = History(self.shard, HistorySettings(**settings), str(data))

    async def tick(self, now_s: float) -> None:
        await self.history.tick(now_s)

    def last(self, queue: str, now_s: float, seconds: int = 3_600) -> dict[str, float | None]:
        _, _, columns = self.history.read(queue, seconds, now_s)
        return {name: column[-1] for name, column in columns.items()}

    async def close(self) -> None:
        await self.history.stop()
        await self.shard.close()


def test_points_say_what_happened_and_survive_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        server, now_s = Server(tmp_path), time.time()
        await server.shard.call(CreateQueue(name="orders"))
        await server.tick(now_s)
        assert server.last("orders", now_s)["sent"] is None, "there is no rate before the second tick"
        began_s = server.history._before_s
        await server.shard.call(Send(queue="orders", bodies=[b"x"] * 100))
        await asyncio.sleep(0.3)
        delivery = await server.shard.call(Receive(queue="orders", limit=60, wait_ms=0))
        spans = delivery.spans()
        await asyncio.sleep(0.3)
        await server.shard.call(Ack(queue="orders", spans=spans))
        await server.tick(now_s + 10)
        seconds = server.history._before_s - began_s
        for name in ("orders", ""):
            seen = server.last(name, now_s + 10)
            assert seen["sent"] == pytest.approx(100 / seconds, rel=0.01)
            assert seen["acked"] == seen["delivered"] == pytest.approx(60 / seconds, rel=0.01)
            assert (seen["ready"], seen["leased"], seen["messages"]) == (40, 0, 100)
            assert seen["oldest"] == pytest.approx(10, abs=1)
            assert seen["receive_p50"] == pytest.approx(0.3, abs=0.15)
            assert seen["ack_p99"] == pytest.approx(0.6, abs=0.2)
        before = server.history.read("orders", 86_400, now_s + 10)
        await server.close()
        again = Server(tmp_path)
        assert again.history.read("orders", 86_400, now_s + 10) == before
        await again.close()

    asyncio.run(work())


def test_what_a_new_queue_got_before_its_first_point_counts(tmp_path: Path) -> None:
    async def work() -> None:
        server, now_s = Server(tmp_path), time.time()
        await server.shard.call(CreateQueue(name="before"))
        await server.shard.call(Send(queue="before", bodies=[b"x"] * 10))
        await server.tick(now_s)
        began_s = server.history._before_s
        await asyncio.sleep(0.05)
        await server.shard.call(Send(queue="by-hand", bodies=[b"x"] * 20))
        await server.tick(now_s + 10)
        seconds = server.history._before_s - began_s
        assert server.last("by-hand", now_s + 10)["sent"] == pytest.approx(20 / seconds, rel=0.01)
        assert server.last("before", now_s + 10)["sent"] == 0
        await server.close()

    asyncio.run(work())


def test_the_work_of_others_costs_the_history_no_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody searches: the loop is busy all the time, in turns of some milliseconds."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def noted(pause_s: float) -> None:
        if pause_s:
            slept.append(pause_s)
        await sleep(0)

    async def work() -> None:
        server = Server(tmp_path)
        for number in range(5):
            await server.shard.call(CreateQueue(name=f"q{number}"))
        monkeypatch.setattr("penstock.server.history.asyncio.sleep", noted)
        server.history.start()
        while len(slept) < 2:
            turn_s = time.thread_time() + 0.05
            while time.thread_time() < turn_s:
                pass
            await sleep(0)
        assert max(slept) < 20, "the first pause is that of a tick"
        await server.close()

    asyncio.run(work())


class SlowAtTheEnd:
    """Shards whose last page of tallies, which is empty, waits for a search."""

    def __init__(self, shards: Any) -> None:
        self._shards = shards

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shards, name)

    async def tallies(self, *, local: bool) -> Any:
        async for page in self._shards.tallies(local=local):
            yield page
        await asyncio.sleep(1)


def test_a_rate_is_over_the_time_between_two_looks_however_long_the_rest_of_a_tick_takes(tmp_path: Path) -> None:
    async def work() -> None:
        server, now_s = Server(tmp_path), time.time()
        await server.shard.call(CreateQueue(name="orders"))
        await server.tick(now_s)
        began_s = time.monotonic()
        await server.shard.call(Send(queue="orders", bodies=[b"x"] * 100))
        await asyncio.sleep(0.5)
        server.history._shards = SlowAtTheEnd(server.shard)
        await server.tick(now_s + 10)
        assert server.history._before_s - began_s < 1
        await server.close()

    asyncio.run(work())


def test_only_so_many_queues_have_series_and_those_are_the_busiest(tmp_path: Path) -> None:
    async def work() -> None:
        server, now_s = Server(tmp_path, queues=2), time.time()
        for number in range(6):
            await server.shard.call(Send(queue=f"q{number}", bodies=[b"x"] * (number + 1)))
        await server.tick(now_s)
        assert server.last("", now_s)["messages"] == 21
        shown = [name for name in (f"q{n}" for n in range(6)) if server.last(name, now_s)["messages"] is not None]
        assert shown == ["q4", "q5"]
        await server.shard.call(Send(queue="q0", bodies=[b"x"] * 500))
        await server.tick(now_s + 10)
        assert server.last("q0", now_s + 10)["messages"] == 501, "a much busier one takes a place"
        assert server.last("q4", now_s + 10)["messages"] is None
        await server.close()

    asyncio.run(work())


def test_off_costs_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        server = Server(tmp_path, enabled=False)
        server.history.start()
        assert server.history._task is None
        assert not any(each.latencies for each in server.shard.local_shards())
        await server.close()

    asyncio.run(work())
    assert list(tmp_path.iterdir()) == []


def _looks(pause_ms: int, every_ms: int, seconds: int) -> dict[int, int]:
    """How often the sampler looks at each of three steps that follow one another: a send, a receive, an ack."""
    sampler, found, began_ms = LatencySampler(), {0: 0, 1: 0, 2: 0}, 1_760_000_000_000
    for round_ms in range(0, seconds * 1_000, every_ms):
        for step in found:
            found[step] += sampler.wants(began_ms + round_ms + step * pause_ms)
    return found


def test_every_message_is_measured_where_there_are_few() -> None:
    assert _looks(pause_ms=5, every_ms=2_000, seconds=60) == {0: 30, 1: 30, 2: 30}


def test_steps_in_which_nothing_happens_use_up_no_looks() -> None:
    """Somebody has the console open: it asks for counts many times a second."""
    sampler, began_ms = LatencySampler(), 1_760_000_000_000
    for now_ms in range(began_ms, began_ms + 60_000, 20):
        assert sampler.wants(now_ms)
        sampler.take([])
    assert sampler.wants(began_ms + 60_000)


def test_no_step_of_a_client_is_missed_for_ever() -> None:
    """A client that sends, receives and acks in turn, as often as looks come, or much more often."""
    for every_ms in (250, 200, 50, 3):
        looks = _looks(pause_ms=1, every_ms=every_ms, seconds=120)
        assert min(looks.values()) > 0.2 * sum(looks.values()), (every_ms, looks)
        assert sum(looks.values()) <= 120 * 4 + 40, (every_ms, looks)


def test_a_clock_that_is_set_back_ends_no_samples() -> None:
    sampler = LatencySampler()
    assert sampler.wants(2_000_000_000)
    assert any(sampler.wants(1_000_000_000 + 100 * step) for step in range(100))
