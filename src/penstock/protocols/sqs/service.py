"""What all actions share: the shard, the limits, names, and queues as SQS sees them."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from collections.abc import Callable
from typing import Any, Final

from penstock.core.commands import ChangeQueue, Command, CreateQueue, DescribeQueue, ListQueues
from penstock.core.delivery.receipt import MessageIds, Recent, Seal, message_ids
from penstock.core.errors import QueueChanged, QueueExists, QueueNotFound
from penstock.core.queues.attributes import encode_attributes
from penstock.core.queues.config import Kind, QueueConfig, kind_of
from penstock.protocols.sqs.attributes import message_bytes_max
from penstock.protocols.sqs.context import RequestContext, UnknownQueue, ask
from penstock.protocols.sqs.errors import missing, no_such_queue
from penstock.protocols.sqs.limits import LIMITS, MESSAGE_BYTES_CEILING, NAME_LENGTH_MAX, STORED_OVERHEAD_BYTES
from penstock.protocols.sqs.message_attributes import STORED_SENDER
from penstock.protocols.sqs.names import URL_LENGTH_REMEMBERED_MAX, Arns, Scopes
from penstock.server.auth import ANYBODY, Principal, authorize_kinds
from penstock.server.settings import SqsSettings
from penstock.server.shards import QueueView, Shards

_SEALS_MAX = 10_000
_QUEUES_MAX = 10_000
_NAMES_ASKED = 1_000
_NAMES_ASKED_MIN = 200
"""Who may see few queues has many looked at for one name."""


def md5(data: bytes) -> str:
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

    def __init__(self, queue: QueueView, seal: Seal, ids: MessageIds) -> None:
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
        self.arns = Arns(settings.region, settings.account, are_many=settings.accounts == "many")
        self.scopes = Scopes(self.arns)
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
        scope = context.scope
        known: SqsQueue | None = scope.queues.get(url)
        name = scope.name(url) if known is None else known.name
        context.queue = name
        principal = context.principal
        if principal is not ANYBODY:
            authorize_kinds(principal, name, kind)
        broker = self.shard.identity
        queue = broker.queues.get(name)
        if queue is None:
            if len(name) > NAME_LENGTH_MAX:
                raise no_such_queue()
            broker.refuse_damaged(name)
            raise UnknownQueue(name, may_create)
        if known is None or known.config is not queue.config or known.id != queue.id:
            if len(scope.queues) >= _QUEUES_MAX:
                scope.queues.clear()
            known = SqsQueue(queue, self.seal(queue.id), self.message_ids(queue.id))
            if len(url) <= URL_LENGTH_REMEMBERED_MAX:
                scope.queues[url] = known
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

    def message_ids(self, queue_id: int) -> MessageIds:
        """The ids of a queue's messages, by sequence number."""
        return message_ids(self.shard.identity.meta.realm, queue_id)

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
        name = context.scope.name(url)
        self.check_rights(context, name, *kinds)
        return name

    @staticmethod
    def check_rights(context: RequestContext, name: str, *kinds: type[Command]) -> None:
        """Raise unless the caller may do one of these commands with the queue."""
        if len(name) > NAME_LENGTH_MAX:
            raise no_such_queue()
        context.queue = name
        authorize_kinds(context.principal, name, *kinds)

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
        """Queues of the caller's account and region that it may know of, in order; at least so many, if there are. Or
        the sources of a queue's dead letters, which are where that is.
        """
        found: list[str] = []
        limit = min(max(enough, _NAMES_ASKED_MIN), _NAMES_ASKED)
        while len(found) < enough:
            page: list[str] = await ask(
                ListQueues(prefix=prefix, after=after, limit=limit, dead_letters_to=dead_letters_to)
            )
            found += [
                name
                for name in page
                if (dead_letters_to is not None or context.scope.has(name)) and context.principal.may_see(name)
            ]
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


def default_config(kind: Kind) -> QueueConfig:
    """A queue as SQS creates it when nobody says more: no dead letters."""
    return QueueConfig(
        kind=kind,
        max_receives=0,
        message_bytes_max=MESSAGE_BYTES_CEILING + STORED_OVERHEAD_BYTES,
    )
