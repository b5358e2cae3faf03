"""What all actions share: the shard, the limits, names, and queues as SQS sees them."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from penstock.core.commands import ChangeQueue, Command, CreateQueue, DescribeQueue, ListQueues
from penstock.core.delivery.receipt import Recent, Seal
from penstock.core.errors import QueueChanged, QueueExists, QueueNotFound
from penstock.core.queues.attributes import encode_attributes
from penstock.core.queues.config import Kind, QueueConfig, kind_of
from penstock.protocols.sqs.attributes import message_bytes_max
from penstock.protocols.sqs.context import RequestContext, UnknownQueue, ask
from penstock.protocols.sqs.errors import ACCESS_DENIED, SqsError, missing, no_such_queue
from penstock.protocols.sqs.limits import LIMITS, MESSAGE_BYTES_CEILING, NAME_LENGTH_MAX, STORED_OVERHEAD_BYTES
from penstock.protocols.sqs.message_attributes import STORED_SENDER
from penstock.protocols.sqs.names import Arns, Urls
from penstock.server.auth import ANYBODY, Principal
from penstock.server.settings import SqsSettings
from penstock.server.shards import QueueView, Shards

_SEQUENCE_DIGITS: Final = 12
_SEQUENCES_MAX: Final = 16**12
"""Below this, the ids of a queue's messages differ in their last twelve digits only."""
_HEX: Final[list[str]] = [f"{number:02x}" for number in range(256)]
_SEALS_MAX = 10_000
_QUEUES_MAX = 10_000
_NAMES_ASKED = 1_000
_NAMES_ASKED_MIN = 200
"""Who may see few queues has many looked at for one name."""


class Numbered:
    """Texts that start the same and end with a number in twelve hexadecimal digits.

    >>> numbered = Numbered("x-")
    >>> numbered.text(255), numbered.text(256)
    ('x-0000000000ff', 'x-000000000100')
    """

    __slots__ = ("_beyond", "_block", "_start", "_started")

    def __init__(self, start: str, beyond: Callable[[int], str] | None = None) -> None:
        self._start = start
        self._beyond = beyond
        """Makes the texts of numbers that have more than twelve digits."""
        self._block = -1
        self._started = ""

    def text(self, number: int) -> str:
        """The text with this number. Those that lie near each other share all but two digits, which are made once."""
        block = number >> 8
        if block != self._block:
            if number >= _SEQUENCES_MAX and self._beyond is not None:
                return self._beyond(number)
            self._started = self._start + f"{block:010x}"
            self._block = block
        return self._started + _HEX[number & 255]

    def texts(self, first: int, count: int) -> list[str]:
        """So many texts from a number on."""
        if first >> 8 == self._block == (first + count) >> 8:
            started = self._started
            return [started + _HEX[number & 255] for number in range(first, first + count)]
        return [self.text(number) for number in range(first, first + count)]


def md5(data: bytes) -> str:
    """A checksum as SQS gives it."""
    if len(data) <= _SHORT and _short_md5 is not None:
        short: str = _short_md5(data).hexdigest()
        return short
    state = _MD5.copy()
    state.update(data)
    found: str = state.hexdigest()
    return found


def _built_in_md5() -> Any:
    """Python's own MD5; None if it was left out."""
    try:
        return importlib.import_module("_md5").md5
    except ImportError:
        return None


_MD5: Final[Any] = hashlib.md5(usedforsecurity=False)
"""Copied for each checksum: to look up an algorithm by its name takes longer than to use it."""
_SHORT: Final = 256
"""Python's own MD5 begins sooner than OpenSSL's, which is faster once it has begun."""
_short_md5: Final[Any] = _built_in_md5()


def md5_list(bodies: list[bytes]) -> list[str]:
    """The checksums of several."""
    if _short_md5 is None:
        return [md5(body) for body in bodies]
    return [_short_md5(body).hexdigest() if len(body) <= _SHORT else md5(body) for body in bodies]


def sequence_number(sequence: int) -> str:
    """A FIFO message's sequence number: 20 digits, so that text sorts as numbers do.

    >>> sequence_number(7)
    '00000000000000000007'
    """
    return f"{sequence:020d}"


