"""The topics of a cluster's log: made when they are absent, and refused when they would lose messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, NewTopic, ResourceType, TopicDescription

from penstock.core.errors import StoreError
from penstock.store.errors import LogUnavailable, LogUnsafe
from penstock.store.journal.kafka_options import KafkaOptions

ADMIN_TIMEOUT_S = 30.0
SEGMENT_BYTES = 128 << 20
SEGMENT_MS = 3_600_000
DELETE_RETENTION_MS = 86_400_000
DIRTY_RATIO = 0.3

log = logging.getLogger("penstock.kafka")

_T = TypeVar("_T")

_REFUSALS = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


@dataclass(frozen=True)
class LogTopics:
    """What is known of a cluster's log after its topics were looked at."""

    kafka_id: str
    """Kafka's own name for its cluster."""
    data_id: str
    """Kafka's number of the data topic: another one if somebody deletes the topic and makes it again."""
    offset_id: str
    message_bytes_max: int
    delete_retention_ms: int
    """How long Kafka remembers what was deleted, for readers that are behind."""


_NOT_KNOWN_YET = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


_SILENCES = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})


def made_client(make: Callable[[dict[str, Any]], _T], options: KafkaOptions, **properties: Any) -> _T:
    """A client of librdkafka's; what it does not like about the properties is said in our words."""
    config = {**options.client_properties(), "logger": log}
    config.update({name if name == "error_cb" else name.replace("_", "."): it for name, it in properties.items()})
    try:
        return make(config)
    except KafkaException as error:
        raise LogUnsafe(f"[kafka] properties are not valid: {error.args[0].str()}") from None
    except (TypeError, ValueError) as error:
        raise LogUnsafe(f"[kafka] properties are not valid: {error}") from None


def said(error: KafkaException, options: KafkaOptions, what: str, heard: Sequence[KafkaError] = ()) -> StoreError:
    """The store's word for an error of Kafka's. What was heard before may say more than a timeout does."""
    reasons: list[KafkaError] = [error.args[0], *heard]
    reason = next((it for it in reasons if it.code() in _REFUSALS), reasons[0])
    where = f"{what}: Kafka at {options.bootstrap}"
    if reason.code() in _SILENCES:
        return LogUnavailable(
            f"{where} does not answer ({reason.name()}): is it running, and is [kafka] bootstrap right?"
        )
    hint = ": look at [kafka] properties and at the rights there" if reason.code() in _REFUSALS else ""
    return LogUnavailable(f"{where} says: {reason.str()} ({reason.name()}){hint}")


def prepare_topics(options: KafkaOptions) -> LogTopics:
    """Make the data topic and the offset topic if they are not there; look whether they are safe."""
    heard: list[KafkaError] = []
    admin = made_client(AdminClient, options, error_cb=heard.append)
    try:
        names = (options.data_topic, options.offset_topic)
        kafka_id = str(admin.describe_cluster(request_timeout=ADMIN_TIMEOUT_S).result().cluster_id)
        _create_missing(admin, options, names)
        topics = _described(admin, names)
        configs = {name: _config(admin, name) for name in names}
    except KafkaException as error:
        admin.poll(0)
        raise said(error, options, "the topics cannot be prepared", heard) from error
    _check_counts(topics, options)
    for name in names:
        copies = min(len(partition.replicas) for partition in topics[name].partitions)
        check_topic(name, copies, configs[name], options)
    return LogTopics(
        kafka_id,
        str(topics[options.data_topic].topic_id),
        str(topics[options.offset_topic].topic_id),
        min(int(config["max.message.bytes"]) for config in configs.values()),
        min(int(config["delete.retention.ms"]) for config in configs.values()),
    )


def topic_config(options: KafkaOptions) -> dict[str, str]:
    """The settings with which topics are made."""
    ours = {
        "cleanup.policy": "compact",
        "min.insync.replicas": options.min_insync_replicas,
        "unclean.leader.election.enable": "false",
        "max.message.bytes": options.message_bytes_max,
        "delete.retention.ms": DELETE_RETENTION_MS,
        "segment.bytes": SEGMENT_BYTES,
        "segment.ms": SEGMENT_MS,
        "min.cleanable.dirty.ratio": DIRTY_RATIO,
        **options.topic_properties,
    }
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in ours.items()}


def _create_missing(admin: AdminClient, options: KafkaOptions, names: tuple[str, ...]) -> None:
    there = admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics
    missing = [name for name in names if name not in there]
    if not missing:
        return
    for name in names:
        if name in there:  # one that was made for another number would be joined by one that does not fit
            _check_count(options, len(there[name].partitions))
    config, copies = topic_config(options), options.replication_factor
    wanted = [NewTopic(name, options.shards, copies, config=config) for name in missing]
    for name, made in admin.create_topics(wanted, request_timeout=ADMIN_TIMEOUT_S).items():
        try:
            made.result()
            log.info("made topic %s: %d partitions, %d copies", name, options.shards, copies)
        except KafkaException as error:
            _handle_creation_error(error, name, options)


