"""Queue attributes: SQS's names and texts on one side, the core's configuration on the other.

What the core does not know (Policy, KMS, ...) is kept in the configuration's labels, as SQS has it. Attributes are
checked and turned into changes of a configuration (`read_changes`), for creation and for SetQueueAttributes alike.

`MaximumMessageSize` counts as SQS counts, names and types of attributes included; the core counts stored bytes, which
may be some more. So the core is told a little more than the limit, and the limit itself is a label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock.core.commands import MAIN, QueueInfo, Stats
from penstock.core.queues.config import SETTINGS, QueueConfig, dead_letter_name
from penstock.core.settings import SECOND_MS, Declared, SqsAttribute
from penstock.protocols.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    INVALID_ATTRIBUTE_VALUE,
    INVALID_PARAMETER_VALUE,
    SqsError,
    invalid_value,
)
from penstock.protocols.sqs.limits import (
    MESSAGE_BYTES_CEILING,
    SOURCES_ALLOWED_MAX,
    STORED_OVERHEAD_BYTES,
    Limits,
)
from penstock.protocols.sqs.names import Arns

LABEL = "sqs."
"""What our labels start with."""
KMS_REUSE_SECONDS = "300"

FIFO_ONLY = frozenset({"FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"})
_NEEDS_FIFO = frozenset({"DeduplicationScope", "FifoThroughputLimit"})
"""AWS says of these what they need; of the other two, on a standard queue, that it does not know them."""
COUNTS = frozenset(
    {
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    }
)
READ_ONLY = COUNTS | {"CreatedTimestamp", "LastModifiedTimestamp", "QueueArn"}
_POLICY_BYTES_MAX = 128 * 1024
_KEY_LENGTH_MAX = 2_048
_INTEGER = re.compile(r"-?\d{1,18}\Z", re.ASCII)
_DECLARED: dict[str, tuple[Declared, SqsAttribute]] = {
    each.setting.sqs.name: (each, each.setting.sqs) for each in SETTINGS.values() if each.setting.sqs is not None
}
"""The settings that SQS has as well, by its names for them; parts of RedrivePolicy have it in front, and a dot."""
_WHOLE = tuple(name for name in _DECLARED if "." not in name)

FindConfig = Callable[[str], QueueConfig | None]


def message_bytes_max(config: QueueConfig) -> int:
    """MaximumMessageSize, as a number."""
    labels = config.labels
    if labels:
        own = labels.get("sqs.MaximumMessageSize")
        if own is not None:
            return min(int(own), config.message_bytes_max)
    return min(config.message_bytes_max, MESSAGE_BYTES_CEILING)


# -- out ---------------------------------------------------------------------------------------------------------------


def settings_of(name: str, config: QueueConfig, arns: Arns) -> dict[str, str]:
    """The attributes of a queue that somebody has set, or could."""
    found = {
        attribute: _shown(*_DECLARED[attribute], config)
        for attribute in _WHOLE
        if config.is_fifo or attribute not in FIFO_ONLY
    }
    found["MaximumMessageSize"] = str(message_bytes_max(config))
    found["SqsManagedSseEnabled"] = "true"
    target = dead_letter_target(name, config)
    if target is not None:
        found["RedrivePolicy"] = msgspec.json.encode(
            {"deadLetterTargetArn": arns.of(target), "maxReceiveCount": config.receives_max}
        ).decode()
    if config.is_fifo:
        found["FifoQueue"] = "true"
    for label, value in config.labels.items():
        if label.startswith(LABEL) and label != "sqs.MaximumMessageSize":
            found[label.removeprefix(LABEL)] = value
    if "KmsMasterKeyId" in found:
        found.setdefault("KmsDataKeyReusePeriodSeconds", KMS_REUSE_SECONDS)
    return found


def _shown(setting: Declared, sqs: SqsAttribute, config: QueueConfig) -> str:
    """A setting as SQS shows it: whole seconds, `true` and `false`, its own words. It knows no messages without end."""
    value = getattr(config, setting.field)
    if sqs.words:
        return next(theirs for theirs, ours in sqs.words.items() if ours == value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(sqs.high if value is None else value // (SECOND_MS if setting.in_seconds else 1))


def dead_letter_target(name: str, config: QueueConfig) -> str | None:
    """Where a queue's dead letters go; None if it has none."""
    return (config.dead_letter or dead_letter_name(name)) if config.receives_max else None


