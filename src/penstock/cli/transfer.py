"""`penstock export` and `penstock import`: queues as a file, from a directory or a server to any other."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, TypeVar

import click

from penstock import __version__
from penstock.cli.command import Argument, Option
from penstock.cli.exits import Exit, Yes, confirm, not_opened, open_given
from penstock.cli.output import AsJson, Told, counted, print_done, progress
from penstock.cli.store import Data, Token, Url, opened, place_given, place_or_shift, speaking_of
from penstock.core.errors import NotFound, PenstockError
from penstock.store.layout import FILE_MODE

if TYPE_CHECKING:
    from penstock.transfer.contents import Head, QueueLine
    from penstock.transfer.exporting import Caller, Writer
    from penstock.transfer.importing import Import, Place

Format = Literal["jsonl", "arrow"]
T = TypeVar("T")
_SHOWN_EVERY = 1_000
CONNECT_S = 3.0
"""How long the first of several servers may take, before the next one is asked."""

# -- export ------------------------------------------------------------------------------------------------------------


def export_queues(
    source: Annotated[
        str | None,
        Argument(help="A data directory, or the address of a server: http://host:9325.", may_be_empty=False),
    ] = None,
    queue: Annotated[list[str] | None, Option("--queue", "-q", help="Only this queue. Can be repeated.")] = None,
    format: Annotated[Format, Option("--format", "-f", help="JSON lines, or an Arrow file.")] = "jsonl",
    output: Annotated[
        Path | None, Option("--output", "-o", help="The file to write. Without it: standard output.")
    ] = None,
    data: Data = None,
    url: Url = None,
    token: Token = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Write queues with their settings, channels and messages to a file. Nothing is received, and nothing changes.

    penstock export data -o queues.jsonl

    penstock export http://host:9325 --queue orders --format arrow -o orders.arrow
    """
    if output is None and format == "arrow" and sys.stdout.isatty():
        raise click.BadParameter("an Arrow file is not for a terminal: name a file", param_hint="--output")
    from penstock.transfer.exporting import Source

    place = place_given(source, data, url, "SOURCE")
    data, url = (place, None) if isinstance(place, Path) else (None, place)
    if data is not None and not data.is_dir():
        what = "is a file" if data.exists() else "is not there"
        raise NotFound(f"{data} {what}: SOURCE is a data directory, or the address of a server")
    if output is not None and output.is_file():
        confirm(f"{output} exists. Replace it?", yes)
    messages = 0
    with opened(data, url, token, read_only=True) as ps, _written(output) as file:
        found = Source(ps._caller)
        with speaking_of({}):
            lines = [found.queue(name) for name in dict.fromkeys(queue or found.names())]
        writer = _writer(format, file, found.head(f"penstock {__version__}"), lines)
        with progress(f"exporting {place}") as show:
            for line in lines:
                writer.write(line)
                for message in found.messages(line):
                    writer.write(message)
                    messages += 1
                    show(messages, None)
        writer.close()
    if not lines:
        why = "there is none" if data is not None else "there is none that this token may read"
        print(f"penstock: no queue was exported from {place}: {why}", file=sys.stderr)
    for name, count in found.received.items():
        text = (
            f"{counted(count, 'message')} of {name} were not exported: they were received, and are delivered only once"
        )
        print(f"penstock: {text}", file=sys.stderr)
    for name, count in found.quarantined.items():
        print(f"penstock: {counted(count, 'message')} of {name} are damaged, and were not exported", file=sys.stderr)
    for name, consumers in found.consumers.items():
        print(f"penstock: consumers of {name} were not exported: {', '.join(consumers)}", file=sys.stderr)
    if output is not None:
        text = f"{output}: {counted(len(lines), 'queue')}, {counted(messages, 'message')}"
        print_done(text, {"file": str(output), "queues": len(lines), "messages": messages}, as_json)


def _writer(format: Format, file: BinaryIO, head: Head, lines: list[QueueLine]) -> Writer:
    if format == "jsonl":
        from penstock.transfer.contents import JsonLines

        return JsonLines(file, head)
    try:
        from penstock.transfer.arrow_file import ArrowFile
    except ImportError:
        raise PenstockError("--format arrow needs pyarrow: pip install 'penstock-mq[arrow]'") from None
    return ArrowFile(file, head, lines)


