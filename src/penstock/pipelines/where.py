"""Where a pipeline's queues are: flags, then the definition, then the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from penstock.pipelines.definition import Settings


@dataclass(frozen=True)
class Where:
    """A server, or a data directory, as the connector's options say it."""

    url: str | None = None
    data: str | None = None
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None

    def options(self) -> dict[str, str]:
        """For `format("penstock")`."""
        found = {"url": self.url, "path": self.data, "token": self.token if self.url else None, "caFile": self.ca_file}
        return {name: value for name, value in found.items() if value is not None}


def where_of(settings: Settings, url: str | None, data: str | None, token: str | None, beside: Path) -> Where:
    """The one place to go to. A directory in the definition is relative to its file."""
    token = token or os.environ.get("PENSTOCK_TOKEN") or None
    if url is None and data is None:
        url = settings.url
        data = str(beside / settings.data) if settings.data is not None else None
    if url is None and data is None:
        url, data = os.environ.get("PENSTOCK_URL"), os.environ.get("PENSTOCK_DATA")
    if url is None and data is None:
        url = "http://localhost:9325"
    return Where(http_url(url), None if url else data, token, settings.ca_file)


def http_url(url: str | None) -> str | None:
    """The form of a server's address that the connector takes.

    >>> http_url("penstock://host:9325"), http_url("penstocks://host"), http_url("http://host:1/")
    ('http://host:9325', 'https://host:9325', 'http://host:1/')
    """
    if url is None:
        return None
    scheme, separator, rest = url.partition("://")
    if separator and scheme in ("penstock", "penstocks"):
        rest = rest.rstrip("/")
        host = rest.rpartition("]")[2] if rest.startswith("[") else rest
        return f"{'https' if scheme == 'penstocks' else 'http'}://{rest if ':' in host else rest + ':9325'}"
    return url
