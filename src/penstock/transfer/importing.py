"""Bringing an export into a place: queues are made, and messages sent, by the bulk way (`wire/pieces.py`), with marks.

How it works. The file is read twice. The first time it is only checked, so that nothing is imported of a file that is
damaged. Then all queues are made, so that no dead letter makes one of them meanwhile. The messages of each are sent in
batches of `BATCH_MESSAGES`, a commit each, with a mark: the number of the batch. A batch whose number was done is not
done again. So an import that was interrupted is repeated, and goes on where it was. The mark's name has the queue's id
in it: who deletes the queue imports it anew.

While queues are being imported, the label `penstock-import` of each says of which file, and they have no limits of size
and rate, because what was sent once was within them. Both are put right when the last queue has all its messages: the
limits of all queues first, and a label that says so (`_whole`), then the labels go. Wherever that stops, the labels
that are left tell the next run how far it came.

A queue is made with the channels that its first message is for. Any other channel is made just before the first message
that it is not done with, and begins there. Of a queue with several
channels that are done with different messages, those that lie behind that one are delivered again: `repeated` counts
them. In a cluster, messages may be on their way to their shard when a batch is done. A channel waits for them.

Deduplication would drop messages that were sent with the same id days apart, and are now sent within minutes: the first
one keeps its id, and the others get another one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import msgspec

from penstock.core.backoff import backoff
from penstock.core.commands import (
    MAIN,
    AlreadyDone,
    ChangeQueue,
    CommitWork,
    CreateChannel,
    CreateQueue,
    DescribeQueue,
    LastMark,
    PauseChannel,
    QueueInfo,
    Send,
)
from penstock.core.errors import PenstockError, QueueExists, QueueNotFound, StoreError
from penstock.core.handlers.checks import check_text
from penstock.core.handlers.sending import Sending
from penstock.core.queues.attributes import check_stored
from penstock.core.queues.config import MESSAGE_BYTES_CEILING, QueueConfig, check_name, config_for, from_stored
from penstock.core.storage.chunk import Chunk
from penstock.transfer.contents import (
    LABEL,
    Head,
    InvalidExport,
    Item,
    MessageLine,
    QueueLine,
    in_one_line,
    is_arrow,
    origin_of,
    read_json_lines,
    stored_attributes,
)
from penstock.transfer.exporting import Caller
from penstock.wire.pieces import CONTENT_TYPE, Target, check_history, piece_bytes, send_of

BATCH_MESSAGES = 1_000
BATCH_BYTES = 4 * 1024 * 1024
"""Part of the format, in a way: an import that is repeated has to cut the same batches."""
_ARRIVAL_S_MAX = 120.0
_MAKING, _PAUSED = 0, 1
"""How far a paused channel has come that an import makes in a queue which was there before."""

Section = tuple[Target, Chunk]


class Place(Protocol):
    """Where an import goes."""

    @property
    def caller(self) -> Caller:
        """For everything but messages."""

    def send(self, sections: list[Section], mark: tuple[str, int]) -> bool:
        """Send all of it in one commit. False if that was done before."""


class DirectoryPlace:
    """A directory that this process has open."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    def send(self, sections: list[Section], mark: tuple[str, int]) -> bool:
        sends = [send_of(target, chunk) for target, chunk in sections]
        return not isinstance(self.caller.call(CommitWork(acks=[], sends=sends, mark=mark)), AlreadyDone)


class ServerPlace:
    """A server, or a node of a cluster: pieces are staged there and published once, as Spark's are."""

    def __init__(self, caller: Caller, url: str, token: str | None) -> None:
        from penstock.spark.options import Where
        from penstock.spark.server import Connection

        self.caller = caller
        self._connection = Connection(Where(url=url, token=token))
        self._token = f"import-{uuid.uuid4().hex}"

    def send(self, sections: list[Section], mark: tuple[str, int]) -> bool:
        name, number = mark
        piece = piece_bytes(sections)
        self._connection.fetch("PUT", f"/v1/bulk/staging/{self._token}/{number}", piece, {"content-type": CONTENT_TYPE})
        body = {"token": self._token, "pieces": [str(number)], "name": name, "number": number}
        return not self._connection.ask("POST", "/v1/bulk/publish", body)["already_done"]


# -- reading -----------------------------------------------------------------------------------------------------------


