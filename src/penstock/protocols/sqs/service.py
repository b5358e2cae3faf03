"""What all actions share: the shard, the limits, names, and who calls.

Actions are coroutines that await `ask(command)`, and nothing else. They are driven without tasks: `ask` hands its
command out to whoever drives the coroutine (`server.py`), and gets the settled call back. A test can drive one by hand:

    coroutine = service.DeleteMessage(caller, request)
    command = coroutine.send(None)
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from penstock.core.commands import ChangeQueue, Command, CreateQueue, DescribeQueue, ListQueues
from penstock.core.config import Kind, QueueConfig, kind_of
from penstock.core.errors import PenstockError, QueueChanged, QueueExists, QueueNotFound
from penstock.core.receipt import Recent, Seal
from penstock.protocols.sqs.errors import ACCESS_DENIED, SqsError, missing, no_such_queue
from penstock.protocols.sqs.limits import LIMITS, MESSAGE_BYTES_CEILING, NAME_LENGTH_MAX, STORED_OVERHEAD_BYTES
from penstock.protocols.sqs.names import Arns, Urls, queue_url
from penstock.protocols.sqs.plain import Remembered
from penstock.protocols.sqs.shapes import Shape
from penstock.server.auth import Principal
from penstock.server.settings import SqsSettings
from penstock.server.shard import Call
from penstock.server.shards import Names, Shards

_SEQUENCE_DIGITS: Final = 12
SEQUENCES_MAX: Final = 16**12
"""Below this, the ids of a queue's messages differ in their last twelve digits only."""
_HEX: Final[list[str]] = [f"{number:02x}" for number in range(256)]
_SEALS_MAX = 10_000
_NAMES_ASKED = 1_000
_NAMES_ASKED_MIN = 200
"""Who may see few queues has many looked at for one name."""

Asked = Command | tuple[Command, ...]
"""What a coroutine hands out: a command, or several that go through the same step."""
Answer = Shape | bytes | None
"""What an action returns: its result; or that as JSON already, for a caller that is plain."""


@types.coroutine
def ask(command: Command) -> Generator[Asked, Any, Any]:
    """The reply to a command, or its error raised."""
    call: Call = yield command
    return call.result()


@types.coroutine
def ask_all(commands: Sequence[Command]) -> Generator[Asked, Any, list[Any]]:
    """The replies to several commands, in their order; an error of the core stands in the place of its reply."""
    calls: list[Call] = yield tuple(commands)
    return [call.error if isinstance(call.error, PenstockError) else call.result() for call in calls]


class Numbered:
    """Texts that start the same and end with a number in twelve hexadecimal digits.

    >>> numbered = Numbered("x-")
    >>> numbered.text(255), numbered.text(256)
    ('x-0000000000ff', 'x-000000000100')
    """

    __slots__ = ("_block", "_start", "_started")

    def __init__(self, start: str) -> None:
        self._start = start
        self._block = -1
        self._started = ""

    def text(self, number: int) -> str:
        """The text with this number. Those that lie near each other share all but two digits, which are made once."""
        block = number >> 8
        if block != self._block:
            self._started = self._start + f"{block:010x}"
            self._block = block
        return self._started + _HEX[number & 255]

    def texts(self, first: int, count: int) -> list[str]:
        """So many texts from a number on."""
        return [self.text(number) for number in range(first, first + count)]


class Caller:
    """Who calls, and by which address."""

    __slots__ = ("_base_url", "is_plain", "path_url", "principal", "queue")

    def __init__(
        self, base_url: str, principal: Principal, path_url: str | None = None, is_plain: bool = False
    ) -> None:
        self._base_url = base_url
        self.principal = principal
        self.is_plain = is_plain
        """Whether the request came as JSON in which every text is plain; the answer may be bytes of JSON then."""
        self.path_url = path_url
        """The request's own path, if that is the address of a queue."""
        self.queue = ""
        """The queue that the call is about, once it is known."""

    def url(self, name: str) -> str:
        """A queue's URL, for this caller."""
        return queue_url(self._base_url, name)

    @property
    def sender_id(self) -> str | None:
        """Whom messages come from; None if callers are not known."""
        return self.principal.name if self.principal.access_key else None