def _handle_creation_error(error: KafkaException, name: str, options: KafkaOptions) -> None:
    code = error.args[0].code()
    if code == KafkaError.TOPIC_ALREADY_EXISTS:
        return  # another node was faster
    if code == KafkaError.INVALID_REPLICATION_FACTOR:
        raise LogUnsafe(
            f"topic {name} cannot have {options.replication_factor} copies: {error.args[0].str()}. Start more brokers, "
            "or say in [kafka] replication_factor and min_insync_replicas how many copies are enough (1 and 1 for a "
            "single broker, which keeps nothing safe)."
        )
    if code in (KafkaError.INVALID_CONFIG, KafkaError.POLICY_VIOLATION, KafkaError.INVALID_REQUEST):
        raise LogUnsafe(f"topic {name} cannot be created: {error.args[0].str()}. Look at [kafka] topic_properties.")
    raise error


def when_known(ask: Callable[[], _T], timeout_s: float = ADMIN_TIMEOUT_S) -> _T:
    """Ask again while Kafka does not know the topic: with several brokers, one that was just made is not known to all
    at once, nor is who leads it.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _NOT_KNOWN_YET or time.monotonic() > deadline_s:
                raise
        time.sleep(0.05)


def _described(admin: AdminClient, names: tuple[str, ...]) -> dict[str, TopicDescription]:
    """What Kafka says of the topics. One that was just made may take a moment to be known at every broker."""
    deadline = time.monotonic() + ADMIN_TIMEOUT_S
    while True:
        asked = admin.describe_topics(TopicCollection(list(names)), request_timeout=ADMIN_TIMEOUT_S)
        try:
            found = {name: _result(answer) for name, answer in asked.items()}
            if all(partition.leader is not None for topic in found.values() for partition in topic.partitions):
                return found
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise LogUnavailable(f"some partitions of {' and '.join(names)} have no leader: are brokers missing?")
        time.sleep(0.05)


def _result(answer: Future[_T]) -> _T:
    return answer.result(ADMIN_TIMEOUT_S)


def _config(admin: AdminClient, name: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, name)
    entries: Mapping[str, ConfigEntry] = when_known(
        lambda: _result(admin.describe_configs([resource], request_timeout=ADMIN_TIMEOUT_S)[resource])
    )
    return {key: str(entry.value) for key, entry in entries.items()}


def _check_counts(topics: Mapping[str, TopicDescription], options: KafkaOptions) -> None:
    counts = {name: len(topic.partitions) for name, topic in topics.items()}
    if len(set(counts.values())) > 1:
        both = " and ".join(f"{name} has {count}" for name, count in counts.items())
        raise LogUnsafe(
            f"the topics must have the same number of partitions, but {both}. A shard is one partition of each: use "
            "another [cluster] prefix, or delete both topics if nothing in them is needed."
        )
    _check_count(options, counts[options.data_topic])


def _check_count(options: KafkaOptions, count: int) -> None:
    if count != options.shards:
        raise LogUnsafe(
            f"the topics of {options.prefix} have {count} partitions, but [cluster] shards is {options.shards}. It is "
            f"fixed when the topics are made: say shards = {count}, or use another prefix."
        )


def check_topic(name: str, copies: int, config: Mapping[str, str], options: KafkaOptions) -> None:
    """Refuse a topic that would lose messages."""
    if copies < options.replication_factor:
        raise LogUnsafe(
            f"topic {name} has {copies} copies of each message, but [kafka] replication_factor is "
            f"{options.replication_factor}: reassign its partitions to more brokers, or ask for less."
        )
    if config["cleanup.policy"] != "compact":
        raise LogUnsafe(
            f"topic {name} has cleanup.policy={config['cleanup.policy']}, so Kafka would delete messages by age or "
            "size. Set it to compact."
        )
    if config["unclean.leader.election.enable"] != "false":
        raise LogUnsafe(
            f"topic {name} has unclean.leader.election.enable={config['unclean.leader.election.enable']}, so messages "
            "that were acknowledged could vanish with a broker. Set it to false."
        )
    in_sync = int(config["min.insync.replicas"])
    if in_sync < options.min_insync_replicas:
        raise LogUnsafe(
            f"topic {name} has min.insync.replicas={in_sync}, but [kafka] min_insync_replicas is "
            f"{options.min_insync_replicas}: fewer copies than asked for would do for an acknowledgement."
        )
    if in_sync >= copies > 1:
        raise LogUnsafe(
            f"topic {name} has min.insync.replicas={in_sync} and {copies} copies: it could not be written while one "
            "broker is away. Set min.insync.replicas lower than the number of copies."
        )
    if in_sync > copies:
        raise LogUnsafe(
            f"topic {name} has min.insync.replicas={in_sync} and {copies} copies: it can never be written. Set "
            "min.insync.replicas lower."
        )
