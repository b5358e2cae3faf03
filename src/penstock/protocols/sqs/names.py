"""How a queue is named on the outside: its name, its URL (which follows the host that the client used), its ARN."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from penstock.core.errors import InvalidRequest
from penstock.core.queues.config import Kind, check_name, kind_of
from penstock.protocols.http import Request
from penstock.protocols.sqs.errors import INVALID_ADDRESS, INVALID_PARAMETER_VALUE, SqsError
from penstock.protocols.sqs.limits import Limits

_STANDARD_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")
_FIFO_NAME = re.compile(r"[A-Za-z0-9_-]{1,75}\.fifo\Z")
_HOST_LENGTH_MAX = 260
_HOST = re.compile(r"[A-Za-z0-9._-]+(:\d{1,5})?\Z|\[[0-9A-Fa-f:.]+\](:\d{1,5})?\Z")
_URLS_REMEMBERED_MAX = 10_000
_URL_LENGTH_REMEMBERED_MAX = 512


def check_queue_name(name: str, said: Kind | None, limits: Limits) -> None:
    """Raise what is wrong with the name of a queue that is to be created, of a kind if one is asked for."""
    is_fifo = said == "fifo"
    if limits.any_queue_name:
        try:
            kind_of(check_name(name, "queue"), said)
        except InvalidRequest as error:
            raise SqsError(INVALID_PARAMETER_VALUE, str(error)) from None
    elif is_fifo and not _FIFO_NAME.match(name):
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with "
            ".fifo suffix and be 1 to 80 in length",
        )
    elif not is_fifo and not _STANDARD_NAME.match(name):
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        )


def base_url(request: Request, account: str) -> str:
    """What a queue's URL starts with, for this client."""
    headers = request.headers
    host = headers.get("host", "")
    if len(host) > _HOST_LENGTH_MAX or not _HOST.match(host):
        host = "localhost"
    is_secure = request.is_tls or headers.get("x-forwarded-proto", "").lower() == "https"
    return f"{'https' if is_secure else 'http'}://{host}/{account}/"


def queue_url(base: str, name: str) -> str:
    """A queue's URL.

    >>> queue_url("http://localhost:9324/000000000000/", "orders")
    'http://localhost:9324/000000000000/orders'
    """
    return base + quote(name)


class Urls:
    """Reads names out of queue URLs, and remembers those it has read.

    >>> Urls().name("http://localhost:9324/000000000000/orders.fifo")
    'orders.fifo'
    >>> Urls().name("orders"), Urls().name("http://localhost:9324/queue/us-east-1/000000000000/orders")
    ('orders', 'orders')
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def name(self, url: str) -> str:
        """The name of the queue with this URL. Host and account may be any: there is but one here."""
        known = self._known.get(url)
        if known is None:
            known = self._read(url)
            if len(self._known) >= _URLS_REMEMBERED_MAX:
                self._known.clear()
            if len(url) <= _URL_LENGTH_REMEMBERED_MAX:
                self._known[url] = known
        return known

    def _read(self, url: str) -> str:
        _, separator, rest = url.partition("://")
        path = rest.partition("/")[2] if separator else url
        segments = path.partition("?")[0].strip("/").split("/")
        if not segments[-1]:
            raise SqsError(INVALID_ADDRESS, f"The address {url} is not valid for this endpoint.")
        return unquote(segments[-1])


class Arns:
    """Makes and reads ARNs of queues.

    >>> arns = Arns("us-east-1", "000000000000")
    >>> arns.of("orders"), arns.name("arn:aws:sqs:us-east-1:000000000000:orders"), arns.name("orders")
    ('arn:aws:sqs:us-east-1:000000000000:orders', 'orders', None)
    """

    def __init__(self, region: str, account: str) -> None:
        self._prefix = f"arn:aws:sqs:{region}:{account}:"

    def of(self, name: str) -> str:
        """A queue's ARN."""
        return self._prefix + name

    def name(self, arn: str) -> str | None:
        """The name of the queue with this ARN; None if it is no ARN of a queue. Region and account may be any."""
        parts = arn.split(":")
        is_arn = len(parts) == 6 and parts[0] == "arn" and parts[2] == "sqs" and parts[3] and parts[4] and parts[5]
        return parts[5] if is_arn else None
