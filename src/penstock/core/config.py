"""A queue's configuration: every setting, its range and its default, in one table of fields.

Times are milliseconds. The ranges are checked in one place, `check`, for creation and for changes alike.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import msgspec

from penstock.core.backoff import backoff
from penstock.core.errors import InvalidConfig, InvalidName

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

LEASE_MS_MAX = 12 * HOUR_MS
DELAY_MS_MAX = 100 * 366 * DAY_MS
PRIORITY_MAX = 9
DEDUP_WINDOW_MS = 5 * MINUTE_MS
MESSAGE_BYTES_CEILING = 256 * 1024 * 1024
BATCH_BYTES_MAX = 256 * 1024 * 1024
"""How much one send, or one unit of work, may carry."""

Kind = Literal["standard", "fifo"]
Scope = Literal["queue", "group"]
BackoffShape = Literal["none", "fixed", "linear", "exponential"]
PolicyName = Literal["at_least_once", "consume_times", "consume_once"]


_TICK_MS_MAX = 100


class Backoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a message waits in the retry lane before its next delivery.

    >>> Backoff("linear", base_ms=100).delay_ms(3, sequence=7)
    300
    >>> Backoff("exponential", base_ms=100, ceiling_ms=1000, seed=1).delay_ms(9, sequence=7) <= 1000
    True
    """

    shape: BackoffShape = "none"
    base_ms: int = 1_000
    ceiling_ms: int = HOUR_MS
    seed: int = 0

    def delay_ms(self, failures: int, sequence: int) -> int:
        """The wait after the `failures`-th time in the retry lane; its jitter depends on the arguments and the seed.

        With `exponential`, every wait is anything from 0 to its span, evenly. But two that follow each other complement
        each other: the shorter the one is, the longer is the other. So no message has short waits only, and the waits
        of many messages spread all the same.
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
        """Waits end at multiples of this. Jitter would wake the channel for every message of a large outage apart.

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
    """What a queue is told to do. Immutable: a change makes another one, through `changed`.

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

    kind: Kind = "standard"
    """A name that ends with `.fifo` makes a FIFO queue. Other queues can be FIFO, too."""
    lease_ms: int = 30 * SECOND_MS
    """How long a receiver has before its messages go to somebody else (SQS: visibility timeout)."""
    retention_ms: int | None = 4 * DAY_MS
    """Messages older than this go, whoever still wants them. None keeps them for ever."""
    retention_bytes: int | None = None
    """The oldest messages go when the queue is larger than this. None: no limit by size."""
    delay_ms: int = 0
    """How long every message waits before it can be received."""
    message_bytes_max: int = 1024 * 1024
    """Body and attributes of one message together."""
    receive_wait_ms: int = 0
    """How long a receive waits for messages when it does not say so itself."""
    max_receives: int = 10
    """After this many failed deliveries a message goes to the dead-letter queue. 0: never."""
    dead_letter: str | None = None
    """The dead-letter queue. None: one of its own, named after the queue (`orders.dead`)."""
    backoff: Backoff = DEFAULT_BACKOFF
    policy: PolicyName = "at_least_once"
    consume_times: int = 1
    """With policy `consume_times`: how often a message may leave the process at most."""
    deliver_unsynced: bool = False
    """Push messages to those who listen while their send is being written to the disk. A crash may take them back."""
    partitions: int = 1
    content_dedup: bool = False
    """FIFO: a message without a dedup id is deduplicated by the SHA-256 of its body."""
    dedup_scope: Scope = "queue"
    throughput_scope: Scope = "queue"
    throughput_per_second: int | None = None
    """FIFO: messages that each queue or group may take a second. None: no limit."""
    in_flight_max: int = 120_000
    """How many messages a channel may have leased at once."""
    consumer_retention_ms: int | None = 14 * DAY_MS
    """A named consumer that was silent for this long is forgotten. None: never."""
    tags: dict[str, str] = {}
    labels: dict[str, str] = {}
    """What front ends keep with a queue and the core does not look at."""

    @property
    def is_fifo(self) -> bool:
        """Whether order holds within groups."""
        return self.kind == "fifo"

    @property
    def receives_max(self) -> int:
        """The number of deliveries after which a failure is final; 0 for no such number."""
        at_most = {"at_least_once": 0, "consume_times": self.consume_times, "consume_once": 1}[self.policy]
        limits = [limit for limit in (at_most, self.max_receives) if limit]
        return min(limits, default=0)

    @property
    def expired_wait(self) -> bool:
        """Whether messages wait whose lease ran out: they have waited for that already, but a queue may be told to."""
        return self.backoff != DEFAULT_BACKOFF

    @property
    def leases_are_durable(self) -> bool:
        """Whether a lease is committed before the message leaves the process (the at-most policies)."""
        return self.policy != "at_least_once"

    def changed(self, changes: dict[str, Any]) -> QueueConfig:
        """This configuration with some settings changed, checked."""
        unknown = sorted(set(changes) - set(self.__struct_fields__))
        if unknown:
            raise InvalidConfig(
                f"there is no setting {unknown[0]!r}; the settings are: {', '.join(self.__struct_fields__)}"
            )
        try:
            config = msgspec.convert(msgspec.to_builtins(self) | msgspec.to_builtins(changes), QueueConfig)
        except (msgspec.ValidationError, TypeError) as error:
            raise InvalidConfig(_explained(error)) from None
        config.check()
        return config

    def check(self) -> None:
        """Raise `InvalidConfig` for the first setting that is of a wrong type, or out of its range."""
        try:
            msgspec.convert(msgspec.to_builtins(self), QueueConfig)
            msgspec.msgpack.encode((self.tags, self.labels))
        except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter: half a character
            raise InvalidConfig(_explained(error)) from None
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidConfig(out_of_range(name, value, low, high))
        backoff = self.backoff
        for name, value in (("base_ms", backoff.base_ms), ("ceiling_ms", backoff.ceiling_ms)):
            if not 0 <= value <= DELAY_MS_MAX:
                raise InvalidConfig(f"backoff {name} is {value}: it must be from 0 to {DELAY_MS_MAX}")
        if self.dead_letter is not None:
            check_name(self.dead_letter, "dead-letter queue")
        if not self.is_fifo:
            for name in ("content_dedup", "throughput_per_second"):
                if getattr(self, name):
                    raise InvalidConfig(f"{name} is a setting of FIFO queues: create the queue with kind='fifo'")
        if self.deliver_unsynced and (self.is_fifo or self.leases_are_durable):
            raise InvalidConfig(
                "deliver_unsynced is a setting of standard queues with policy 'at_least_once': what a crash takes back "
                "would break an order, or a promise of at most so many deliveries"
            )
        if self.throughput_scope == "group" and self.dedup_scope != "group":
            raise InvalidConfig("throughput_scope='group' needs dedup_scope='group' as well")


_RANGES: tuple[tuple[str, int, int], ...] = (
    ("lease_ms", 0, LEASE_MS_MAX),
    ("retention_ms", MINUTE_MS, 14 * DAY_MS),
    ("retention_bytes", 1, 1 << 62),
    ("delay_ms", 0, DELAY_MS_MAX),
    ("message_bytes_max", 1, MESSAGE_BYTES_CEILING),
    ("receive_wait_ms", 0, 20 * SECOND_MS),
    ("max_receives", 0, 1_000),
    ("consume_times", 1, 1_000),
    ("partitions", 1, 1_024),
    ("throughput_per_second", 1, 1 << 40),
    ("in_flight_max", 1, 10_000_000),
    ("consumer_retention_ms", MINUTE_MS, DELAY_MS_MAX),
)

_CHOICES = {"kind": Kind, "policy": PolicyName, "dedup_scope": Scope, "throughput_scope": Scope}
_CHOICES["backoff.shape"] = BackoffShape


def out_of_range(name: str, value: int, low: int, high: int) -> str:
    """What is wrong with a value. Lengths of time are said in seconds, as callers give them.

    >>> out_of_range("lease_ms", 50_000_000, 0, 43_200_000)
    'lease is 50000 seconds: it must be from 0 to 43200 seconds'
    """
    if not name.endswith("_ms"):
        return f"{name} is {value}: it must be from {low} to {high}"
    shown, least, most = (f"{time_ms / SECOND_MS:.15g}" for time_ms in (value, low, high))
    return f"{name.removesuffix('_ms')} is {shown} seconds: it must be from {least} to {most} seconds"


def _explained(error: Exception) -> str:
    """A complaint of msgspec, with the setting in front, and the choices if there are some."""
    found = re.fullmatch(r"(.*) - at `\$\.([\w.]+?)(_ms)?(?:\[.*)?`", str(error), re.DOTALL)
    if found is None:
        return str(error)
    text, name = found[1], found[2]
    if name == "backoff":
        shapes = ", ".join(get_args(BackoffShape))
        return (
            f'backoff must say a shape, and how long: {{"shape": "linear", "base_ms": 1000}}; the shapes are {shapes}'
        )
    if name not in _CHOICES or not text.startswith("Invalid enum value "):
        return f"{name}: {text}"
    *others, last = get_args(_CHOICES[name])
    return f"{name} is {text.removeprefix('Invalid enum value ')}: it must be {', '.join(others)} or {last}"


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
    penstock.core.errors.InvalidConfig: this build does not know the setting colour, without which ...
    """
    known = QueueConfig.__struct_fields__
    later = {name: value for name, value in settings.items() if name not in known}
    missed = [name for name in needs if name in later]
    if missed:
        raise InvalidConfig(
            f"this build does not know the setting {', '.join(missed)}, without which the queue must not be served: "
            "use the build that made it, or a later one"
        )
    return msgspec.convert({name: settings[name] for name in settings if name in known}, QueueConfig), later


UNCHANGEABLE = frozenset({"kind", "partitions"})
"""Settings that a queue keeps for life."""

FIFO_SUFFIX = ".fifo"


def kind_of(name: str, said: Kind | None = None) -> Kind:
    """The kind that a new queue of this name has: FIFO if the name ends with `.fifo`, else what was said.

    >>> kind_of("orders"), kind_of("orders.fifo"), kind_of("orders", "fifo")
    ('standard', 'fifo', 'fifo')
    >>> kind_of("orders.fifo", "standard")
    Traceback (most recent call last):
        ...
    penstock.core.errors.InvalidConfig: a name that ends with .fifo makes a FIFO queue, and 'orders.fifo' is to be ...
    """
    if not name.endswith(FIFO_SUFFIX):
        return said or "standard"
    if said == "standard":
        raise InvalidConfig(
            f"a name that ends with .fifo makes a FIFO queue, and {name!r} is to be a standard one: choose another "
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
