"""How a queue is named on the outside: its name, its URL (which follows the host that the client used), its ARN.

Most servers have one account and one region, and a queue has the same name outside and inside. Where there are many
(`[sqs] accounts`), the queues of the account and region that the settings name still have; those of others have both in
front of their names inside: `123456789012.eu-west-1.orders`. Whoever calls is in a `Scope`: its account and its region,
which the signature tells. A name alone is one of that scope; a URL or an ARN says itself which it means.
"""

from __future__ import annotations

import re
from typing import Any
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
URL_LENGTH_REMEMBERED_MAX = 512
_SCOPES_REMEMBERED_MAX = 10_000
ACCOUNT = re.compile(r"[0-9]{12}\Z")
REGION = re.compile(r"[a-z0-9-]{1,32}\Z")
_SCOPED = re.compile(r"([0-9]{12})\.([a-z0-9-]{1,32})\.(.+)\Z")
"""A queue's name inside, with account and region."""
_OF_REGION = re.compile(r"(?:sqs\.|queue\.)?([a-z]{2}(?:-[a-z]+)+-\d)\.")
"""The hosts of AWS that name a region: `sqs.eu-west-1.amazonaws.com`, `eu-west-1.queue.amazonaws.com`."""
TOPIC_PREFIX = "sns."
"""What the name of a topic's queue begins with, after its account and region."""
_SIGNED = re.compile(r"Credential=([^/,&]+)/\d{8}/([^/,&]+)/")


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


def is_topic(name: str) -> bool:
    """Whether a queue has a topic's name, in its account and region. A FIFO queue can be called `sns`.

    >>> is_topic("sns.news"), is_topic("news"), is_topic("sns.fifo")
    (True, False, False)
    """
    return name.startswith(TOPIC_PREFIX) and name != f"{TOPIC_PREFIX}fifo"


def base_url(request: Request) -> str:
    """What a queue's URL starts with, for this client: the scheme and the host."""
    headers = request.headers
    host = headers.get("host", "")
    if len(host) > _HOST_LENGTH_MAX or not _HOST.match(host):
        host = "localhost"
    is_secure = request.is_tls or headers.get("x-forwarded-proto", "").lower() == "https"
    return f"{'https' if is_secure else 'http'}://{host}"


class Arns:
    """Makes and reads ARNs of queues: of one account and region, or (`are_many`) of all.

    >>> arns = Arns("us-east-1", "000000000000")
    >>> arns.of("orders"), arns.name("arn:aws:sqs:us-east-1:000000000000:orders"), arns.name("orders")
    ('arn:aws:sqs:us-east-1:000000000000:orders', 'orders', None)
    >>> many = Arns("us-east-1", "000000000000", are_many=True)
    >>> many.name("arn:aws:sqs:eu-west-1:123456789012:orders"), many.of("123456789012.eu-west-1.orders")
    ('123456789012.eu-west-1.orders', 'arn:aws:sqs:eu-west-1:123456789012:orders')
    """

    def __init__(self, region: str, account: str, *, are_many: bool = False) -> None:
        self.region = region
        self.account = account
        self.are_many = are_many
        self._prefix = f"arn:aws:sqs:{region}:{account}:"

    def of(self, name: str) -> str:
        """A queue's ARN."""
        if not self.are_many:
            return self._prefix + name
        account, region, name = self.outside(name)
        return f"arn:aws:sqs:{region}:{account}:{name}"

    def name(self, arn: str) -> str | None:
        """The name of the queue with this ARN; None if it is no ARN of a queue. If there is one account only, region
        and account may be any.
        """
        parts = arn.split(":")
        is_arn = len(parts) == 6 and parts[0] == "arn" and parts[2] == "sqs" and parts[3] and parts[4] and parts[5]
        if not is_arn:
            return None
        if not self.are_many:
            return parts[5]
        _, _, _, region, account, name = parts
        return self.inside(account, region, name) if REGION.match(region) and ACCOUNT.match(account) else None

    def inside(self, account: str, region: str, name: str) -> str:
        """The name that a queue of an account and a region has inside."""
        if not self.are_many or (account == self.account and region == self.region):
            return name
        return f"{account}.{region}.{name}"

    def outside(self, name: str) -> tuple[str, str, str]:
        """A queue's account, region, and name there."""
        found = _SCOPED.match(name) if self.are_many else None
        return (self.account, self.region, name) if found is None else (found[1], found[2], found[3])

    def url(self, base: str, name: str) -> str:
        """A queue's URL, after the host. A region other than the usual one is in its path.

        >>> many = Arns("us-east-1", "000000000000", are_many=True)
        >>> many.url("http://localhost:9324", "orders"), many.url("", "123456789012.eu-west-1.orders")
        ('http://localhost:9324/000000000000/orders', '/queue/eu-west-1/123456789012/orders')
        """
        account, region, name = self.outside(name)
        place = f"/{account}/" if region == self.region else f"/queue/{region}/{account}/"
        return base + place + quote(name)


