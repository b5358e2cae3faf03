"""The console: a page for browsers that calls the REST API of its own server, and nothing else.

Its source is in `console/` (TypeScript); `make console` builds it into `static/`, which is committed and comes with the
package, so that serving it needs no Node. `protocols/rest/app.py` serves the files.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

CONSOLE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page runs its own script and calls its own server; nothing else."""
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


class ConsoleFile(NamedTuple):
    """A file of the page, as it is served."""

    content: bytes
    content_type: str
    is_hashed: bool
    """Its name changes with its content."""


@cache
def console_files() -> dict[str, ConsoleFile]:
    """Every file of the console, by its path on the server.

    >>> console_files()["/"].content_type
    'text/html; charset=utf-8'
    >>> sum(path.endswith(".js") for path in console_files())
    1
    """
    found: dict[str, ConsoleFile] = {}
    _gather(files("penstock.console") / "static", "/console", found)
    found["/"] = found["/console"] = found.pop("/console/index.html")
    return found


def _gather(directory: Traversable, path: str, found: dict[str, ConsoleFile]) -> None:
    for each in directory.iterdir():
        if each.is_dir():
            _gather(each, f"{path}/{each.name}", found)
            continue
        file = ConsoleFile(each.read_bytes(), _TYPES[each.name.rpartition(".")[2]], path == "/console/assets")
        found[f"{path}/{each.name}"] = file
