"""Imports that end anywhere, and are done again: nothing is lost, doubled or left open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli import transfer
from penstock.core.commands import (
    ChangeQueue,
    Command,
    CommitWork,
    CreateChannel,
    CreateQueue,
    DescribeQueue,
    PauseChannel,
)
from penstock.core.errors import InvalidRequest, StoreError
from penstock.transfer.contents import LABEL, ChannelLine, Item, MessageLine, QueueLine
from penstock.transfer.importing import DirectoryPlace, Import, Section, check_export, read_export
from tests.transfer.test_transfer import Failing, write


def messages(count: int, **fields: Any) -> list[MessageLine]:
    return [MessageLine(sequence=at, id=f"m{at}", sent_ms=at, body=f"{at}", **fields) for at in range(count)]


class Stopping:
    """A caller that ends before some command is done."""

    def __init__(self, ps: penstock.Penstock, kind: type[Command], after: int) -> None:
        self._caller = ps._caller
        self._kind = kind
        self._left = after

    @property
    def identity(self) -> Any:
        return self._caller.identity

    def call(self, command: Command) -> Any:
        if isinstance(command, self._kind):
            self._left -= 1
            if self._left < 0:
                raise StoreError("stopped")
        return self._caller.call(command)


def run_import(place: DirectoryPlace, path: Path, *, into_existing: bool = False) -> None:
    with path.open("rb") as file:
        checked = check_export(read_export(file, path.name, path))
        Import(place, checked, into_existing=into_existing, progress=lambda done, all: None).run(
            read_export(file, path.name, path)
        )


@pytest.fixture
def queues_file(tmp_path: Path) -> Path:
    items: list[Item] = []
    for name in ("a", "b", "c"):
        channels = [ChannelLine("main"), ChannelLine("slow", paused=True), ChannelLine("late", paused=True)]
        items += [QueueLine(queue=name, settings={"message_bytes_max": 5_000}, channels=channels)]
        items += messages(3, done_for=["late"])
        items += [MessageLine(sequence=3, id="m3", sent_ms=3, body="3")]
    return write(tmp_path / "file", [*items, QueueLine(queue="empty", channels=[ChannelLine("main")])])


@pytest.mark.parametrize("kind", [CreateQueue, CreateChannel, PauseChannel, ChangeQueue])
@pytest.mark.parametrize("after", range(8))
def test_an_import_goes_on_wherever_it_was_stopped(
    tmp_path: Path, queues_file: Path, kind: type[Command], after: int
) -> None:
    with penstock.open(tmp_path / "new") as ps:
        try:
            run_import(DirectoryPlace(Stopping(ps, kind, after)), queues_file)
        except StoreError:
            run_import(DirectoryPlace(ps._caller), queues_file)
        assert ps.queues() == ["a", "b", "c", "empty"]
        for name in ("a", "b", "c"):
            config = ps._caller.call(DescribeQueue(name=name)).config
            assert (config.message_bytes_max, config.labels) == (5_000, {})
            assert [message.text for message in ps.queue(name).browse()] == ["0", "1", "2", "3"]
            assert [message.text for message in ps.queue(name).channel("late").browse()] == ["3"]
            paused = {key: each.paused for key, each in ps.queue(name).stats().channels.items()}
            assert paused == {"main": False, "slow": True, "late": True}


@pytest.mark.parametrize("kind", [CreateChannel, PauseChannel, CommitWork])
@pytest.mark.parametrize("after", range(6))
def test_an_import_into_existing_queues_pauses_the_channels_that_it_has_made_wherever_it_was_stopped(
    tmp_path: Path, queues_file: Path, kind: type[Command], after: int
) -> None:
    with penstock.open(tmp_path / "new") as ps:
        for name in ("a", "b", "c"):
            ps.create_queue(name)
        ps._caller.call(CreateChannel(queue="a", channel="slow"))
        try:
            run_import(DirectoryPlace(Stopping(ps, kind, after)), queues_file, into_existing=True)
        except StoreError:
            run_import(DirectoryPlace(ps._caller), queues_file, into_existing=True)
        for name in ("a", "b", "c"):
            paused = {key: each.paused for key, each in ps.queue(name).stats().channels.items()}
            assert paused == {"main": False, "slow": name != "a", "late": True}, name
            ps._caller.call(PauseChannel(queue=name, channel="late", paused=False))
        run_import(DirectoryPlace(ps._caller), queues_file, into_existing=True)
        assert not any(ps.queue(name).stats().channels["late"].paused for name in ("a", "b", "c"))


def test_a_queue_that_is_half_imported_is_not_exported(tmp_path: Path, queues_file: Path) -> None:
    with penstock.open(tmp_path / "new") as ps, pytest.raises(StoreError):
        run_import(Failing(ps, 1, is_done=False), queues_file)
    with pytest.raises(InvalidRequest, match="queue 'a' is being imported"):
        transfer.export_queues(str(tmp_path / "new"), output=tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_the_label_of_an_import_is_not_imported(tmp_path: Path) -> None:
    line = QueueLine(
        queue="a", settings={"labels": {LABEL: "0123456789abcdef", "x": "y"}}, channels=[ChannelLine("main")]
    )
    path = write(tmp_path / "file", [line, *messages(2)])
    transfer.import_queues(str(tmp_path / "new"), path)
    with penstock.open(tmp_path / "new") as ps:
        assert ps._caller.call(DescribeQueue(name="a")).config.labels == {"x": "y"}
    with pytest.raises(penstock.QueueExists):
        transfer.import_queues(str(tmp_path / "new"), path)


class Consumed(DirectoryPlace):
    """A place with a consumer that fails at the first message of each batch for `orders`."""

    def __init__(self, ps: penstock.Penstock) -> None:
        super().__init__(ps._caller)
        self._orders = ps.queue("orders")

    def send(self, sections: list[Section], mark: tuple[str, int]) -> bool:
        is_new = super().send(sections, mark)
        if sections[0][0].queue == "orders":
            message = self._orders.receive()
            assert message is not None
            message.release(error="no tea")
        return is_new


def test_a_dead_letter_that_comes_during_an_import_does_not_stop_it_and_is_kept(tmp_path: Path) -> None:
    items: list[Item] = [QueueLine(queue="orders", settings={"max_receives": 1}, channels=[ChannelLine("main")])]
    items += [*messages(2), QueueLine(queue="orders.dead", channels=[ChannelLine("main")]), *messages(3)]
    path = write(tmp_path / "file", items)
    with penstock.open(tmp_path / "new") as ps:
        run_import(Consumed(ps), path)
        assert [message.text for message in ps.queue("orders").browse()] == ["1"]
        assert sorted(message.text for message in ps.queue("orders.dead").browse()) == ["0", "0", "1", "2"]
