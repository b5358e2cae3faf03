"""`penstock send`, `receive`, `ack`, `release`, `peek`: messages in and out.

Received messages on their way out: printed, acknowledged as far as they are out, the rest given back.

A pipe takes 64 KB that nobody has read yet, so a message that was written is not yet a message that somebody has. Into
a pipe the messages go one by one: the next one when the reader has taken the last. A reader that goes (`| head -2`)
leaves the rest in the queue. A reader that is slow holds the rest back, under a lease that is kept.
"""

from __future__ import annotations

import array
import fcntl
import io
import os
import re
import select
import stat
import sys
import termios
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, BinaryIO

import click

from penstock.cli.command import Argument, Option
from penstock.cli.exits import Exit, ReaderGone, drop_output, open_given
from penstock.cli.output import (
    AsJson,
    counted,
    described,
    for_people,
    print_done,
    print_json,
    print_rows,
    progress,
    told_if_slow,
)
from penstock.cli.store import on_store
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.tables import table

if TYPE_CHECKING:
    from penstock import Batch, Channel, Message, PeekedMessage, Penstock, Queue, SentMessages, Session


FIRST_LOOK_SECONDS = 0.3
"""A reader that is slower than this has its messages kept for it."""

Pieces = Iterable[tuple[bytes, int]]
"""What is to be written, and how many messages are out with each piece."""
Write = Callable[[list[dict[str, Any]], list[bytes]], Iterator[int]]
"""Writes messages, and says again and again how many of them are out."""


class Reader:
    """Who reads our output through a pipe, if it is a pipe."""

    PAUSE_SECONDS_MAX = 0.005
    TURN_SECONDS = 0.1
    """How often a caller that waits for the reader gets its turn."""

    def __init__(self, stream: IO[bytes]) -> None:
        try:
            self._number = stream.fileno()
            self.is_on_a_pipe = stat.S_ISFIFO(os.fstat(self._number).st_mode)
        except (OSError, ValueError):
            self.is_on_a_pipe = False
            return
        self._end = select.poll()
        self._end.register(self._number, 0)

    def takes(self) -> Iterator[None]:
        """Wait until it has taken all that was written. `ReaderGone` if it goes and leaves something in the pipe."""
        pause, turn_at = 0.0, time.monotonic() + self.TURN_SECONDS
        unread = array.array("i", [0])
        while self.is_on_a_pipe:
            fcntl.ioctl(self._number, termios.FIONREAD, unread)
            if not unread[0]:
                return
            if self._end.poll(0):
                raise ReaderGone
            time.sleep(pause)
            pause = min(max(2 * pause, 0.00001), self.PAUSE_SECONDS_MAX)
            if time.monotonic() >= turn_at:
                yield
                turn_at = time.monotonic() + self.TURN_SECONDS


class Held:
    """A batch that is being printed. When the block ends, what is out is acknowledged and the rest is given back."""

    def __init__(self, batch: Batch, *, ack: bool, lease: Callable[[], float]) -> None:
        self._batch = batch
        self._ack = ack
        self._lease = lease
        self._out = self._settled = 0
        self._look_at = time.monotonic() + FIRST_LOOK_SECONDS

    def are_out(self, count: int) -> None:
        """So many of the messages are out. At times these are acknowledged, and the lease of the others is extended."""
        self._out = count
        if self._ack and time.monotonic() >= self._look_at:
            self._acknowledge()
            lease = self._lease()
            if lease > 0:
                self._batch[count:].extend(lease)
            self._look_at = time.monotonic() + lease / 3

    def _acknowledge(self) -> None:
        done, self._settled = self._settled, self._out
        if self._ack:
            self._batch[done : self._out].ack()

    def __enter__(self) -> Held:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._acknowledge()
            return
        from penstock import PenstockError

        with suppress(PenstockError):  # what cannot be settled now comes again when its lease ends
            self._acknowledge()
            self._batch[self._out :].give_back()


@contextmanager
def writer(output: Path | None, *, as_json: bool, raw: bool, end: bytes, title: str) -> Iterator[Write]:
    """How received messages are put out: a table, JSON, or bare bodies; on standard output or in a file."""
    if output is None:
        pieces = _bodies(end) if raw else _json if as_json else _table(title)
        yield lambda rows, bodies: _put(pieces(rows, bodies))
        return
    pieces = _json if as_json else _bodies(end)
    with open_given(output, "ab", "--output", buffering=0) as file:
        yield lambda rows, bodies: _append(file, b"".join(piece for piece, _ in pieces(rows, bodies)), len(bodies))


