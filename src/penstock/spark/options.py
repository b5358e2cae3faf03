"""The connector's options: the Kafka connector's names where it has them. What is unknown or wrong is an error."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import Any

from penstock.client.remote.address import Address
from penstock.core.errors import InvalidName, InvalidRequest
from penstock.core.queues.config import check_name
from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.spark.errors import InvalidOption
from penstock.store.journal.kafka_options import RESERVED_PROPERTIES

EARLIEST = -2
LATEST = -1
Start = int | dict[str, dict[int, int]]
"""EARLIEST or LATEST for every queue, or an offset (or one of these) for each, by partition. EARLIEST - n: n before the
latest."""

_WHERE = ("url", "token", "caFile", "timeout")
SOURCE_OPTIONS = (
    *_WHERE,
    "path",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "includeDeadLetters",
    "groupIdPrefix",
    "channel",
    "consume",
    "readFrom",
    "kafka.bootstrap",
)
_BOUNDS = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
)
_NOT_FOR_STREAMS = (*_BOUNDS[3:], "consume")
_NOT_FOR_BATCHES = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
SINK_OPTIONS = (*_WHERE, "topic", "delivery", "txnAppId", "txnVersion")
_OF_KAFKA = {"kafka.bootstrap.servers": "url", "kafka.group.id": "channel"}
"""Options of the Kafka connector that have another name here."""
_SPARKS_OWN = ("checkpointlocation", "queryname", "name")
"""What Spark itself leaves among the options of a stream."""
READ_FROM = ("auto", "kafka", "server")
KAFKA_PREFIX = "kafka."
"""Options that go to the Kafka client, without this."""
DELIVERIES = ("exactly-once", "at-least-once")
STRATEGIES = ("error", "latest")
DEFAULT_TIMEOUT_S = 60.0
DEFAULT_BYTES_PER_TRIGGER = 128 * 1024 * 1024
"""Of a stream that says nothing of limits: a first batch of everything would need memory for everything."""
DEFAULT_TRIGGER_DELAY_S = 15 * 60.0
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


NO_OPTIONS = (
    "there are no options: say where the queues are (url or path) and which (subscribe). A table that was made by "
    "CREATE TABLE ... USING penstock has lost them: Spark does not keep the options of a source in Python. Use CREATE "
    "TEMPORARY VIEW ... USING penstock OPTIONS (...), or SELECT ... FROM it WITH (url = '...', subscribe = '...')"
)


@dataclass(frozen=True)
class Where:
    """A server, or a data directory."""

    url: str | None = None
    """As `penstock.connect` takes it: several nodes of one cluster have commas between them."""
    path: str | None = None
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    """How long to go on trying to reach a server that does not answer."""
    read_from: str = "auto"
    """Whether executors read a server's messages from its Kafka; see `spark/kafka.py`."""
    kafka_bootstrap: str | None = None
    """Where Kafka is for the executors; None: where it is for the server."""
    kafka_properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """For the Kafka client: passwords and certificates."""