class SqsQueue:
    """A queue as SQS sees it: what does not change from call to call, as long as its configuration is the same."""

    __slots__ = ("bytes_max", "config", "id", "ids", "is_fifo", "name", "seal")

    def __init__(self, queue: QueueView, seal: Seal, ids: Numbered) -> None:
        self.id = queue.id
        self.name = queue.name
        self.config: QueueConfig = queue.config
        self.is_fifo = queue.config.is_fifo
        self.bytes_max = message_bytes_max(queue.config)
        self.seal = seal
        self.ids = ids


class ServiceBase:
    """The ground that actions stand on."""

    def __init__(self, shard: Shards, settings: SqsSettings) -> None:
        self.shard = shard
        self.limits = LIMITS[settings.limits]
        self.urls = Urls()
        self.arns = Arns(settings.region, settings.account)
        self.account = settings.account
        self._queues: dict[str, SqsQueue] = {}
        """By URL. Not the queues themselves: one that is deleted must not stay because somebody knew it."""
        self._numbered: dict[int, Numbered] = {}
        self._seals: dict[int, Seal] = {}
        self._recent = Recent()
        self._sender_attributes: dict[str, bytes | None] = {}
        self._changing: set[str] = set()
        """Queues whose configuration has a change on its way."""
        self.auto_create = settings.auto_create

    def queue(self, context: RequestContext, url: str | None, kind: type[Command], *, may_create: bool) -> SqsQueue:
        """The queue that a caller names by its URL, or by calling it, if it may do this there.

        `UnknownQueue` if it is not known here; `may_create` says whether it may be created then.
        """
        url = url or context.path_url
        if not url:
            raise missing("QueueUrl")
        known = self._queues.get(url)
        name = self.urls.name(url) if known is None else known.name
        context.queue = name
        principal = context.principal
        if principal is not ANYBODY and not principal.may(name, kind):
            raise SqsError(ACCESS_DENIED, f"Access to the resource {context.url(name)} is denied.")
        broker = self.shard.identity
        queue = broker.queues.get(name)
        if queue is None:
            if len(name) > NAME_LENGTH_MAX:
                raise no_such_queue()
            broker.refuse_damaged(name)
            raise UnknownQueue(name, may_create)
        if known is None or known.config is not queue.config or known.id != queue.id:
            if len(self._queues) >= _QUEUES_MAX:
                self._queues.clear()
            known = self._queues[url] = SqsQueue(queue, self.seal(queue.id), self.numbered(queue.id))
        return known

    async def make_known(self, name: str, may_create: bool) -> None:
        """Ask for a queue of another node, or create one that is not there if that may be."""
        if may_create:
            await self.existing(name)
        await self.learn(name)

    def sender_attributes(self, principal: Principal) -> bytes | None:
        """The stored attributes of a message that has none of its own: whom it comes from."""
        name = principal.name
        if name not in self._sender_attributes:
            self._sender_attributes[name] = encode_attributes({STORED_SENDER: name})
        return self._sender_attributes[name]

    def numbered(self, queue_id: int) -> Numbered:
        """The ids of a queue's messages, by sequence number: of those, only the last twelve digits differ."""
        numbered = self._numbered.get(queue_id)
        if numbered is None:
            if len(self._numbered) >= _SEALS_MAX:
                self._numbered.clear()
            broker = self.shard.identity
            start = broker.message_id(queue_id, 0)[:-_SEQUENCE_DIGITS]
            beyond = partial(broker.message_id, queue_id)
            numbered = self._numbered[queue_id] = Numbered(start, beyond)
        return numbered

    def seal(self, queue_id: int) -> Seal:
        """What makes and reads a queue's receipts."""
        seal = self._seals.get(queue_id)
        if seal is None:
            if len(self._seals) >= _SEALS_MAX:
                self._seals.clear()
            seal = self._seals[queue_id] = Seal(self.shard.identity.receipt_key(queue_id), queue_id, self._recent)
        return seal

    def config(self, name: str) -> QueueConfig | None:
        """A queue's configuration; None if it is not there. `QueueDamaged` if it is, and cannot be served."""
        broker = self.shard.identity
        queue = broker.queues.get(name)
        if queue is None:
            broker.refuse_damaged(name)
            return None
        return queue.config

    def queue_name(self, context: RequestContext, url: str | None, *kinds: type[Command]) -> str:
        """The queue that a caller names by its URL, or by calling it, if it may do one of these commands there."""
        url = url or context.path_url
        if not url:
            raise missing("QueueUrl")
        name = self.urls.name(url)
        self.check_rights(context, name, *kinds)
        return name

    @staticmethod
    def check_rights(context: RequestContext, name: str, *kinds: type[Command]) -> None:
        """Raise unless the caller may do one of these commands with the queue."""
        if len(name) > NAME_LENGTH_MAX:
            raise no_such_queue()
        context.queue = name
        if not context.principal.may(name, *kinds):
            raise SqsError(ACCESS_DENIED, f"Access to the resource {context.url(name)} is denied.")

    async def learn(self, *names: str, now: bool = False) -> None:
        """Ask for queues of other nodes that have to be asked for, so that `config` can tell of them."""
        for name in names:
            if self.shard.unknown(name, now=now):
                with contextlib.suppress(QueueNotFound):
                    await ask(DescribeQueue(name=name))

    async def names(
        self,
        context: RequestContext,
        enough: int,
        *,
        prefix: str = "",
        after: str = "",
        dead_letters_to: str | None = None,
    ) -> list[str]:
        """Queues that the caller may know of, in order; at least so many, if there are."""
        found: list[str] = []
        limit = min(max(enough, _NAMES_ASKED_MIN), _NAMES_ASKED)
        while len(found) < enough:
            page: list[str] = await ask(
                ListQueues(prefix=prefix, after=after, limit=limit, dead_letters_to=dead_letters_to)
            )
            found += [name for name in page if context.principal.may_see(name) and is_shown(name, prefix)]
            if len(page) < limit:
                break
            after = page[-1]
        return found

    async def existing(self, name: str) -> QueueConfig:
        """The queue's configuration. One that is not there is created, if the server is told so."""
        config = self.config(name)
        if config is None:
            await self.learn(name)
            config = self.config(name)
        if config is not None:
            return config
        if not self.auto_create:
            raise no_such_queue()
        config = default_config(kind_of(name))
        try:
            await ask(CreateQueue(name=name, config=config))
        except QueueExists:
            await self.learn(name)
            config = self.config(name)
            if config is None:
                raise no_such_queue() from None
        return config

    async def change(self, name: str, changes_of: Callable[[QueueConfig], dict[str, Any]]) -> None:
        """Change a configuration, from what it is. Changes of one queue wait for each other, so that none is lost; if
        another node was faster, it is worked out again.
        """
        await self.existing(name)
        while name in self._changing:
            await ask(DescribeQueue(name=name))  # a step later
        self._changing.add(name)
        try:
            while not await self._try_to_change(name, changes_of):
                continue
        finally:
            self._changing.discard(name)

    async def _try_to_change(self, name: str, changes_of: Callable[[QueueConfig], dict[str, Any]]) -> bool:
        """Whether the configuration was still what the changes were worked out from."""
        await self.learn(name, now=True)
        config = await self.existing(name)
        changes = changes_of(config)
        expected = {setting: getattr(config, setting) for setting in changes if hasattr(config, setting)}
        try:
            await ask(ChangeQueue(name=name, changes=changes, expected=expected))
        except QueueChanged:
            return False
        return True


def is_shown(name: str, prefix: str) -> bool:
    """Whether a queue is listed: the queue of an SNS topic is, if its name is asked for.

    >>> is_shown("orders", ""), is_shown("sns.news", ""), is_shown("sns.news", "sns.")
    (True, False, True)
    """
    return not name.startswith("sns.") or prefix.startswith("sns.")


def default_config(kind: Kind) -> QueueConfig:
    """A queue as SQS creates it when nobody says more: no dead letters."""
    return QueueConfig(
        kind=kind,
        max_receives=0,
        message_bytes_max=MESSAGE_BYTES_CEILING + STORED_OVERHEAD_BYTES,
    )