@contextmanager
def _written(output: Path | None) -> Iterator[BinaryIO]:
    """The file, which comes to be when all of it is written, and is for this user only; or standard output.

    What is there and no file, such as a pipe or /dev/null, is written to: it must not become a file.
    """
    if output is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if output.is_dir():
        raise click.BadParameter(f"{output}: Is a directory", param_hint="--output")
    if output.exists() and not output.is_file():
        with open_given(output, "wb", "--output") as file:
            yield file
        return
    target = output.resolve()  # a link stays one
    partial = target.with_name(f"{target.name}.{uuid.uuid4().hex[:12]}.partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        raise not_opened(output, error, "--output") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        partial.replace(target)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


# -- import ------------------------------------------------------------------------------------------------------------


def import_queues(
    target: Annotated[
        str | None,
        Argument(help="A data directory, or the address of a server: http://host:9325.", may_be_empty=False),
    ] = None,
    file: Annotated[Path | None, Argument(help="The export to read. Without it, or with `-`: standard input.")] = None,
    into_existing: Annotated[
        bool, Option("--into-existing", help="Add messages to queues that exist already.")
    ] = False,
    data: Data = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Bring an export into a directory or a server. After an interruption, run the same command again to continue.

    penstock import data queues.jsonl

    penstock export old | penstock import http://host:9325
    """
    from penstock.transfer.importing import Import, check_export, read_export

    target, file = place_or_shift(target, file, data, url)
    if target is None and data is None and url is None:
        raise click.MissingParameter(param_hint="'TARGET'", param_type="argument")
    place = place_given(target, data, url, "TARGET")
    data, url = (place, None) if isinstance(place, Path) else (None, place)
    if data is not None and data.is_file():
        raise click.BadParameter(f"{data} is a file: name a data directory or a server first", param_hint="TARGET")
    with _input(file) as (path, name), open_given(path, "rb", "FILE") as stream:
        with progress(f"checking {name}") as show:
            checked = check_export(_shown(read_export(stream, name, path), show))
        with opened(data, url, token, creates=True) as ps, progress(f"importing {name}") as show:
            into = _into(place, ps._caller, token)
            started = Import(into, checked, into_existing=into_existing, progress=show)
            try:
                done = started.run(read_export(stream, name, path))
            except PenstockError as error:
                if started.done.queues:
                    error.args = (f"{error} ({_so_far(started)})",)
                raise
            except KeyboardInterrupt:
                print(f"penstock: interrupted: {_so_far(started)}", file=sys.stderr)
                raise click.exceptions.Exit(Exit.INTERRUPTED) from None
    for channel, count in done.repeated.items():
        text = f"{channel} gets {counted(count, 'message')} again that it had acknowledged: see docs/backup.md"
        print(f"penstock: {text}", file=sys.stderr)
    known = f" ({counted(done.known, 'message')} had been imported before)" if done.known else ""
    text = f"{place}: {counted(done.queues, 'queue')}, {counted(done.messages, 'message')} imported{known}"
    row = {"queues": done.queues, "messages": done.messages, "known": done.known, "repeated": done.repeated}
    print_done(text, row, as_json)


def _shown(items: Iterator[T], show: Told) -> Iterator[T]:
    for count, item in enumerate(items):
        if not count % _SHOWN_EVERY:
            show(count, None)
        yield item


def _so_far(started: Import) -> str:
    done = started.done.messages + started.done.known
    return f"{counted(done, 'message')} were imported: the same command again continues from there"


@contextmanager
def _input(file: Path | None) -> Iterator[tuple[Path, str]]:
    """The export as a file, because it is read twice, and what errors call it."""
    if file is not None and str(file) != "-":
        yield file, str(file)
        return
    if sys.stdin.isatty():
        print("penstock: reading an export from the terminal; Ctrl-D ends it", file=sys.stderr)
    with tempfile.NamedTemporaryFile(prefix="penstock-import-") as kept:
        shutil.copyfileobj(sys.stdin.buffer, kept)
        kept.flush()
        yield Path(kept.name), "standard input"


def _into(place: Path | str, caller: Caller, token: str | None) -> Place:
    from penstock.client.remote.address import Address
    from penstock.transfer.importing import DirectoryPlace, ServerPlace

    if isinstance(place, Path):
        return DirectoryPlace(caller)
    address = Address.parse(place.partition("?")[0])
    for server in address.servers if address.others else ():
        with suppress(OSError), socket.create_connection((server.host, server.port), CONNECT_S):
            address = server
            break
    url = f"{'https' if address.is_tls else 'http'}://{address.authority}"
    return ServerPlace(caller, url, token or os.environ.get("PENSTOCK_TOKEN"))
