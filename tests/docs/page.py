"""A page of the docs, pasted block by block into a terminal.

`sh` goes into one bash, from top to bottom. A `python` block is a program that is run; with a title, as in
`python title="worker.py"`, it is a file that the reader saves, as is any other block with a title. A `text` block is
what the block before it prints; `…` stands for anything. A block after `<!-- fails -->` has to fail, and one after
`<!-- not run: why -->` is only read.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.docs.terminal import ENVIRONMENT, Terminal

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r'^(?:<!-- ([^>]+) -->\n)?```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
ANYTHING = "…"
END = "the-end-of-a-block"
BLOCK_SECONDS_MAX = 240


@dataclass(frozen=True)
class Block:
    """What stands between two lines of backticks."""

    note: str
    language: str
    title: str
    text: str

    @property
    def is_run(self) -> bool:
        """Whether the reader runs it, by pasting it into a terminal or as a program."""
        return not self.title and self.language in ("sh", "python") and not self.note.startswith("not run: ")


def blocks(page: Path) -> list[Block]:
    """All of a page."""
    return [Block(*found) for found in BLOCK.findall(page.read_text())]


class Shell:
    """One bash, in which the blocks of a page are run one after the other."""

    def __init__(self, terminal: Terminal, environment: Mapping[str, str]) -> None:
        self._terminal = terminal
        self._process = subprocess.Popen(
            ["bash"],
            cwd=terminal.directory,
            env={**environment, "PYTHONUNBUFFERED": "1", "COLUMNS": "100"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, text: str, *, may_fail: bool = False) -> tuple[int, str]:
        """The status of the first command that failed, or 0, and all that was printed. After a failure bash has ended,
        unless that was to be expected."""
        assert self._process.stdin is not None
        (self._terminal.directory / "block.sh").write_text(text)
        done = f"echo; echo {END}"
        if may_fail:
            line = f"(set -e; . ./block.sh); status=$?; {done} $status\n"
        else:
            line = f"trap 'status=$?; {done} $status' EXIT; set -e; . ./block.sh; set +e; trap - EXIT; {done} 0\n"
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()
        said = self._until_the_end()
        printed, _, status = said.rpartition(f"\n{END} ")
        return int(status.split()[0]), printed

    def _until_the_end(self) -> str:
        assert self._process.stdout is not None
        said = b""
        deadline = time.monotonic() + BLOCK_SECONDS_MAX
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not re.search(rf"\n{END} \d+\n".encode(), said):
                assert selector.select(deadline - time.monotonic()), f"it does not end: {said.decode()}"
                more = os.read(self._process.stdout.fileno(), 1 << 16)
                assert more, f"bash has ended: {said.decode()}"
                said += more
        return said.decode()

    def close(self) -> None:
        """End bash, and what it has left in the background."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def shell_in(terminal: Terminal, environment: Mapping[str, str]) -> Iterator[Shell]:
    """A shell that is closed at the end of the block."""
    shell = Shell(terminal, environment)
    try:
        yield shell
    finally:
        shell.close()


def follow(
    page: Path,
    terminal: Terminal,
    replaced: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Do what the page says, from top to bottom, and compare what one sees. Without an `environment`, the commands are
    those of this Python's."""
    last: Block | None = None
    printed = ""
    path = f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"
    with shell_in(terminal, environment or {**ENVIRONMENT, "PATH": path}) as shell:
        for block in blocks(page):
            text = terminal.pasted(block.text)
            for old, new in (replaced or {}).items():
                text = text.replace(old, new)
            if block.title:
                (terminal.directory / block.title).write_text(text)
            elif block.language == "text":
                assert last is None or matches(text, printed), f"after\n{last and last.text}\nit printed\n{printed}"
            elif block.note.startswith("not run: ") or text.startswith("make run"):  # the server runs already
                last = None
            else:
                if block.language == "python":
                    (terminal.directory / "program.py").write_text(text)
                    text = "python program.py\n"
                status, printed = shell.run(text, may_fail=block.note == "fails")
                assert (status != 0) == (block.note == "fails"), f"{block.text}\nended with {status}\n{printed}"
                last = block


def matches(expected: str, printed: str) -> bool:
    """Whether this is what the page shows, but for the space around it.

    >>> matches("sent …, twice", "sent 1f0c, twice\\n"), matches("sent", "resent")
    (True, False)
    """
    wanted = [re.escape(part) for part in "\n".join(map(str.rstrip, expected.splitlines())).strip().split(ANYTHING)]
    seen = "\n".join(map(str.rstrip, printed.splitlines())).strip()
    return re.fullmatch(".*?".join(wanted), seen, re.DOTALL) is not None
