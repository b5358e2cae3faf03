"""A queue's configuration: every setting is declared here, and nowhere else (see `core/settings.py`).

Times are milliseconds here and seconds for users. A new setting is a field of `QueueConfig` and the place that obeys
it; `python -m tools.generate_settings` and `python -m docs.draw` write the signature and the table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from penstock.core.backoff import backoff
from penstock.core.errors import InvalidConfig, InvalidName
from penstock.core.settings import SECOND_MS, Declared, Setting, SqsAttribute, declared

MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

LEASE_MS_MAX = 12 * HOUR_MS
DELAY_MS_MAX = 100 * 366 * DAY_MS
PRIORITY_MAX = 9
DEDUP_WINDOW_MS = 5 * MINUTE_MS
MESSAGE_BYTES_CEILING = 256 * 1024 * 1024
BATCH_BYTES_MAX = 256 * 1024 * 1024
MARKED_BYTES_MAX = 4 * 1024 * 1024 * 1024
"""Of work with a mark, beside what was staged: a server has a limit of its own for it (`publish_bytes_max`)."""
"""How much one send, or one unit of work, may carry."""

Kind = Literal["standard", "fifo"]
Scope = Literal["queue", "group"]
BackoffShape = Literal["none", "fixed", "linear", "exponential"]
PolicyName = Literal["at_least_once", "consume_times", "consume_once"]


_TICK_MS_MAX = 100


class Backoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a failed message waits before its next delivery.

    >>> Backoff("linear", base_ms=100).delay_ms(3, sequence=7)
    300
    >>> Backoff("exponential", base_ms=100, ceiling_ms=1000, seed=1).delay_ms(9, sequence=7) <= 1000
    True
    """

    shape: Annotated[BackoffShape, Setting("How the wait grows from one failure to the next.")] = "none"
    base_ms: Annotated[int, Setting("The first wait.", 0, DELAY_MS_MAX)] = 1_000
    ceiling_ms: Annotated[int, Setting("The longest wait.", 0, DELAY_MS_MAX)] = HOUR_MS
    seed: Annotated[int, Setting("Another seed gives other jitter.", 0, (1 << 62) - 1)] = 0

    def delay_ms(self, failures: int, sequence: int) -> int:
        """The wait after the `failures`-th wait. Its jitter depends only on the arguments and the seed.

        With `exponential`, a wait is evenly distributed from 0 to its span. Two waits that follow each other complement
        each other: the shorter one is, the longer the other. So no message has only short waits, and the waits of many
        messages are spread out.
        """
        if self.shape == "none":
            return 0
        if self.shape == "fixed":
            return min(self.base_ms, self.ceiling_ms)
        if self.shape == "linear":
            return min(self.base_ms * failures, self.ceiling_ms)
        span = int(backoff(failures, self.base_ms, self.ceiling_ms))
        part = (_jitter(self.seed, sequence, (failures + 1) // 2) * (span + 1)) >> 64
        return part if failures % 2 else span - part

    @property
    def tick_ms(self) -> int:
        """Waits end at multiples of this, so that a channel is not woken for each message of a large outage.

        >>> Backoff("exponential").tick_ms, Backoff("exponential", base_ms=10).tick_ms, Backoff("fixed").tick_ms
        (100, 1, 1)
        """
        return min(_TICK_MS_MAX, max(1, self.base_ms // 10)) if self.shape == "exponential" else 1


def _jitter(seed: int, sequence: int, failures: int) -> int:
    """A well mixed 64-bit number from three (splitmix64), so that waits look random and can be replayed."""
    mask = (1 << 64) - 1
    x = (seed * 0x9E3779B97F4A7C15 + sequence * 0xBF58476D1CE4E5B9 + failures * 0x94D049BB133111EB) & mask
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        x = ((x ^ (x >> 30)) * multiplier) & mask
    return x ^ (x >> 31)


DEFAULT_BACKOFF = Backoff("exponential", base_ms=SECOND_MS, ceiling_ms=5 * MINUTE_MS)
"""For a queue that is told nothing else: of ten deliveries, the last one is 85 s after the first one at least."""


class QueueConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The settings of a queue. Immutable: `changed` returns a changed copy.

    >>> QueueConfig(lease_ms=5_000).changed({"max_receives": 3}).max_receives
    3
    >>> QueueConfig().changed({"lease_ms": -1})
    Traceback (most recent call last):
        ...
    penstock.core.errors.InvalidConfig: lease is -0.001 seconds: it must be from 0 to 43200 seconds
    >>> QueueConfig().changed({"policy": "never"})
    Traceback (most recent call last):
        ...
    penstock.core.errors.InvalidConfig: policy is 'never': it must be at_least_once, consume_times or consume_once
    """

    kind: Annotated[
        Kind,
        Setting("A name that ends with `.fifo` makes a FIFO queue. Other queues can be FIFO, too.", for_life=True),
    ] = "standard"
    lease_ms: Annotated[
        int,
        Setting(
            "How long a receiver has to settle its messages, before others can receive them.",
            0,
            LEASE_MS_MAX,
            sqs=SqsAttribute("VisibilityTimeout", 0, 43_200),
        ),
    ] = 30 * SECOND_MS
    retention_ms: Annotated[
        int | None,
        Setting(
            "Messages older than this are deleted, even if nobody has received them. None: never.",
            MINUTE_MS,
            14 * DAY_MS,
            sqs=SqsAttribute("MessageRetentionPeriod", 60, 1_209_600),
        ),
    ] = 4 * DAY_MS
    retention_bytes: Annotated[
        int | None,
        Setting("The oldest messages are deleted when the queue is larger than this. None: no limit.", 1, 1 << 62),
    ] = None
    delay_ms: Annotated[
        int,
        Setting(
            "How long every message waits before it can be received.",
            0,
            DELAY_MS_MAX,
            sqs=SqsAttribute("DelaySeconds", 0, 900, relaxed=(0, 366 * 24 * 3_600)),
        ),
    ] = 0
    message_bytes_max: Annotated[
        int,
        Setting(
            "How large one message may be: its body and attributes together.",
            1,
            MESSAGE_BYTES_CEILING,
            sqs=SqsAttribute("MaximumMessageSize", 1_024, 1024 * 1024, relaxed=(1, 1024 * 1024)),
        ),
    ] = 1024 * 1024
    receive_wait_ms: Annotated[
        int,
        Setting(
            "How long a receive waits for messages if the caller does not say.",
            0,
            20 * SECOND_MS,
            sqs=SqsAttribute("ReceiveMessageWaitTimeSeconds", 0, 20),
        ),
    ] = 0
    max_receives: Annotated[
        int,
        Setting(
            "How many failed deliveries move a message to the dead-letter queue. 0: it is never moved.",
            0,
            1_000,
            sqs=SqsAttribute("RedrivePolicy.maxReceiveCount", 1, 1_000),
        ),
    ] = 10
    dead_letter: Annotated[
        str | None,
        Setting(
            "The dead-letter queue. None: a queue that is named after this one, such as `orders.dead`.",
            sqs=SqsAttribute("RedrivePolicy.deadLetterTargetArn"),
        ),
    ] = None
    backoff: Annotated[
        Backoff,
        Setting(
            "How long a failed message waits before its next delivery.",
            example='{"shape": "linear", "base_ms": 1000}',
        ),
    ] = DEFAULT_BACKOFF
    policy: Annotated[PolicyName, Setting("How often a message may be delivered.")] = "at_least_once"
    consume_times: Annotated[
        int, Setting("With policy `consume_times`: how often a message may be delivered at most.", 1, 1_000)
    ] = 1
    deliver_unsynced: Annotated[
        bool,
        Setting("Push messages before they are synced to disk. After a crash, such a message may not exist."),
    ] = False
    partitions: Annotated[
        int, Setting("In a cluster: over how many shards the queue is spread.", 1, 1_024, for_life=True)
    ] = 1
    content_dedup: Annotated[
        bool,
        Setting(
            "FIFO: deduplicate messages without a dedup id by the SHA-256 of their body.",
            sqs=SqsAttribute("ContentBasedDeduplication"),
        ),
    ] = False
    dedup_scope: Annotated[
        Scope,
        Setting(
            "FIFO: whether a dedup id must be unique in the whole queue or only in its group.",
            sqs=SqsAttribute("DeduplicationScope", words={"queue": "queue", "messageGroup": "group"}),
        ),
    ] = "queue"
    throughput_scope: Annotated[
        Scope,
        Setting(
            "FIFO: whether `throughput_per_second` limits the whole queue or each group.",
            sqs=SqsAttribute("FifoThroughputLimit", words={"perQueue": "queue", "perMessageGroupId": "group"}),
        ),
    ] = "queue"
    throughput_per_second: Annotated[
        int | None,
        Setting("FIFO: how many messages a second the queue, or each group, accepts. None: no limit.", 1, 1 << 40),
    ] = None
    in_flight_max: Annotated[int, Setting("How many messages of a channel may be leased at once.", 1, 10_000_000)] = (
        120_000
    )
    consumer_retention_ms: Annotated[
        int | None,
        Setting(
            "A named consumer is deleted after this long without a sign of life. None: never.", MINUTE_MS, DELAY_MS_MAX
        ),
    ] = 14 * DAY_MS
    tags: Annotated[
        dict[str, str], Setting("Your own names and values, stored with the queue.", example='{"team": "sales"}')
    ] = {}
    labels: Annotated[
        dict[str, str],
        Setting("Names and values that protocols such as SQS store with the queue.", example='{"team": "sales"}'),
    ] = {}

    @property
    def is_fifo(self) -> bool:
        """Whether the order is kept within groups."""
        return self.kind == "fifo"

    @property
    def receives_max(self) -> int:
        """After how many deliveries a failure is final. 0: it never is."""
        at_most = {"at_least_once": 0, "consume_times": self.consume_times, "consume_once": 1}[self.policy]
        limits = [limit for limit in (at_most, self.max_receives) if limit]
        return min(limits, default=0)

    @property
    def expired_wait(self) -> bool:
        """Whether messages wait for the backoff after their lease ran out. By default they are ready at once."""
        return self.backoff != DEFAULT_BACKOFF

    @property
    def leases_are_durable(self) -> bool:
        """Whether a lease is committed before the message leaves the process (the at-most policies)."""
        return self.policy != "at_least_once"

    def changed(self, changes: Mapping[str, Any]) -> QueueConfig:
        """A copy of this configuration with some fields changed. The copy is checked."""
        unknown = sorted(set(changes) - set(self.__struct_fields__))
        if unknown:
            raise InvalidConfig(
                f"there is no setting {unknown[0]!r}; the settings are: {', '.join(self.__struct_fields__)}"
            )
        checked = {
            each.field: each.checked(changes[each.field], each.name)
            for each in SETTINGS.values()
            if each.field in changes
        }
        config = msgspec.structs.replace(self, **checked)
        config.check()
        return config

    def check(self) -> None:
        """Raise `InvalidConfig` for the first setting with a wrong type, out of its range, or contradicting another."""
        for each in SETTINGS.values():
            each.check(getattr(self, each.field))
        if self.dead_letter is not None:
            check_name(self.dead_letter, "dead-letter queue")
        if not self.is_fifo:
            for name in ("content_dedup", "throughput_per_second"):
                if getattr(self, name):
                    raise InvalidConfig(f"{name} is a setting of FIFO queues: create a FIFO queue for it")
        if self.deliver_unsynced and (self.is_fifo or self.leases_are_durable):
            raise InvalidConfig(
                "deliver_unsynced is a setting of standard queues with policy 'at_least_once': in other queues, a "
                "crash could break the order, or the limit on deliveries"
            )
        if self.throughput_scope == "group" and self.dedup_scope != "group":
            raise InvalidConfig("throughput_scope='group' needs dedup_scope='group' as well")


SETTINGS: Mapping[str, Declared] = declared(QueueConfig)
"""Every setting of a queue, by the name that users give it: `lease`, and not `lease_ms`."""


def read_changes(given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings as users give them, as fields of `QueueConfig`. What is refused is named as given, after `prefix`.

    >>> read_changes({"lease": 5, "max_receives": 3})
    {'lease_ms': 5000, 'max_receives': 3}
    >>> read_changes({"lease": -1}, "settings.")
    Traceback (most recent call last):
        ...
    penstock.core.errors.InvalidConfig: settings.lease is -1 seconds: it must be from 0 to 43200 seconds
    """
    changes: dict[str, Any] = {}
    for name, value in given.items():
        if name not in SETTINGS:
            raise InvalidConfig(f"there is no setting {name!r}; the settings are: {', '.join(SETTINGS)}")
        changes[SETTINGS[name].field] = SETTINGS[name].read(value, prefix + name)
    return changes


def out_of_range(name: str, value: int, low: int, high: int) -> str:
    """What is wrong with a length of time, which is said in seconds, as callers give it.

    >>> out_of_range("lease_ms", 50_000_000, 0, 43_200_000)
    'lease is 50000 seconds: it must be from 0 to 43200 seconds'
    """
    shown, least, most = (f"{time_ms / SECOND_MS:.15g}" for time_ms in (value, low, high))
    return f"{name.removesuffix('_ms')} is {shown} seconds: it must be from {least} to {most} seconds"


def stored_settings(config: QueueConfig, later: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as it is stored, with the settings of a later build that were found there."""
    return {**msgspec.to_builtins(config), **later}


def from_stored(settings: Mapping[str, Any], needs: Iterable[str] = ()) -> tuple[QueueConfig, dict[str, Any]]:
    """A stored configuration, and the settings in it that this build does not know: they are kept, and passed over.

    >>> config, later = from_stored({"lease_ms": 5_000, "colour": "blue"})
    >>> config.lease_ms, later
    (5000, {'colour': 'blue'})
    >>> from_stored({"colour": "blue"}, needs=["colour"])
    Traceback (most recent call last):
        ...
    penstock.core.errors.InvalidConfig: this build does not know the setting colour, which the queue ...
    """
    known = QueueConfig.__struct_fields__
    later = {name: value for name, value in settings.items() if name not in known}
    missed = [name for name in needs if name in later]
    if missed:
        raise InvalidConfig(
            f"this build does not know the setting {', '.join(missed)}, which the queue needs: "
            "use the version that created the queue, or a later one"
        )
    return msgspec.convert({name: settings[name] for name in settings if name in known}, QueueConfig), later


UNCHANGEABLE = frozenset(each.field for each in SETTINGS.values() if each.setting.for_life)
"""Settings that a queue keeps for life."""

FIFO_SUFFIX = ".fifo"


def kind_of(name: str, said: Kind | None = None) -> Kind:
    """The kind that a new queue of this name has: FIFO if the name ends with `.fifo`, else what was said.

    >>> kind_of("orders"), kind_of("orders.fifo"), kind_of("orders", "fifo")
    ('standard', 'fifo', 'fifo')
    >>> kind_of("orders.fifo", "standard")
    Traceback (most recent call last):
        ...
    penstock.core.errors.InvalidConfig: a name that ends with .fifo makes a FIFO queue, so 'orders.fifo' cannot be ...
    """
    if not name.endswith(FIFO_SUFFIX):
        return said or "standard"
    if said == "standard":
        raise InvalidConfig(
            f"a name that ends with .fifo makes a FIFO queue, so {name!r} cannot be a standard queue: choose another "
            "name, or leave out the kind"
        )
    return "fifo"


def config_for(name: str, config: QueueConfig) -> QueueConfig:
    """The configuration as a new queue of this name gets it. Standard is the default, and not a wish.

    >>> config_for("orders.fifo", QueueConfig(lease_ms=5_000)).kind
    'fifo'
    """
    if config.is_fifo or not name.endswith(FIFO_SUFFIX):
        return config
    return msgspec.structs.replace(config, kind=kind_of(name))


NAME_LENGTH_MAX = 128
_NAME = re.compile(r"[A-Za-z0-9._#-]{1,128}\Z")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._#-]")


def check_name(name: str, what: str) -> str:
    """The name itself, or `InvalidName` saying what is wrong with it.

    >>> check_name("orders.fifo", "queue")
    'orders.fifo'
    >>> check_name("my orders", "queue")
    Traceback (most recent call last):
        ...
    penstock.core.errors.InvalidName: 'my orders' cannot name a queue because of ' ': use 1 to 128 letters (a to z), ...
    """
    if not isinstance(name, str) or not _NAME.match(name):
        wrong = _NOT_IN_A_NAME.search(name) if isinstance(name, str) else None
        reason = f" because of {wrong[0]!r}" if wrong else ""
        raise InvalidName(
            f"{name!r} cannot name a {what}{reason}: use 1 to {NAME_LENGTH_MAX} letters (a to z), digits, dots, "
            "dashes, underscores or '#'"
        )
    return name


def dead_letter_name(queue: str) -> str:
    """The name of a queue's own dead-letter queue.

    >>> dead_letter_name("orders"), dead_letter_name("orders.fifo")
    ('orders.dead', 'orders.dead.fifo')
    """
    is_fifo = queue.endswith(FIFO_SUFFIX)
    stem, ending = (queue.removesuffix(FIFO_SUFFIX), f".dead{FIFO_SUFFIX}") if is_fifo else (queue, ".dead")
    if len(stem) + len(ending) > NAME_LENGTH_MAX:
        stem = f"{stem[:100]}.{hashlib.sha256(queue.encode()).hexdigest()[:12]}"
    return stem + ending
