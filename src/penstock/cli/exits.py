"""Exit statuses that scripts can use. One table, which docs/cli.md prints."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import click

from penstock.cli.streams import NobodyReads


class Exit(IntEnum):
    """How a command ended."""

    OK = 0
    """It did what it was asked to do."""
    FAILED = 1
    """It was refused, or went wrong: the error stream says why."""
    USAGE = 2
    """The command line or the settings cannot be followed."""
    NOTHING = 3
    """Nothing was there: no message to receive or to show, no such queue, channel, consumer or directory."""
    UNREACHABLE = 4
    """The server does not answer, or another process has the directory: the same again later may work."""
    REFUSED = 5
    """The token is missing or wrong, or does not allow this."""
    INTERRUPTED = 130
    """Ctrl-C."""
    NOBODY_READS = 141
    """The reader of the output has gone, as `head` does: the status of every program that SIGPIPE ends."""


# By name, so that knowing the errors does not load the libraries that raise them.
_EXITS = {
    "MessageTooLarge": Exit.FAILED,
    "BatchTooLarge": Exit.FAILED,
    "InvalidRequest": Exit.USAGE,
    "NotFound": Exit.NOTHING,
    "StoreLocked": Exit.UNREACHABLE,
    "ConnectionLost": Exit.UNREACHABLE,
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
    except NobodyReads:
        raise SystemExit(Exit.NOBODY_READS) from None
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
    end = "" if text.endswith("?") else "."
    print(f"penstock: {text}{end} `{command} --help` says more.", file=sys.stderr)


def is_expected(error: BaseException) -> bool:
    """Whether this is for the user to know, and no fault of the program."""
    from penstock.core.errors import PenstockError

    return isinstance(error, PenstockError | OSError)