@dataclass(frozen=True)
class SourceOptions:
    """What a reader is told."""

    where: Where
    queues: tuple[str, ...] | None
    """The queues to read; None: those that match the pattern."""
    pattern: str | None
    assigned: dict[str, list[int]] | None
    """The partitions to read of each queue; None: all."""
    starting: Start | None
    """None: earliest for a batch, latest for a stream."""
    ending: Start
    starting_ms: int | dict[str, dict[int, int]] | None
    """A time for every queue, or one for each of its partitions."""
    ending_ms: int | dict[str, dict[int, int]] | None
    needs_start: bool
    """Whether it is an error that nothing was sent at the starting time, or later."""
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    trigger_delay_s: float
    """How long a stream waits for `min_offsets`, at most."""
    min_partitions: int | None
    records_max: int | None
    """Messages in one task, at most."""
    fail_on_data_loss: bool
    group_id_prefix: str
    channel: str | None
    consume: bool

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Read and check the options of a source.

        >>> parsed = SourceOptions.parse({"path": "/data", "subscribe": "orders, billing"}, streaming=False)
        >>> parsed.queues, parsed.starting, parsed.ending == LATEST
        (('orders', 'billing'), None, True)
        >>> SourceOptions.parse({"path": "/data", "subscribed": "orders"}, streaming=False)
        Traceback (most recent call last):
            ...
        penstock.spark.errors.InvalidOption: there is no option 'subscribed' (did you mean subscribe?); ...
        """
        if not options:
            raise InvalidOption(NO_OPTIONS)
        given = _Given(options, SOURCE_OPTIONS, "source")
        queues, pattern, assigned = _queues(given)
        parsed = cls(
            where=_with_kafka(_where(given), given),
            queues=queues,
            pattern=pattern,
            assigned=assigned,
            starting=_offsets(given, "startingOffsets"),
            ending=_ending(given),
            starting_ms=_times(given, "starting"),
            ending_ms=_times(given, "ending"),
            needs_start=given.choice("startingOffsetsByTimestampStrategy", STRATEGIES) == "error",
            max_offsets=given.number("maxOffsetsPerTrigger", 1),
            max_bytes=given.number("maxBytesPerTrigger", 1),
            min_offsets=given.number("minOffsetsPerTrigger", 1),
            trigger_delay_s=_trigger_delay_s(given),
            min_partitions=given.number("minPartitions", 1),
            records_max=given.number("maxRecordsPerPartition", 1),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            group_id_prefix=given.name("groupIdPrefix") or "spark",
            channel=given.name("channel"),
            consume=given.flag("consume", False),
        )
        for name in ("includeHeaders", "includeDeadLetters"):  # which the schema says by now
            given.flag(name, False)
        _check_together(given, parsed, streaming)
        return parsed


@dataclass(frozen=True)
class SinkOptions:
    """What a writer is told."""

    where: Where
    topic: str | None
    exactly_once: bool
    transaction: tuple[str, int] | None = None
    """A batch write that was done under this name, or under a higher number of it, is not done again."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Read and check the options of a sink.

        >>> SinkOptions.parse({"url": "http://localhost:9325", "topic": "orders"}).exactly_once
        True
        """
        given = _Given(options, SINK_OPTIONS, "sink")
        if given.text("path") is not None:
            raise InvalidOption(
                "a sink needs a server (option url): a data directory has one writer, which is the server"
            )
        where = _where(given)
        topic = given.text("topic")
        if topic is not None:
            _check_queue(topic, "topic")
        delivery = given.choice("delivery", DELIVERIES)
        return cls(where, topic, delivery == DELIVERIES[0], _transaction(given, delivery))


def _transaction(given: _Given, delivery: str) -> tuple[str, int] | None:
    application, version = given.name("txnAppId"), given.number("txnVersion", 0)
    if application is None and version is None:
        return None
    if application is None or version is None:
        raise InvalidOption("txnAppId (a name) and txnVersion (a number that grows) belong together: give both")
    if delivery != DELIVERIES[0]:
        raise InvalidOption(f"txnAppId and txnVersion need delivery {DELIVERIES[0]}")
    return application, version


class _Given:
    """The options as they were given, by lower-case name."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
        self._values = {str(name).lower(): str(value) for name, value in options.items()}
        right = {name.lower(): name for name in (*known, "path")}
        for name in self._values:
            if name not in right and name not in _SPARKS_OWN and not _is_for_kafka(name, known):
                close = difflib.get_close_matches(name, right, 1)
                meant = _OF_KAFKA.get(name) or (right[close[0]] if close else "")
                meant = f" (did you mean {meant}?)" if meant else ""
                raise InvalidOption(f"there is no option {name!r}{meant}; a {what} takes: {', '.join(known)}")

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def kafka_properties(self) -> dict[str, str]:
        """The options for the Kafka client, without their prefix."""
        start = len(KAFKA_PREFIX)
        return {name[start:]: value for name, value in self._values.items() if name.startswith(KAFKA_PREFIX)}

    def number(self, name: str, least: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            number = int(text)
        except ValueError:
            raise InvalidOption(f"{name} is {text!r}: it must be a whole number") from None
        if number < least:
            raise InvalidOption(f"{name} is {number}: it must be at least {least}")
        return number

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise InvalidOption(f"{name} is {text!r}: it must be true or false")
        return text.lower() == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of some words; the first of them unless said."""
        text = (self.text(name) or choices[0]).lower()
        if text not in choices:
            raise InvalidOption(f"{name} is {text!r}: it must be {' or '.join(choices)}")
        return text

    def name(self, name: str) -> str | None:
        text = self.text(name)
        if text is not None:
            try:
                check_name(text, "channel")
            except InvalidName as error:
                raise InvalidOption(f"{name}: {error}") from None
        return text


def _is_for_kafka(name: str, known: tuple[str, ...]) -> bool:
    """Whether an option goes to the Kafka client. What decides what is read is not up for options."""
    return (
        f"{KAFKA_PREFIX}bootstrap" in known
        and name.startswith(KAFKA_PREFIX)
        and name.removeprefix(KAFKA_PREFIX) not in RESERVED_PROPERTIES
    )


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def _where(given: _Given) -> Where:
    url, path = given.text("url"), given.text("path")
    if (url is None) == (path is None):
        raise InvalidOption(
            "say where the queues are: url (a server, such as http://localhost:9325) or path (a data directory), one "
            "of them"
        )
    try:
        Address.parse(url or "localhost:0")
    except InvalidRequest as error:
        raise InvalidOption(f"url: {error}") from None
    if path is not None and (scheme := _SCHEME.match(path)) is not None:
        if scheme[1].lower() != "file":
            raise InvalidOption(
                f"path is {path!r}: it must be a data directory that this machine and the executors see"
            )
        path = "/" + path[scheme.end() :].lstrip("/")
    if path is not None and given.text("token") is not None:
        raise InvalidOption("token is for a server (url); a data directory (path) takes none")
    timeout_s = given.number("timeout", 1) or DEFAULT_TIMEOUT_S
    return Where(url, path, given.text("token"), given.text("caFile"), float(timeout_s))


def _with_kafka(where: Where, given: _Given) -> Where:
    read_from = (given.text("readFrom") or READ_FROM[0]).lower()
    if read_from not in READ_FROM:
        raise InvalidOption(f"readFrom is {read_from!r}: it must be {', '.join(READ_FROM[:-1])} or {READ_FROM[-1]}")
    named = given.kafka_properties()
    if where.path is not None and (named or given.text("readFrom") is not None):
        raise InvalidOption("readFrom and kafka.* are for a server (url); a data directory (path) takes none")
    bootstrap = named.pop("bootstrap", None)
    return replace(where, read_from=read_from, kafka_bootstrap=bootstrap, kafka_properties=tuple(named.items()))


def _queues(given: _Given) -> tuple[tuple[str, ...] | None, str | None, dict[str, list[int]] | None]:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if given.text(name) is not None]
    if len(chosen) != 1:
        raise InvalidOption(
            "say which queues: exactly one of subscribe, subscribePattern and assign "
            f"(given: {', '.join(chosen) or 'none'})"
        )
    text = given.text(chosen[0]) or ""
    if chosen == ["subscribePattern"]:
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidOption(f"subscribePattern is {text!r}, which is not a regular expression: {error}") from None
        return None, text, None
    assigned = _assigned(text) if chosen == ["assign"] else None
    names = [name.strip() for name in text.split(",") if name.strip()] if assigned is None else list(assigned)
    if not names:
        raise InvalidOption(f"{chosen[0]} is {text!r}: it must name at least one queue")
    for name in names:
        _check_queue(name, chosen[0])
    return tuple(dict.fromkeys(names)), None, assigned


def _check_queue(name: str, option: str) -> None:
    try:
        check_name(name, "queue")
    except InvalidName as error:
        raise InvalidOption(f"{option}: {error}") from None


def _assigned(text: str) -> dict[str, list[int]]:
    found = _json(text, "assign", '{"orders": [0]}')
    for name, partitions in found.items():
        if not isinstance(partitions, list) or not partitions or not all(map(_is_whole, partitions)):
            raise InvalidOption(
                f"assign gives {name!r} the partitions {partitions!r}: it must be a list such as [0], or [0, 1] of a "
                "queue with several"
            )
    return {name: sorted(set(partitions)) for name, partitions in found.items()}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _json(text: str, option: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidOption(f"{option} is {text!r}: it must be JSON such as {example}")
    return found


def _offsets(given: _Given, option: str) -> Start | None:
    text = given.text(option)
    if text is None:
        return None
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    if (before := re.fullmatch(r"latest\s*-\s*(\d{1,18})", text.strip().lower())) is not None:
        return EARLIEST - int(before[1]) if int(before[1]) else LATEST
    found = _json(text, option, 'earliest, latest, latest-10 or {"orders": {"0": 120}}')
    for name, partitions in found.items():
        if not isinstance(partitions, dict) or not partitions or not all(starmap(_is_offset, partitions.items())):
            raise InvalidOption(
                f"{option} gives {name!r} {partitions!r}: it must be "
                '{"0": offset}, where -2 is earliest and -1 is latest. Of several partitions each has one, and '
                "its offsets begin at its number times 2^48"
            )
    return {name: {int(key): offset for key, offset in partitions.items()} for name, partitions in found.items()}


def _times(given: _Given, end: str) -> int | dict[str, dict[int, int]] | None:
    """A time in milliseconds for all queues, or one for each partition of each."""
    plain, named = f"{end}Timestamp", f"{end}OffsetsByTimestamp"
    text = given.text(named)
    if text is None:
        return given.number(plain, 0)
    found = _json(text, named, '{"orders": {"0": 1767225600000}}')
    for name, times in found.items():
        if not isinstance(times, dict) or not all(key.isdecimal() and _is_whole(each) for key, each in times.items()):
            raise InvalidOption(f'{named} gives {name!r} {times!r}: it must be {{"0": milliseconds since 1970}}')
    return {name: {int(key): each for key, each in times.items()} for name, times in found.items()}


def _trigger_delay_s(given: _Given) -> float:
    """How long a stream may wait, as Spark writes it: 15m, 30s.

    >>> _trigger_delay_s(_Given({"maxTriggerDelay": "1.5h"}, SOURCE_OPTIONS, "source"))
    5400.0
    """
    text = given.text("maxTriggerDelay")
    if text is None:
        return DEFAULT_TRIGGER_DELAY_S
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", text.strip().lower())
    if match is None:
        raise InvalidOption(f"maxTriggerDelay is {text!r}: it must be a time such as 30s, 15m or 1h")
    return float(match[1]) * _UNITS_S[match[2]]


def _is_offset(partition: str, offset: Any) -> bool:
    """Whether this is an offset, or a word for one, and is in its partition."""
    if not partition.isdecimal() or not isinstance(offset, int) or isinstance(offset, bool):
        return False
    return offset in (EARLIEST, LATEST) or (offset >= 0 and offset >> PARTITION_SHIFT == int(partition))


def _ending(given: _Given) -> Start:
    ending = _offsets(given, "endingOffsets")
    if ending == EARLIEST or (isinstance(ending, dict) and any(EARLIEST in each.values() for each in ending.values())):
        raise InvalidOption("endingOffsets cannot be earliest: there would be nothing to read")
    return LATEST if ending is None else ending


def _check_together(given: _Given, parsed: SourceOptions, streaming: bool) -> None:
    for end in ("starting", "ending"):
        said = [each for each in _BOUNDS if each.startswith(end) and given.text(each) is not None]
        if len(said) > 1:
            raise InvalidOption(f"{' and '.join(said)} say the same thing: give one of them")
    if given.text("maxTriggerDelay") is not None and parsed.min_offsets is None:
        raise InvalidOption("maxTriggerDelay is how long to wait for minOffsetsPerTrigger: give that, too")
    if parsed.min_offsets is not None and parsed.max_offsets is not None and parsed.min_offsets > parsed.max_offsets:
        raise InvalidOption("minOffsetsPerTrigger is more than maxOffsetsPerTrigger: no batch could be that large")
    for name in _NOT_FOR_STREAMS if streaming else _NOT_FOR_BATCHES:
        if given.text(name) is not None:
            this, other = ("stream", "batch") if streaming else ("batch", "stream")
            raise InvalidOption(f"{name} is for a {other}, and this is a {this}")
    starts = parsed.starting.values() if isinstance(parsed.starting, dict) else ()
    if not streaming and (parsed.starting == LATEST or any(LATEST in each.values() for each in starts)):
        raise InvalidOption("startingOffsets of a batch cannot be latest: there would be nothing to read")
    for name, offsets in (
        ("startingOffsets", parsed.starting),
        ("endingOffsets", parsed.ending),
        ("startingOffsetsByTimestamp", parsed.starting_ms),
        ("endingOffsetsByTimestamp", parsed.ending_ms),
    ):
        if isinstance(offsets, dict) and parsed.queues is not None and set(offsets) != set(parsed.queues):
            raise InvalidOption(
                f"{name} names the queues {sorted(offsets)}, and {sorted(parsed.queues)} are read: name the same ones"
            )
    if parsed.consume and parsed.where.path is not None:
        raise InvalidOption("consume needs a server (url): a data directory is only read")
    if parsed.consume and parsed.where.read_from == "kafka":
        raise InvalidOption("consume takes messages from the server, which leases them: it cannot read from Kafka")
    if parsed.consume and any(given.text(name) for name in _BOUNDS):
        raise InvalidOption("consume takes what waits in the channel: give no offsets and no timestamps with it")
