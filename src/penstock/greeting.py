"""What `penstock serve` tells a person who has just started it: where everything is, and what to try next."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from penstock.server.node import Ready


def greeting(ready: Ready, *, needs_token: bool) -> str:
    """A line with every address, then what to do with them."""
    url = ready.listening["http"].url
    token = " --token ACCESS_KEY:SECRET_KEY" if needs_token else ""
    return "\n".join(
        [
            ready.line(),
            f"The REST API, with a form for each request: {url}/v1/docs",
            f"To try it, in another terminal: {program()} send orders tea --url {url}{token}",
            "Ctrl-C stops the server.",
        ]
    )


def program() -> str:
    """How `penstock` is called from where we are: by its name if a shell finds it, else by its path."""
    beside = Path(sys.executable).with_name("penstock")
    found = shutil.which("penstock")
    if found is not None and Path(found).resolve() == beside.resolve():
        return "penstock"
    if not beside.exists():
        return f"{sys.executable} -m penstock"
    here = Path.cwd()
    return str(beside.relative_to(here)) if beside.is_relative_to(here) else str(beside)
