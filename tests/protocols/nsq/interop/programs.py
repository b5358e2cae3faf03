"""NSQ's own programs, as their users start them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from bench import nsq_tools
from tests.ports import free_port
from tests.protocols.nsq.clients.servers import HOST, Lookup, Process, http_call, listens


class Nsqadmin(Process):
    """nsqadmin, which knows a lookup service and nothing else."""

    def __init__(self, directory: Path, *lookups: Lookup) -> None:
        super().__init__(directory)
        self._lookups = lookups
        self.port = 0

    def __enter__(self) -> Nsqadmin:
        self.port = free_port()
        lookups = [f"--lookupd-http-address={lookup.http_address}" for lookup in self._lookups]
        command = [nsq_tools.program("nsqadmin"), f"--http-address={HOST}:{self.port}", *lookups]
        self.run(command, lambda: listens(self.port))
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Its HTTP API, which its pages use. It reports what went wrong behind it in `message`."""
        content = b"" if body is None else json.dumps(body).encode()
        status, answer = http_call(HOST, self.port, method, f"/api{path}", content)
        assert status == 200, (status, answer)
        document = json.loads(answer)
        assert not document.get("message"), document
        return document


def start(name: str, *flags: str, log: Path, stdin: Any = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """One of the programs, running."""
    with log.open("ab") as output:
        return subprocess.Popen([nsq_tools.program(name), *flags], stdin=stdin, stdout=output, stderr=output)