class ServiceBase:
    """The ground that actions stand on."""

    def __init__(self, shard: Shards, settings: SqsSettings) -> None:
        self.shard = shard
        self.limits = LIMITS[settings.limits]
        self.urls = Urls(needs_account=self.limits.is_strict)
        self.arns = Arns(settings.region, settings.account)
        self.account = settings.account
        self._numbered: dict[int, Numbered] = {}
        self._seals: dict[int, Seal] = {}
        self._recent = Recent()
        self.remembered = Remembered()
        self._changing: set[str] = set()
        """Queues whose configuration has a change on its way."""
        self.auto_create = settings.auto_create

    @property
    def broker(self) -> Names:
        """The broker as it is now, to be read from: configurations, ids, receipts. Changes go through `ask`."""
        return self.shard.identity

    def message_id(self, queue_id: int, sequence: int) -> str:
        """As the broker's, faster: of the ids of a queue only the last twelve digits differ, for long enough."""
        if sequence < SEQUENCES_MAX:
            return self.numbered(queue_id).text(sequence)
        return self.broker.message_id(queue_id, sequence)

    def message_ids(self, queue_id: int, first: int, count: int) -> list[str]:
        """The ids of messages one after the other."""
        if first + count > SEQUENCES_MAX:
            return [self.broker.message_id(queue_id, sequence) for sequence in range(first, first + count)]
        return self.numbered(queue_id).texts(first, count)

    def numbered(self, queue_id: int) -> Numbered:
        """The ids of a queue's messages, by sequence number."""
        numbered = self._numbered.get(queue_id)
        if numbered is None:
            if len(self._numbered) >= _SEALS_MAX:
                self._numbered.clear()
            start = self.broker.message_id(queue_id, 0)[:-_SEQUENCE_DIGITS]
            numbered = self._numbered[queue_id] = Numbered(start)
        return numbered

    def seal(self, queue_id: int) -> Seal:
        """What makes and reads a queue's receipts."""
        seal = self._seals.get(queue_id)
        if seal is None:
            if len(self._seals) >= _SEALS_MAX:
                self._seals.clear()
            seal = self._seals[queue_id] = Seal(self.broker.receipt_key(queue_id), queue_id, self._recent)
        return seal

    def config(self, name: str) -> QueueConfig | None:
        """A queue's configuration; None if it is not there. `QueueDamaged` if it is, and cannot be served."""
        queue = self.broker.queues.get(name)
        if queue is None:
            self.broker.refuse_damaged(name)
            return None
        return queue.config

    def queue_name(self, caller: Caller, url: str | None, *kinds: type[Command]) -> str:
        """The queue that a caller names by its URL, or by calling it, if it may do one of these commands there."""
        url = url or caller.path_url
        if not url:
            raise missing("QueueUrl")
        name = self.urls.name(url)
        self.check_rights(caller, name, *kinds)
        return name

    @staticmethod
    def check_rights(caller: Caller, name: str, *kinds: type[Command]) -> None:
        """Raise unless the caller may do one of these commands with the queue."""
        if len(name) > NAME_LENGTH_MAX:
            raise no_such_queue()
        caller.queue = name
        if not caller.principal.may(name, *kinds):
            raise SqsError(ACCESS_DENIED, f"Access to the resource {caller.url(name)} is denied.")

    async def learn(self, *names: str, now: bool = False) -> None:
        """Ask for queues of other nodes that have to be asked for, so that `config` can tell of them."""
        for name in names:
            if self.shard.unknown(name, now=now):
                with contextlib.suppress(QueueNotFound):
                    await ask(DescribeQueue(name=name))

    async def names(
        self, caller: Caller, enough: int, *, prefix: str = "", after: str = "", dead_letters_to: str | None = None
    ) -> list[str]:
        """Queues that the caller may know of, in order; at least so many, if there are."""
        found: list[str] = []
        limit = min(max(enough, _NAMES_ASKED_MIN), _NAMES_ASKED)
        while len(found) < enough:
            page: list[str] = await ask(
                ListQueues(prefix=prefix, after=after, limit=limit, dead_letters_to=dead_letters_to)
            )
            found += [name for name in page if caller.principal.may_see(name)]
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