class Scope:
    """Where a caller is: an account and a region. Reads queue URLs as they are meant there, and remembers them.

    >>> one = Scope(Arns("us-east-1", "000000000000"), "000000000000", "us-east-1")
    >>> one.name("http://localhost:9324/000000000000/orders.fifo"), one.name("orders")
    ('orders.fifo', 'orders')
    >>> one.name("http://localhost:9324/queue/us-east-1/000000000000/orders")
    'orders'
    >>> there = Scope(Arns("us-east-1", "000000000000", are_many=True), "123456789012", "eu-west-1")
    >>> there.name("orders"), there.name("http://localhost:9324/000000000000/orders")
    ('123456789012.eu-west-1.orders', '000000000000.eu-west-1.orders')
    """

    __slots__ = ("_arns", "_known", "account", "prefix", "queues", "region")

    def __init__(self, arns: Arns, account: str, region: str) -> None:
        self.account = account
        self.region = region
        self.prefix = arns.inside(account, region, "")
        """What the names of its queues begin with inside."""
        self.queues: dict[str, Any] = {}
        """Queues as SQS sees them, by URL."""
        self._arns = arns
        self._known: dict[str, str] = {}

    def name(self, url: str) -> str:
        """The name inside of the queue with this URL."""
        known = self._known.get(url)
        if known is None:
            known = self._read(url)
            if len(self._known) >= _URLS_REMEMBERED_MAX:
                self._known.clear()
            if len(url) <= URL_LENGTH_REMEMBERED_MAX:
                self._known[url] = known
        return known

    def _read(self, url: str) -> str:
        _, separator, rest = url.partition("://")
        host, _, path = rest.partition("/") if separator else ("", "", url)
        *place, name = path.partition("?")[0].strip("/").split("/")
        if not name or any(map(str.isspace, url)):
            raise SqsError(INVALID_ADDRESS, f"The address {url} is not valid for this endpoint.")
        account, region = self.account, self.region
        if place and ACCOUNT.match(place[-1]):
            account = place[-1]
        if len(place) > 2 and place[-3] == "queue" and REGION.match(place[-2]):
            region = place[-2]
        elif (found := _OF_REGION.match(host)) is not None:
            region = found[1]
        return self._arns.inside(account, region, unquote(name))

    def has(self, name: str) -> bool:
        """Whether the queue with this name inside is one of its own. Topics of SNS are nobody's queues."""
        is_here = name.startswith(self.prefix) if self.prefix else not (self._arns.are_many and _SCOPED.match(name))
        return bool(is_here) and not is_topic(name.removeprefix(self.prefix))


class Scopes:
    """The accounts and regions that have called.

    >>> scopes = Scopes(Arns("us-east-1", "000000000000", are_many=True))
    >>> scopes.of("123456789012", "eu-west-1").prefix, scopes.default.prefix
    ('123456789012.eu-west-1.', '')
    """

    def __init__(self, arns: Arns) -> None:
        self._arns = arns
        self.default = Scope(arns, arns.account, arns.region)
        self.are_many = arns.are_many
        self._known = {(arns.account, arns.region): self.default}

    def of(self, account: str, region: str) -> Scope:
        known = self._known.get((account, region))
        if known is None:
            if len(self._known) >= _SCOPES_REMEMBERED_MAX:
                self._known = {(self._arns.account, self._arns.region): self.default}
            known = self._known[account, region] = Scope(self._arns, account, region)
        return known

    def of_caller(self, request: Request, account: str) -> Scope:
        """Where a request comes from: the region that it is signed for; the account of its credential, or else its
        access key, if that is an account's number.
        """
        signed = request.headers.get("authorization") or unquote(request.query)
        found = _SIGNED.search(signed)
        if found is None:
            return self.of(account, self._arns.region) if account else self.default
        access_key, region = found[1], found[2]
        if not account:
            account = access_key if ACCOUNT.match(access_key) else self._arns.account
        return self.of(account, region if REGION.match(region) else self._arns.region)