def _put(pieces: Pieces) -> Iterator[int]:
    """Write to standard output: at once, or into a pipe as its reader takes it."""
    sys.stdout.flush()
    stream: BinaryIO = sys.stdout.buffer
    reader = Reader(stream)
    out = 0
    if not reader.is_on_a_pipe:
        text, counts = zip(*pieces, strict=True)
        pieces = [(b"".join(text), sum(counts))]
    for piece, count in pieces:
        stream.write(piece)
        stream.flush()
        for _ in reader.takes():
            yield out
        out += count
        yield out


def _append(file: BinaryIO, data: bytes, count: int) -> Iterator[int]:
    """Write to a file, and have it on the disk."""
    size = os.fstat(file.fileno()).st_size
    left = memoryview(data)
    try:
        while left:  # a disk that is nearly full takes a part, and says only then that it is full
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    except BaseException:  # they come again: half of them would be taken for the start of what comes next
        with suppress(OSError):
            os.ftruncate(file.fileno(), size)
        raise
    yield count


def _bodies(end: bytes) -> Callable[[list[dict[str, Any]], list[bytes]], Pieces]:
    return lambda rows, bodies: [(body + end, 1) for body in bodies]


def _json(rows: list[dict[str, Any]], bodies: list[bytes]) -> Pieces:
    import msgspec

    return [(msgspec.json.encode(row) + b"\n", 1) for row in rows]


def _table(title: str) -> Callable[[list[dict[str, Any]], list[bytes]], Pieces]:
    """A table is out when its last line is."""

    def pieces(rows: list[dict[str, Any]], bodies: list[bytes]) -> Pieces:
        text = table([for_people(row) for row in rows], title)
        lines = text.encode(sys.stdout.encoding, "backslashreplace").splitlines(keepends=True)
        return chain(((line, 0) for line in lines), [(b"", len(rows))])

    return pieces


Name = Annotated[str, Argument(help="The queue's name.")]
ChannelName = Annotated[str, Option("--channel", "-c", help="The channel to read.")]
Receipts = Annotated[list[str], Argument(help="Receipts, as `receive --no-ack --json` prints them.")]

RUN_MESSAGES = 1_000
RUN_BYTES = 4 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
BODY_BYTES_MAX = 256 * 1024 * 1024
"""The most that any queue takes."""

STDIN = Path("-")

FOLLOW_SECONDS = 20.0
FOLLOW_RUN = 100
TAKE_MAX = 1_000
SESSION_MARGIN_SECONDS = 60.0


# -- send --------------------------------------------------------------------------------------------------------------


