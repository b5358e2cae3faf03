"""An export as JSON lines: a head, then each queue and its messages, then an end. `contents` says what is in a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from penstock.transfer.contents import VERSION, EndLine, Head, InvalidExport, Item, MessageLine, QueueLine, in_one_line

_decode_head = msgspec.json.Decoder(Head).decode
_decode = msgspec.json.Decoder(QueueLine | MessageLine | EndLine).decode
_decode_version = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class JsonLines:
    """Writes an export, line by line."""

    def __init__(self, file: BinaryIO, head: Head) -> None:
        self._file = file
        self._encode = msgspec.json.Encoder().encode
        self._end = EndLine(queues=0, messages=0)
        self._put(head)

    def write(self, item: Item) -> None:
        assert self._end.queues is not None
        assert self._end.messages is not None
        if isinstance(item, QueueLine):
            self._end.queues += 1
        else:
            self._end.messages += 1
        self._put(item)

    def close(self) -> None:
        self._put(self._end)

    def _put(self, line: msgspec.Struct) -> None:
        self._file.write(self._encode(line) + b"\n")


def read_json_lines(file: BinaryIO, name: str) -> Iterator[tuple[str, Head | Item]]:
    """The head, then queues and messages, each with where it stands. `InvalidExport` says where something is wrong."""
    first = file.readline()
    yield f"{name}, line 1", read_head(first, name)
    queues = messages = 0
    number, end = 1, None
    for number, line in enumerate(file, 2):
        where = f"{name}, line {number}"
        if end is not None:
            raise InvalidExport(f"{where}: something follows the end of the export")
        if not line.endswith(b"\n"):
            raise InvalidExport(f"{where}: the line is cut short: this is a part of an export")
        try:
            item = _decode(line)
        except (ValueError, RecursionError) as error:  # msgspec's errors are such
            raise InvalidExport(f"{where}: it is damaged: {in_one_line(error)}") from None
        if isinstance(item, EndLine):
            end = item
            continue
        if isinstance(item, QueueLine):
            queues += 1
        elif not queues:
            raise InvalidExport(f"{where}: a message stands before the first queue")
        else:
            messages += 1
        yield where, item
    if end is None:
        raise InvalidExport(f"{name}, line {number}: the end is missing: this is a part of an export")
    if end.queues not in (None, queues) or end.messages not in (None, messages):
        raise InvalidExport(
            f"{name}, line {number}: {end.queues} queues and {end.messages} messages were exported, and {queues} and "
            f"{messages} are here: lines are missing"
        )


def read_head(line: bytes, name: str) -> Head:
    """The first line; `InvalidExport` if this is another file, or of a later version."""
    try:
        fields = _decode_version(line)
        if msgspec.json.decode(fields["kind"]) != "penstock-export":
            raise KeyError("kind")
        version = msgspec.json.decode(fields["version"], type=int)
    except (ValueError, KeyError, RecursionError):
        raise InvalidExport(f"{name}, line 1: this is no export of Penstock") from None
    if version > VERSION:
        raise InvalidExport(
            f"{name}, line 1: the export is of version {version}, and this build knows {VERSION}: use a later build"
        )
    try:
        return _decode_head(line)
    except (ValueError, RecursionError) as error:
        raise InvalidExport(f"{name}, line 1: it is damaged: {in_one_line(error)}") from None


def is_arrow(path: Path) -> bool:
    """Whether a file is an Arrow file."""
    with path.open("rb") as file:
        return file.read(6) == b"ARROW1"