def read_export(file: BinaryIO, name: str, path: Path) -> Iterator[tuple[str, Head | Item]]:
    """The head of an export, then queues and messages, each with where it stands. The format is seen in the file."""
    file.seek(0)
    if not is_arrow(path):
        return read_json_lines(file, name)
    try:
        from penstock.transfer.arrow_file import read_arrow_file
    except ImportError:
        raise InvalidExport(f"{name}: this is an Arrow file, which needs pyarrow: install penstock-mq[arrow]") from None
    return read_arrow_file(file, name)


@dataclass
class Checked:
    """What the first reading has found."""

    head: Head
    queues: dict[str, QueueConfig] = field(default_factory=dict)
    lines: dict[str, QueueLine] = field(default_factory=dict)
    first_channels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The channels of each queue that its first message is for."""
    messages: int = 0


def check_export(items: Iterator[tuple[str, Head | Item]]) -> Checked:
    """Read all of an export; `InvalidExport` for the first thing that is wrong with it."""
    _, head = next(items)
    assert isinstance(head, Head)
    checked = Checked(head)
    queue, is_first = "", True
    for where, item in items:
        try:
            if isinstance(item, QueueLine):
                queue, is_first = item.queue, True
                if queue in checked.queues:
                    raise ValueError(f"queue {queue!r} is listed twice")
                checked.queues[queue] = _config(item)
                checked.lines[queue] = item
                checked.first_channels[queue] = tuple(each.name for each in item.channels)
            elif isinstance(item, MessageLine):
                if is_first:
                    names = checked.first_channels[queue]
                    checked.first_channels[queue] = tuple(each for each in names if each not in item.done_for)
                    is_first = False
                _check_message(item, checked.lines[queue], checked.queues[queue])
                checked.messages += 1
        except (ValueError, OverflowError, RecursionError) as error:  # InvalidRequest and msgspec's are ValueErrors
            raise InvalidExport(f"{where}: {in_one_line(error)}") from None
    return checked


def _check_message(message: MessageLine, line: QueueLine, config: QueueConfig) -> None:
    """All that a send of the message would refuse."""
    attributes, origin = _stored(message, line)
    try:
        check_history(origin)
    except ValueError as error:
        raise ValueError(f"the message's history cannot be read: {error}") from None
    if attributes is not None:
        check_stored(attributes)
    if message.dedup_id is not None:
        check_text(_other_dedup_id(message), "dedup id (made of the message's id)")
    send = Send(
        queue=line.queue,
        bodies=[message.content],
        attributes=[attributes],
        groups=[message.group],
        dedup_ids=[message.dedup_id],
        origins=[origin],
        priority=message.priority,
        due_ms=message.due_ms,
    )
    Sending.check_messages(send, without_limits(config), time.time_ns() // 1_000_000)


def _stored(message: MessageLine, line: QueueLine) -> tuple[bytes | None, bytes]:
    """Its attributes and its history, as a store keeps them."""
    channel = line.channels[0].name if line.channels else MAIN
    return stored_attributes(message.attributes), origin_of(message, line.queue, channel)


def _other_dedup_id(message: MessageLine) -> str:
    """For a message whose own one another message has."""
    return f"{message.id} {message.sequence:x}"


def without_limits(config: QueueConfig) -> QueueConfig:
    """The settings of a queue while it is imported."""
    return msgspec.structs.replace(config, message_bytes_max=MESSAGE_BYTES_CEILING, throughput_per_second=None)


def _config(line: QueueLine) -> QueueConfig:
    check_name(line.queue, "queue")
    for channel in line.channels:
        check_name(channel.name, "channel")
    config, _ = from_stored(line.settings)
    config = config_for(line.queue, config)
    config = msgspec.structs.replace(config, labels={k: v for k, v in config.labels.items() if k != LABEL})
    config.check()
    return config


# -- importing ---------------------------------------------------------------------------------------------------------


@dataclass
class Imported:
    """What an import did."""

    queues: int = 0
    messages: int = 0
    """Messages that were sent now."""
    known: int = 0
    """Messages that an earlier run of this import had sent."""
    repeated: dict[str, int] = field(default_factory=dict)
    """Messages that a channel had done and gets again, by `queue/channel`."""


class Import:
    """An import of one export into one place."""

    def __init__(
        self, place: Place, checked: Checked, *, into_existing: bool, progress: Callable[[float, float | None], None]
    ) -> None:
        self._place = place
        self._checked = checked
        self._into_existing = into_existing
        self._progress = progress
        self.done = Imported()

    def run(self, items: Iterator[tuple[str, Head | Item]]) -> Imported:
        """Import everything. What is wrong with the place is raised before anything is done."""
        checked, export_id = self._checked, self._checked.head.id
        there = {name: described(self._place.caller, name) for name in checked.queues}
        is_whole = any(info and info.config.labels.get(LABEL) == _whole(export_id) for info in there.values())
        for name, info in there.items():
            if info is not None and not is_whole:
                self._check_existing(name, info)
        queues = {
            name: _QueueImport(
                self._place, export_id, line, checked.queues[name], there[name], checked.first_channels[name], self.done
            )
            for name, line in checked.lines.items()
        }
        queue: _QueueImport | None = None
        for where, item in items:
            if isinstance(item, QueueLine):
                if queue is not None:
                    queue.complete()
                queue = queues[item.queue]
                self.done.queues += 1
            elif isinstance(item, MessageLine) and queue is not None:
                queue.add(where, item)
                self._progress(self.done.messages + self.done.known, checked.messages)
        if queue is not None:
            queue.complete()
        for queue in queues.values():
            queue.restore_limits()
        for queue in queues.values():
            queue.drop_label()
        return self.done

    def _check_existing(self, name: str, info: QueueInfo) -> None:
        """`QueueExists` if the queue that is there may not be imported into."""
        if info.config.labels.get(LABEL) == self._checked.head.id or self._into_existing:
            return
        if LABEL in info.config.labels:
            raise QueueExists(
                f"queue {name!r} was left by an interrupted import of another file: finish that import, or delete "
                "the queue. Nothing was imported"
            )
        raise QueueExists(
            f"queue {name!r} exists already: delete it, leave it out, or use --into-existing to add the messages "
            "to it. Nothing was imported"
        )


def _whole(export_id: str) -> str:
    """The label of a queue while an import has nothing left to do but to drop the labels."""
    return f"{export_id} whole"


def described(caller: Caller, name: str) -> QueueInfo | None:
    try:
        info: QueueInfo = caller.call(DescribeQueue(name=name))
        return info
    except QueueNotFound:
        return None


class _Stored(NamedTuple):
    """A message, with what takes long to encode."""

    message: MessageLine
    attributes: bytes | None
    origin: bytes


class _QueueImport:
    """One queue on its way in."""

    def __init__(
        self,
        place: Place,
        export_id: str,
        line: QueueLine,
        config: QueueConfig,
        existing: QueueInfo | None,
        first_channels: tuple[str, ...],
        done: Imported,
    ) -> None:
        self._place = place
        self._call = place.caller.call
        self._line = line
        self._name = line.queue
        self._config = config
        self._done = done
        self._export_id = export_id
        self._is_own = existing is None or existing.config.labels.get(LABEL) in (export_id, _whole(export_id))
        """Whether the queue has nothing in it but what this import brings."""
        if existing is None:
            open_config = msgspec.structs.replace(without_limits(config), labels={**config.labels, LABEL: export_id})
            existing = self._call(CreateQueue(name=self._name, config=open_config, channels=first_channels))
        self._mark = f"import {export_id} {existing.queue_id:x}"
        self._last: int = self._call(LastMark(name=self._mark))
        self._there = set(existing.channels)
        self._made: set[str] = set()
        self._begun: set[str] = set()
        """Channels that messages so far were for. What is there already must not say where batches are cut."""
        self._number = 0
        """Of the next batch."""
        for name in first_channels if self._is_own else [each.name for each in line.channels]:
            self._make_channel(name)
        self._batch: list[_Stored] = []
        self._batch_bytes = 0
        self._first_where = ""
        self._dedup_ids: set[tuple[str | None, str]] = set()

    def add(self, where: str, message: MessageLine) -> None:
        needs = {each.name for each in self._line.channels} - self._begun - set(message.done_for)
        if needs:
            self._flush()
            self._begun |= needs
            for name in sorted(needs):
                self._make_channel(name)
        for name in message.done_for:
            if name in self._begun:
                at = f"{self._name}/{name}"
                self._done.repeated[at] = self._done.repeated.get(at, 0) + 1
        attributes, origin = _stored(message, self._line)
        size = len(message.content) + len(attributes or b"") + len(origin)
        if self._batch and (len(self._batch) == BATCH_MESSAGES or self._batch_bytes + size > BATCH_BYTES):
            self._flush()
        if not self._batch:
            self._first_where = where
        self._batch.append(_Stored(message, attributes, origin))
        self._batch_bytes += size

    def complete(self) -> None:
        """All its messages and channels are there."""
        self._flush()
        for channel in self._line.channels:
            self._make_channel(channel.name)
        if self._is_own:
            self._wait_for_arrival()

    def restore_limits(self) -> None:
        """The limits are as they were. The label says that nothing is missing in any queue of the file."""
        if self._is_own:
            changes = {
                "message_bytes_max": self._config.message_bytes_max,
                "throughput_per_second": self._config.throughput_per_second,
                "labels": {**self._config.labels, LABEL: _whole(self._export_id)},
            }
            self._call(ChangeQueue(name=self._name, changes=changes))

    def drop_label(self) -> None:
        """The queue is as it was."""
        if self._is_own:
            self._call(ChangeQueue(name=self._name, changes={"labels": self._config.labels}))

    def _make_channel(self, name: str) -> None:
        """A channel that begins with what is sent next; one that is there stays where it is.

        One that is there may have been left by a run that ended before it was paused. Of a queue that is not this
        import's own, a mark tells such a channel from the queue's own ones.
        """
        if name in self._made:
            return
        self._made.add(name)
        is_there = name in self._there
        is_paused = any(each.name == name and each.paused for each in self._line.channels)
        is_marked = is_paused and not self._is_own
        mark = f"{self._mark} {name}"
        if is_marked and not is_there:
            self._call(CommitWork(acks=[], sends=[], mark=(mark, _MAKING)))
        if not is_there:
            if self._is_own:
                self._wait_for_arrival()
            self._call(CreateChannel(queue=self._name, channel=name, start="tail"))
        if is_paused and (self._is_own or not is_there or self._call(LastMark(name=mark)) == _MAKING):
            self._call(PauseChannel(queue=self._name, channel=name))
            if is_marked:
                self._call(CommitWork(acks=[], sends=[], mark=(mark, _PAUSED)))

    def _wait_for_arrival(self) -> None:
        """In a cluster, what was committed may still be on its way to the queue's shard.

        The queue's own counts do not tell: others may send to it meanwhile, and dead letters come.
        """
        deadline_s, looks = time.monotonic() + _ARRIVAL_S_MAX, 0
        while self._call(LastMark(name=self._mark, arrived=True)) < self._number - 1:
            looks += 1
            if time.monotonic() > deadline_s:
                raise StoreError(
                    f"messages for queue {self._name!r} have been on their way between shards for {_ARRIVAL_S_MAX:g} "
                    "seconds: look at the cluster, and repeat the import, which continues from there"
                )
            time.sleep(backoff(looks, 0.005, 0.5))

    def _flush(self) -> None:
        if not self._batch:
            return
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        number, self._number = self._number, self._number + 1
        sections = self._sections(batch)  # also of what was done before: it says which dedup ids were there
        try:
            is_new = number > self._last and self._place.send(sections, (self._mark, number))
        except PenstockError as error:
            error.args = (f"{self._first_where} and the {len(batch) - 1} messages behind it: {error}",)
            raise
        if is_new:
            self._done.messages += len(batch)
        else:
            self._done.known += len(batch)

    def _sections(self, batch: list[_Stored]) -> list[Section]:
        """Messages that follow each other, and are alike in priority and due time, go together: order stays."""
        now_ms = time.time_ns() // 1_000_000
        sections: list[Section] = []
        run: list[_Stored] = []
        kind = (0, 0)
        for each in batch:
            message = each.message
            own = (message.priority, message.due_ms if message.due_ms > now_ms else 0)
            if run and own != kind:
                sections.append(self._section(run, *kind))
                run = []
            kind = own
            run.append(each)
        return [*sections, self._section(run, *kind)]

    def _section(self, run: list[_Stored], priority: int, due_ms: int) -> Section:
        messages = [each.message for each in run]
        dedup_ids = [self._dedup_id(message) for message in messages]
        chunk = Chunk.of(
            0,
            0,
            [message.content for message in messages],
            attributes=[each.attributes for each in run],
            groups=[None if message.group is None else message.group.encode() for message in messages],
            dedup_ids=[None if each is None else each.encode() for each in dedup_ids],
            origins=[each.origin for each in run],
        )
        delay_ms = max(0, due_ms - time.time_ns() // 1_000_000)  # for servers that know no due times of pieces
        return Target(self._name, priority, delay_ms, due_ms or None), chunk

    def _dedup_id(self, message: MessageLine) -> str | None:
        """The message's own, unless one before has it: see the top."""
        if message.dedup_id is None:
            return None
        key = (message.group if self._config.dedup_scope == "group" else None, message.dedup_id)
        if key not in self._dedup_ids:
            self._dedup_ids.add(key)
            return message.dedup_id
        return _other_dedup_id(message)