@on_store(creates=True)
def send(
    ps: Penstock,
    queue: Name,
    bodies: Annotated[
        list[str] | None,
        Argument(help="The messages. Without any, and without --file, each line of standard input is a message."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        Option("--file", "-f", help="A file to send as one message. `-` is standard input. Can be repeated."),
    ] = None,
    lines: Annotated[bool, Option("--lines", help="Send each line of the files as a message.")] = False,
    null: Annotated[
        bool, Option("--null", "-0", help="Each message ends with a NUL byte, as `find -print0` prints names.")
    ] = False,
    attribute: Annotated[
        list[str] | None, Option(help="NAME=VALUE, an attribute of every message. Can be repeated.")
    ] = None,
    group: Annotated[str | None, Option(help="The group of the messages. FIFO queues need one.")] = None,
    dedup_id: Annotated[
        str | None, Option(help="A deduplication id. A second message with it within five minutes is not added.")
    ] = None,
    priority: Annotated[int, Option(min=0, max=9, help="0 to 9. The highest is received first.")] = 0,
    delay: Annotated[float | None, Option(help="Seconds before the messages can be received.")] = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print nothing if the command succeeds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send messages: the arguments, lines of standard input, or files.

    Arguments are sent in one atomic batch. Input from a file or a pipe is sent in batches of up to 1,000 messages.

    penstock send orders tea cake

    penstock send orders --file menu.pdf

    find . -name '*.jpg' -print0 | penstock send pictures --null
    """
    files, separator = _inputs(bodies, file, lines, null)
    if dedup_id is not None and (files or len(bodies or ()) != 1):
        raise click.BadParameter(
            "is for one message: with several, all but the first would be dropped", param_hint="--dedup-id"
        )
    attributes = _attributes(attribute or [])

    def send_run(run: list[bytes]) -> SentMessages:
        return ps.queue(queue).send_many(
            run,
            attributes=[attributes] * len(run) if attributes else None,
            groups=[group] * len(run) if group else None,
            dedup_ids=[dedup_id] if dedup_id else None,
            priority=priority,
            delay=delay,
        )

    if files:
        _send_files(queue, from_files(files, separator), size_of(files), send_run, as_json, quiet)
    else:
        sent = _rows(send_run([body.encode(errors="surrogateescape") for body in bodies or ()]))
        if not quiet:
            print_rows(sent, as_json, f"Sent to {queue}")


def _inputs(
    bodies: list[str] | None, files: list[Path] | None, lines: bool, null: bool
) -> tuple[list[Path], bytes | None]:
    """The files to read, none if the bodies are given; and what ends a message there, if anything does."""
    if lines and null:
        raise click.BadParameter("give --lines or --null, not both")
    if bodies and (files or lines or null):
        raise click.BadParameter("give bodies as arguments, or use --file, --lines or --null", param_hint="BODIES")
    if bodies:
        return [], None
    if null:
        return files or [STDIN], b"\0"
    return files or [STDIN], b"\n" if lines or not files else None


def _send_files(
    queue: str,
    runs: Iterable[list[bytes]],
    size: int | None,
    send_run: Callable[[list[bytes]], SentMessages],
    as_json: bool,
    quiet: bool,
) -> None:
    """Send run by run. If one fails, those before it are sent, and the user is told how many that was."""
    count = done_bytes = under_way = 0
    try:
        typed = size is None and sys.stdin is not None and sys.stdin.isatty()
        with progress(f"Sending to {queue}", "bytes", typed=typed) as told:
            for run in runs:
                under_way = len(run)
                sent = send_run(run)
                count, under_way = count + len(run), 0
                done_bytes += sum(map(len, run)) + len(run)
                told(done_bytes, size)
                if as_json and not quiet:
                    quiet = not _told(sent)
    except KeyboardInterrupt:
        more = f", and perhaps {under_way:,} more" if under_way else ""
        print(f"penstock: interrupted. Sent to {queue}: {counted(count, 'message')}{more}.", file=sys.stderr)
        raise
    except BaseException as error:
        if count:
            print(f"penstock: sent to {queue} before this: {counted(count, 'message')}.", file=sys.stderr)
        number = re.match(r"message (\d+) has ", str(error))
        if number and isinstance(error, PenstockError):  # it counts from 0 in each batch
            text = str(error).removeprefix(number[0])
            raise type(error)(f"message {count + int(number[1]) + 1:,} of the input has {text}") from None
        raise
    if not as_json and not quiet:
        print(f"{counted(count, 'message')} sent to {queue}")


def _told(sent: SentMessages) -> bool:
    """Print what was sent; False if nobody reads it: what is still to be sent is sent all the same."""
    try:
        print_json(_rows(sent))
    except ReaderGone:
        drop_output(sys.stdout)
        return False
    return True


def _rows(sent: SentMessages) -> list[dict[str, Any]]:
    return [{"id": one.id, "sequence": one.sequence, "duplicate": one.duplicate} for one in sent]


def _attributes(given: Iterable[str]) -> dict[str, str]:
    attributes = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="--attribute")
        attributes[name] = value
    return attributes


# -- receive -----------------------------------------------------------------------------------------------------------


@on_store()
def receive(
    ps: Penstock,
    queue: Name,
    max: Annotated[
        int | None,
        Option(
            "--max",
            "-n",
            min=1,
            help="Receive at most this many messages (1; with --follow: no limit).",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[float, Option("--wait", "-w", help="Seconds to wait for the first message.")] = 0.0,
    follow: Annotated[
        bool, Option("--follow", help="Continue until Ctrl-C, or until --max messages were received.")
    ] = False,
    lease: Annotated[
        float | None, Option(help="Visibility timeout: seconds until others can receive the messages.")
    ] = None,
    channel: ChannelName = "main",
    ack: Annotated[
        bool, Option(help="Acknowledge printed messages. With --no-ack they stay leased; --json prints their receipts.")
    ] = True,
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="Append the bodies (or JSON) to a file, synced before the acknowledgement."),
    ] = None,
    raw: Annotated[bool, Option("--raw", help="Print only the bodies, one per line.")] = False,
    null: Annotated[bool, Option("--null", "-0", help="Print only the bodies, each followed by a NUL byte.")] = False,
    as_json: AsJson = False,
) -> None:
    """Receive messages, print them and acknowledge them. Exit status 3 when there is none.

    penstock receive orders --max 10 --wait 5

    penstock receive orders --follow --json | jq .body
    """
    if as_json and (raw or null):
        raise click.BadParameter("--json cannot be combined with --raw or --null")
    place: Penstock | Session = ps
    if not ack:  # a session that outlives this process, or a server would take the messages back when we hang up
        place = ps.session("penstock receive", ttl=_lease_seconds(ps, queue, lease) + SESSION_MARGIN_SECONDS)
    source = receiver(place, queue, channel)
    limit = max or (None if follow else 1)
    end = b"\0" if null else b"\n"
    count = 0
    title = f"Received from {queue}"
    with (
        progress(title, typed=output is None) as told,
        writer(output, as_json=as_json, raw=raw or null, end=end, title=title) as write,
    ):
        for batch in _batches(source, limit, wait, lease, follow):
            count += len(batch)
            with Held(batch, ack=ack, lease=lambda: _lease_seconds(ps, queue, lease)) as held:
                for out in write([_received(message, ack) for message in batch], batch.bodies):
                    held.are_out(out)
            told(count, limit)
    if count and output is not None and sys.stderr.isatty():
        print(f"{counted(count, 'message')} of {queue} appended to {output}", file=sys.stderr)
    if not count:
        if sys.stdout.isatty():
            leased = ps.queue(queue).stats().channels[channel].leased
            print(f"Received from {queue}: nothing{f' ({leased:,} leased)' if leased else ''}", file=sys.stderr)
        raise click.exceptions.Exit(Exit.NOTHING)


def _lease_seconds(ps: Penstock, queue: str, lease: float | None) -> float:
    return ps.queue(queue).info().config.lease_ms / 1_000 if lease is None else lease


def receiver(place: Penstock | Session, queue: str, channel: str) -> Queue | Channel:
    """Where a queue's messages come out: through `main`, or another channel, which must be there."""
    return place.queue(queue) if channel == "main" else existing(place, queue, channel)


def existing(place: Penstock | Session, queue: str, channel: str) -> Channel:
    """A channel that is there; a handle alone would make it."""
    import penstock

    handle = place.queue(queue)
    if channel not in handle.info().channels:
        hint = f"`penstock channel list {queue}` lists its channels"
        raise penstock.ChannelNotFound(f"queue {queue!r} has no channel {channel!r}: {hint}")
    return handle.channel(channel)


def _batches(
    source: Queue | Channel, limit: int | None, wait: float, lease: float | None, follow: bool
) -> Iterator[Batch]:
    """Messages as they come, until there are so many, or, unless we follow, no more."""
    left, is_first = limit, True
    while left is None or left > 0:
        size = min(left or TAKE_MAX, FOLLOW_RUN if follow else TAKE_MAX)
        with told_if_slow(f"waiting for messages in {source.name}. Ctrl-C ends it") if is_first else nullcontext():
            batch = source.receive_batch(size, wait=FOLLOW_SECONDS if follow else wait, lease=lease)
        is_first = False
        if len(batch):
            yield batch
            left = None if left is None else left - len(batch)
        elif not follow:
            return
        wait = 0.0


def _received(message: Message, ack: bool) -> dict[str, Any]:
    return described(message) | {"attempts": message.attempts} | ({} if ack else {"receipt": message.receipt})


# -- settle ------------------------------------------------------------------------------------------------------------


@on_store()
def ack(ps: Penstock, queue: Name, receipts: Receipts, channel: ChannelName = "main", as_json: AsJson = False) -> None:
    """Acknowledge messages that were received with --no-ack."""
    count = receiver(ps, queue, channel).ack(receipts)
    print_done(f"{count} acknowledged", {"acknowledged": count}, as_json)


@on_store()
def release(
    ps: Penstock,
    queue: Name,
    receipts: Receipts,
    channel: ChannelName = "main",
    delay: Annotated[
        float | None, Option(help="Seconds until they can be received again. Default: the queue's backoff.")
    ] = None,
    error: Annotated[str, Option(help="What went wrong. It is stored with the messages.")] = "",
    as_json: AsJson = False,
) -> None:
    """Return messages that were received with --no-ack. The work on them failed; they are delivered again."""
    count = receiver(ps, queue, channel).release(receipts, delay=delay, error=error)
    print_done(f"{count} released", {"released": count}, as_json)


# -- look --------------------------------------------------------------------------------------------------------------


@on_store(read_only=True)
def peek(
    ps: Penstock,
    queue: Name,
    max: Annotated[int, Option("--max", "-n", min=1, help="How many messages at most.")] = 10,
    contains: Annotated[str | None, Option(help="Only messages whose body contains this text.")] = None,
    after: Annotated[int, Option(help="Only messages after this sequence number.")] = -1,
    channel: ChannelName = "main",
    raw: Annotated[bool, Option("--raw", help="Print only the bodies, one per line.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show messages without receiving them. Exit status 3 when there is none.

    Works on a directory while another process has it open.
    """
    needle = None if contains is None else contains.encode(errors="surrogateescape")
    seen = _browsed(receiver(ps, queue, channel), after, max, needle)
    if raw:
        sys.stdout.buffer.write(b"".join(message.body + b"\n" for message in seen))
        sys.stdout.buffer.flush()
    else:
        rows = map(_peeked, seen)
        print_rows(rows if as_json else map(for_people, rows), as_json, f"Waiting in {queue}")
    if not seen:
        raise click.exceptions.Exit(Exit.NOTHING)


def _browsed(source: Queue | Channel, after: int, limit: int, needle: bytes | None) -> list[PeekedMessage]:
    """So many messages, in as many pages as it takes: a server gives only so many at a time."""
    seen: list[PeekedMessage] = []
    while len(seen) < limit:
        page = source.browse(after=after, limit=min(limit - len(seen), TAKE_MAX), contains=needle)
        if not page:
            break
        seen += page
        after = page[-1].sequence
    return seen


def _peeked(message: PeekedMessage) -> dict[str, Any]:
    errors = [failure.error for failure in message.history]
    return described(message) | {"state": message.state.name, "attempts": message.attempts, "why": errors}


# -- bodies to send ----------------------------------------------------------------------------------------------------

# What comes from files or standard input may be larger than memory. It is read piece by piece and given on in runs: so
# many messages, or so many bytes, whichever comes first.


def runs_of(bodies: Iterable[bytes], messages: int = RUN_MESSAGES, size: int = RUN_BYTES) -> Iterator[list[bytes]]:
    """Bodies gathered into runs.

    >>> [len(run) for run in runs_of([b"x"] * 5, messages=2)], [len(run) for run in runs_of([b"xxx"] * 3, size=4)]
    ([2, 2, 1], [1, 1, 1])
    """
    run: list[bytes] = []
    held = 0
    for body in bodies:
        if run and (len(run) == messages or held + len(body) > size):
            yield run
            run, held = [], 0
        run.append(body)
        held += len(body)
    if run:
        yield run


def from_files(paths: Iterable[Path], separator: bytes | None) -> Iterator[list[bytes]]:
    """What files hold, in runs: each file one body, or cut at each separator. `-` is standard input."""
    for path in paths:
        with opened(path) as stream:
            if separator is None:
                body = stream.read(BODY_BYTES_MAX + 1)
                if len(body) > BODY_BYTES_MAX:
                    raise InvalidRequest(f"{path} is larger than any message may be: split it with --lines or --null")
                yield [body]
                continue
            for bodies in cut(stream, separator):
                yield from runs_of(bodies)


def cut(stream: BinaryIO, separator: bytes, piece_bytes: int = _PIECE_BYTES) -> Iterator[list[bytes]]:
    r"""What stands between separators (one byte each), as it comes: a slow pipe is not waited for.

    >>> list(cut(io.BytesIO(b"tea\ncake\n\nend"), b"\n", piece_bytes=6))
    [[b'tea'], [b'cake', b''], [b'end']]
    """
    read = getattr(stream, "read1", stream.read)
    begun: list[bytes] = []
    while piece := read(piece_bytes):
        first, *others = piece.split(separator)
        begun.append(first)
        if not others:
            if sum(map(len, begun)) > BODY_BYTES_MAX:
                text = f"the input has no separator for more than {BODY_BYTES_MAX:,} bytes: no message is so large"
                raise InvalidRequest(text)
            continue
        yield [b"".join(begun), *others[:-1]]
        begun = [others[-1]]
    if last := b"".join(begun):
        yield [last]


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file, or standard input."""
    if path != STDIN:
        with open_given(path, "rb", "--file") as stream:
            yield stream
        return
    if sys.stdin is None:
        raise InvalidRequest("standard input is closed: give bodies, or --file")
    if sys.stdin.isatty():
        print("penstock: reading from the terminal; Ctrl-D ends the input", file=sys.stderr)
    yield getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode())


def size_of(paths: Iterable[Path]) -> int | None:
    """How many bytes there are to read, if that is known."""
    total = 0
    for path in paths:
        if path == STDIN or not path.is_file():
            return None
        total += path.stat().st_size
    return total
