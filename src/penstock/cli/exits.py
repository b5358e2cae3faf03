"""How a command ends, and what it writes to: exit statuses, which docs/cli.md prints, and the standard streams."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, TextIO, cast

import click

from penstock.cli.command import Option

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


# -- standard streams --------------------------------------------------------------------------------------------------

# Commands can rely on the standard streams, whatever a shell or a container has made of them.
#
# What was written is out of the process, or there is an error: with `PYTHONUNBUFFERED`, which containers often set,
# Python's own stream drops what a full disk or a closed pipe did not take, and a received message would be acknowledged
# all the same. A character that the terminal's encoding lacks is written escaped. A stream that is closed is an
# error only for who needs it.


class ReaderGone(Exception):
    """Whoever read our output has gone. No OSError: those are told in a line of text."""


class _Output(io.FileIO):
    """Standard output as the system has it, with errors that say so."""

    def write(self, data: ReadableBuffer, /) -> int:
        """As `FileIO`: perhaps a part only. What is buffered above asks again."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise ReaderGone from None
        except OSError as error:
            raise OSError(error.errno, f"standard output: {error.strerror}") from None


@contextmanager
def dependable_streams() -> Iterator[None]:
    """Inside, standard output and the error stream are there and keep what they promise."""
    if sys.stderr is None:
        # For good: `print` would take standard output instead.
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    kept, sys.stdout = sys.stdout, _dependable(sys.stdout)
    try:
        yield
    finally:
        used, sys.stdout = sys.stdout, kept
        try:
            used.flush()
        except BaseException:  # what cannot be written is dropped, or Python complains at its end once more
            drop_output(used)
            raise


def _dependable(stream: TextIO | None) -> TextIO:
    if stream is None:
        # Reading only: whoever writes is told. And no other file gets the number of standard output.
        return _text(os.open(os.devnull, os.O_RDONLY), "utf-8")
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return stream
    stream.flush()
    return _text(number, stream.encoding)


def _text(number: int, encoding: str) -> TextIO:
    buffered = io.BufferedWriter(_Output(number, "w", closefd=False))
    return io.TextIOWrapper(buffered, encoding, errors="backslashreplace", line_buffering=True)


def drop_output(stream: TextIO) -> None:
    """Let what is still to be written go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


# -- exit statuses -----------------------------------------------------------------------------------------------------


class Exit(IntEnum):
    """How a command ended."""

    OK = 0
    """The command did what it was asked to do."""
    FAILED = 1
    """It was refused, or it failed. The error stream says why."""
    USAGE = 2
    """The command line or a setting is wrong."""
    NOTHING = 3
    """There is no message to receive, show or change; or the queue, channel, consumer or directory does not exist."""
    UNREACHABLE = 4
    """The server, Kafka or ZooKeeper does not answer, or another process has the directory. A later try may work."""
    REFUSED = 5
    """The token is missing or wrong, or does not allow this."""
    INTERRUPTED = 130
    """Ctrl-C."""
    READER_GONE = 141
    """The reader of the output has ended, as `head` does. Every program that SIGPIPE ends has this status."""


# By name, so that knowing the errors does not load the libraries that raise them.
_EXITS = {
    "MessageTooLarge": Exit.FAILED,
    "BatchTooLarge": Exit.FAILED,
    "InvalidRequest": Exit.USAGE,
    "NotFound": Exit.NOTHING,
    "NotReadable": Exit.USAGE,
    "StoreLocked": Exit.UNREACHABLE,
    "ConnectionLost": Exit.UNREACHABLE,
    "LogUnavailable": Exit.UNREACHABLE,
    "AccessDenied": Exit.REFUSED,
}


def exit_of(error: BaseException) -> Exit:
    """The status that stands for an error.

    >>> from penstock.core.errors import InvalidConfig, QueueNotFound, StaleReceipt
    >>> exit_of(QueueNotFound("no such queue")), exit_of(StaleReceipt("too late")), exit_of(InvalidConfig("no lease"))
    (<Exit.NOTHING: 3>, <Exit.FAILED: 1>, <Exit.USAGE: 2>)
    """
    for kind in type(error).__mro__:
        if kind.__name__ in _EXITS:
            return _EXITS[kind.__name__]
    return Exit.FAILED


@contextmanager
def errors_reported() -> Iterator[None]:
    """What goes wrong inside is one line on the error stream, and an exit status."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(Exit.INTERRUPTED) from None
    except ReaderGone:
        raise SystemExit(Exit.READER_GONE) from None
    except click.UsageError as error:
        _tell_usage(error)
        raise SystemExit(Exit.USAGE) from None
    except click.exceptions.Exit as ended:
        raise SystemExit(ended.exit_code) from None
    except Exception as error:
        if not is_expected(error):
            raise
        text = str(error)
        if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
            text = f"{error.filename}: {error.strerror}"
        print(f"penstock: {' '.join(text.split())}", file=sys.stderr)
        raise SystemExit(exit_of(error)) from None


def _tell_usage(error: click.UsageError) -> None:
    """A command line that cannot be followed: what is wrong, and which help says more."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    command = "penstock" if error.ctx is None else error.ctx.command_path
    text = " ".join(error.format_message().split())
    text = re.sub(r"is not in the range x>=(\S+)", r"is less than \1", text).removesuffix(".")
    text = re.sub(r"is not in the range (\S+)<=x<=(\S+)", r"is not from \1 to \2", text)
    text = re.sub(r"is not a valid integer( range)?$", "is not a whole number", text)
    text = re.sub(r"is not a valid float( range)?$", "is not a number", text)
    if extra := re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", text):
        text = f"Unexpected argument: {extra[1]}"
        if error.ctx is not None and any("--data" in each.opts for each in error.ctx.command.params):
            text += ". A directory is given with --data"
    end = "" if text.endswith("?") else "."
    print(f"penstock: {text}{end} `{command} --help` says more.", file=sys.stderr)


def is_expected(error: BaseException) -> bool:
    """Whether this is for the user to know, and no fault of the program."""
    from penstock.core.errors import PenstockError

    return isinstance(error, PenstockError | OSError)


# -- files -------------------------------------------------------------------------------------------------------------


def open_given(path: Path, mode: str, said: str, buffering: int = -1) -> BinaryIO:
    """Open a file that the command line names. If that fails, the command line is wrong; `said` is the option."""
    try:
        return cast(BinaryIO, path.open(mode, buffering))
    except OSError as error:
        raise not_opened(path, error, said) from None


def not_opened(path: Path, error: OSError, said: str) -> click.BadParameter:
    return click.BadParameter(f"{path}: {error.strerror}", param_hint=said)


# -- questions ---------------------------------------------------------------------------------------------------------

Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation. Without a terminal, no command asks.")]


def confirm(question: str | Callable[[], str], yes: bool) -> None:
    """Ask, if a person can answer. Anything but yes ends the command, and nothing was done."""
    if yes or sys.stdin is None or not sys.stdin.isatty():
        return
    text = question if isinstance(question, str) else question()
    print(f"{text} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        print("penstock: nothing was done", file=sys.stderr)
        raise click.exceptions.Exit(Exit.FAILED)