def facts_of(info: QueueInfo, stats: Stats, arns: Arns) -> dict[str, str]:
    """The attributes of a queue that nobody can set."""
    main = stats.channels.get(MAIN)
    ready = stats.messages - stats.delayed if main is None else main.ready
    return {
        "QueueArn": arns.of(info.name),
        "ApproximateNumberOfMessages": str(ready),
        "ApproximateNumberOfMessagesNotVisible": str(main.leased if main else 0),
        "ApproximateNumberOfMessagesDelayed": str(main.delayed if main else stats.delayed),
        "CreatedTimestamp": str(info.created_ms // 1_000),
        "LastModifiedTimestamp": str(info.changed_ms // 1_000),
    }


def check_names(names: list[str]) -> None:
    """Raise for the first name that is no attribute's."""
    for name in names:
        if name not in NAMES:
            raise _unknown(name)


def _unknown(name: str) -> SqsError:
    return SqsError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")


def _bad_value(name: str, reason: str = "") -> SqsError:
    text = f"Invalid value for the parameter {name}."
    return SqsError(INVALID_ATTRIBUTE_VALUE, f"{text} Reason: {reason}" if reason else text)


# -- in ----------------------------------------------------------------------------------------------------------------


class AttributeReader:
    """Turns attributes into changes of a configuration, for one queue."""

    def __init__(self, name: str, is_fifo: bool, limits: Limits, arns: Arns, find: FindConfig) -> None:
        self._name = name
        self._is_fifo = is_fifo
        self._limits = limits
        self._arns = arns
        self._find = find

    def read(self, attributes: Mapping[str, str], before: QueueConfig) -> dict[str, Any]:
        """What changes, in the core's terms; the first thing that is wrong, raised."""
        labels = dict(before.labels)
        changes: dict[str, Any] = {}
        for name, text in attributes.items():
            if name in _NEEDS_FIFO and not self._is_fifo:
                raise SqsError(
                    INVALID_ATTRIBUTE_NAME, f"You can specify the {name} only when FifoQueue is set to true."
                )
            if name not in SETTABLE or (name in FIFO_ONLY and not self._is_fifo):
                raise _unknown(name)
            _READERS[name](self, name, text, changes, labels)
        self._check_scopes(changes, before)
        self._check_encryption(attributes, labels)
        if labels != before.labels:
            changes["labels"] = labels
        return changes

    @staticmethod
    def _check_scopes(changes: dict[str, Any], before: QueueConfig) -> None:
        dedup = changes.get("dedup_scope", before.dedup_scope)
        if changes.get("throughput_scope", before.throughput_scope) == "group" and dedup != "group":
            raise SqsError(
                INVALID_PARAMETER_VALUE,
                "The perMessageGroupId value is allowed only when the value for DeduplicationScope is messageGroup.",
            )

    @staticmethod
    def _check_encryption(attributes: Mapping[str, str], labels: dict[str, str]) -> None:
        """KMS or SQS's own, not both: what is set last wins, unless both are set at once."""
        is_managed = attributes.get("SqsManagedSseEnabled", "").lower() == "true"
        if attributes.get("KmsMasterKeyId") and is_managed:
            raise SqsError(
                INVALID_ATTRIBUTE_NAME,
                "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or "
                "SQS SSE.",
            )
        if attributes.get("KmsMasterKeyId"):
            labels["sqs.SqsManagedSseEnabled"] = "false"
        elif is_managed:
            labels.pop("sqs.KmsMasterKeyId", None)
            labels.pop("sqs.KmsDataKeyReusePeriodSeconds", None)

    # -- one method a kind of attribute --

    @staticmethod
    def _number(name: str, text: str, low: int, high: int) -> int:
        if not _INTEGER.match(text) or not low <= int(text) <= high:
            raise _bad_value(name)
        return int(text)

    def _setting(self, name: str, text: str, changes: dict[str, Any], _labels: dict[str, str]) -> None:
        """What is a setting here and there, with other words or in whole seconds."""
        setting, sqs = _DECLARED[name]
        if sqs.words:
            if text not in sqs.words:
                raise _bad_value(name)
            changes[setting.field] = sqs.words[text]
        elif setting.kind is bool:
            changes[setting.field] = _boolean(name, text)
        else:
            number = self._number(name, text, *self._range(name))
            changes[setting.field] = number * SECOND_MS if setting.in_seconds else number

    def _range(self, name: str) -> tuple[int, int]:
        """What a number may be, in SQS's units."""
        _, sqs = _DECLARED[name]
        assert sqs.low is not None and sqs.high is not None
        return sqs.relaxed if sqs.relaxed is not None and not self._limits.is_strict else (sqs.low, sqs.high)

    def _message_size(self, name: str, text: str, changes: dict[str, Any], labels: dict[str, str]) -> None:
        size = self._number(name, text, *self._range(name))
        changes["message_bytes_max"] = size + STORED_OVERHEAD_BYTES
        labels["sqs.MaximumMessageSize"] = str(size)

    def _fifo(self, name: str, text: str, _changes: dict[str, Any], _labels: dict[str, str]) -> None:
        if text.lower() != "true":
            raise _bad_value(name, "Modifying queue type is not supported.")

    def _policy(self, name: str, text: str, _changes: dict[str, Any], labels: dict[str, str]) -> None:
        if not text:
            labels.pop(LABEL + name, None)
            return
        if len(text.encode()) > _POLICY_BYTES_MAX or not isinstance(_json(text), dict):
            raise _bad_value(name)
        labels[LABEL + name] = text

    def _key(self, name: str, text: str, _changes: dict[str, Any], labels: dict[str, str]) -> None:
        if len(text) > _KEY_LENGTH_MAX:
            raise _bad_value(name)
        _label(labels, name, text)

    def _key_reuse(self, name: str, text: str, _changes: dict[str, Any], labels: dict[str, str]) -> None:
        _label(labels, name, str(self._number(name, text, 60, 86_400)))

    def _managed_encryption(self, name: str, text: str, _changes: dict[str, Any], labels: dict[str, str]) -> None:
        labels[LABEL + name] = "true" if _boolean(name, text) else "false"

    # -- redrive --

    def _redrive(self, name: str, text: str, changes: dict[str, Any], _labels: dict[str, str]) -> None:
        if not text:
            changes.update(max_receives=0, dead_letter=None)
            return
        policy = _json(text)
        if not isinstance(policy, dict):
            raise invalid_value(text, name, "Redrive policy is not a valid JSON map.")
        for key in ("deadLetterTargetArn", "maxReceiveCount"):
            if key not in policy:
                raise invalid_value(text, name, f"Redrive policy does not contain mandatory attribute: {key}.")
        count = str(policy["maxReceiveCount"])
        low, high = self._range("RedrivePolicy.maxReceiveCount")
        if not _INTEGER.match(count) or not low <= int(count) <= high:
            raise invalid_value(
                text,
                name,
                f"Invalid value for maxReceiveCount: {count}, valid values are from {low} to {high} both inclusive.",
            )
        changes.update(max_receives=int(count), dead_letter=self._target(name, text, policy["deadLetterTargetArn"]))

    def _target(self, name: str, text: str, arn: Any) -> str:
        target = self._arns.name(arn) if isinstance(arn, str) else None
        if target is None:
            raise invalid_value(text, name, "Invalid value for deadLetterTargetArn.")
        if self._arns.outside(target)[:2] != self._arns.outside(self._name)[:2]:
            raise invalid_value(text, name, "Dead letter target owner should be same as the source.")
        if target == self._name:
            raise invalid_value(text, name, "A queue cannot be its own dead-letter queue.")
        config = self._find(target)
        if config is None:
            raise invalid_value(text, name, "Dead letter target does not exist.")
        if config.is_fifo != self._is_fifo:
            raise invalid_value(text, name, "Dead-letter queue must be same type of queue as the source.")
        if not self._permits(config):
            raise invalid_value(
                text, name, f"Queue {self._name} is not permitted to use {target} as a dead-letter queue."
            )
        return target

    def _permits(self, target: QueueConfig) -> bool:
        stored = target.labels.get("sqs.RedriveAllowPolicy")
        policy = None if stored is None else _json(stored)
        if not isinstance(policy, dict) or policy.get("redrivePermission") == "allowAll":
            return True
        if policy.get("redrivePermission") == "denyAll":
            return False
        return self._name in [self._arns.name(arn) for arn in policy.get("sourceQueueArns", ())]

    def _redrive_allow(self, name: str, text: str, _changes: dict[str, Any], labels: dict[str, str]) -> None:
        if not text:
            labels.pop(LABEL + name, None)
            return
        policy = _json(text) if len(text) <= _POLICY_BYTES_MAX else None
        if not isinstance(policy, dict) or set(policy) - {"redrivePermission", "sourceQueueArns"}:
            raise invalid_value(text, name, "Redrive allow policy is not a valid JSON map.")
        permission, sources = policy.get("redrivePermission"), policy.get("sourceQueueArns")
        if permission not in ("allowAll", "denyAll", "byQueue"):
            raise invalid_value(text, name, f"Invalid value for redrivePermission: {permission}.")
        if permission == "byQueue":
            self._check_sources(name, text, sources)
        elif sources is not None:
            raise invalid_value(text, name, f"sourceQueueArns cannot be given with redrivePermission {permission}.")
        labels[LABEL + name] = text

    def _check_sources(self, name: str, text: str, sources: Any) -> None:
        if not isinstance(sources, list) or not 1 <= len(sources) <= SOURCES_ALLOWED_MAX:
            raise invalid_value(
                text, name, f"redrivePermission byQueue needs sourceQueueArns with 1 to {SOURCES_ALLOWED_MAX} ARNs."
            )
        for arn in sources:
            if not isinstance(arn, str) or self._arns.name(arn) is None:
                raise invalid_value(text, name, f"Invalid value for sourceQueueArns: {arn}.")


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _bad_value(name)
    return text.lower() == "true"


def _label(labels: dict[str, str], name: str, text: str) -> None:
    """Keep a label; an empty text takes it away."""
    if text:
        labels[LABEL + name] = text
    else:
        labels.pop(LABEL + name, None)


def _json(text: str) -> Any:
    """What a text says in JSON; None if it is no JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


_READERS: dict[str, Callable[[AttributeReader, str, str, dict[str, Any], dict[str, str]], None]] = {
    **dict.fromkeys(_WHOLE, AttributeReader._setting),
    "MaximumMessageSize": AttributeReader._message_size,
    "Policy": AttributeReader._policy,
    "RedrivePolicy": AttributeReader._redrive,
    "RedriveAllowPolicy": AttributeReader._redrive_allow,
    "FifoQueue": AttributeReader._fifo,
    "KmsMasterKeyId": AttributeReader._key,
    "KmsDataKeyReusePeriodSeconds": AttributeReader._key_reuse,
    "SqsManagedSseEnabled": AttributeReader._managed_encryption,
}
SETTABLE = frozenset(_READERS)
NAMES = READ_ONLY | SETTABLE | {"All"}
