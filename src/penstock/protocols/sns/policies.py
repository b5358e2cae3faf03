"""Policies of topics and subscriptions. Pure: JSON in; waits and times out.

Delivery policies say how often, when and how fast an HTTP(S) endpoint is tried. A topic's policy has the defaults of
its subscriptions, under `http`. A subscription's own policy goes first, part by part, unless the topic has
`disableSubscriptionOverrides`.

A FIFO topic can have an archive, and a subscription a replay policy. A topic with an archive has a consumer
(`sns-archive`) that stands where the archive begins: so its queue keeps what all subscriptions have got. The queue has
no retention of its own then; the consumer moves on with time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.protocols.sns.wire import invalid, json_object

RETRY_DEFAULTS: dict[str, Any] = {
    "minDelayTarget": 20,
    "maxDelayTarget": 20,
    "numRetries": 3,
    "numMaxDelayRetries": 0,
    "numNoDelayRetries": 0,
    "numMinDelayRetries": 0,
    "backoffFunction": "linear",
}
CONTENT_TYPE = "text/plain; charset=UTF-8"
_BACKOFF_FUNCTIONS = ("linear", "arithmetic", "geometric", "exponential")
_CONTENT_TYPES = frozenset(
    {
        CONTENT_TYPE,
        "text/plain",
        "application/atom+xml",
        "application/json",
        "application/octet-stream",
        "application/soap+xml",
        "application/x-www-form-urlencoded",
        "application/xhtml+xml",
        "application/xml",
        "text/css",
        "text/csv",
        "text/html",
        "text/xml",
    }
)
_DELAY_S_MAX = 3_600
_RETRIES_MAX = 100
_BOUNDS = {
    "minDelayTarget": (1, _DELAY_S_MAX),
    "maxDelayTarget": (1, _DELAY_S_MAX),
    "numRetries": (0, _RETRIES_MAX),
    "numMaxDelayRetries": (0, _RETRIES_MAX),
    "numNoDelayRetries": (0, _RETRIES_MAX),
    "numMinDelayRetries": (0, _RETRIES_MAX),
}
_NEEDED = ("minDelayTarget", "maxDelayTarget", "numRetries")
_OF_TOPIC = (
    "defaultHealthyRetryPolicy",
    "defaultSicklyRetryPolicy",
    "disableSubscriptionOverrides",
    "defaultThrottlePolicy",
    "defaultRequestPolicy",
)
_OF_SUBSCRIPTION = ("healthyRetryPolicy", "sicklyRetryPolicy", "throttlePolicy", "requestPolicy", "guaranteed")


class RetryPolicy(msgspec.Struct, frozen=True):
    """How an endpoint is tried."""

    retries: dict[str, Any]
    per_second: int | None = None
    content_type: str = CONTENT_TYPE

    def wait_s(self, attempt: int) -> float | None:
        """How long to wait after a failed attempt (the first is 1); None if it was the last one.

        >>> policy = RetryPolicy(RETRY_DEFAULTS)
        >>> [policy.wait_s(attempt) for attempt in (1, 2, 3, 4)]
        [20.0, 20.0, 20.0, None]
        >>> more = {"minDelayTarget": 1, "maxDelayTarget": 9, "numRetries": 6, "numNoDelayRetries": 1}
        >>> policy = RetryPolicy(RETRY_DEFAULTS | more | {"numMaxDelayRetries": 1, "numMinDelayRetries": 1})
        >>> [policy.wait_s(attempt) for attempt in range(1, 8)]
        [0.0, 1.0, 1.0, 5.0, 9.0, 9.0, None]
        """
        policy = self.retries
        low, high, count = float(policy["minDelayTarget"]), float(policy["maxDelayTarget"]), policy["numRetries"]
        if attempt > count:
            return None
        step = attempt - policy["numNoDelayRetries"]
        if step <= 0:
            return 0.0
        step -= policy["numMinDelayRetries"]
        if step <= 0:
            return low
        if attempt > count - policy["numMaxDelayRetries"]:
            return high
        steps = count - policy["numNoDelayRetries"] - policy["numMinDelayRetries"] - policy["numMaxDelayRetries"]
        if low == high or steps <= 1:
            return low
        share: float = (step - 1) / (steps - 1)
        match policy["backoffFunction"]:
            case "linear":
                return low + (high - low) * share
            case "arithmetic":
                return low + (high - low) * share * (1 + share) / 2
            case "geometric":
                return low + (high - low) * share**2
            case _:
                return float(low * (high / low) ** share)


def topic_policy(text: str) -> str:
    """A topic's `DeliveryPolicy` as it is kept and shown: checked, without what is null.

    >>> topic_policy('{"http": {"defaultHealthyRetryPolicy": null}}')
    '{"http":{"disableSubscriptionOverrides":false}}'
    """
    if not text:
        return ""
    policy = json_object("DeliveryPolicy", text)
    _check_members(policy, ("http",))
    http = _part(policy, "http")
    _check_members(http, _OF_TOPIC)
    _check(http, "default", "http.")
    filled = {"disableSubscriptionOverrides": False} | http
    shown = {name: filled[name] for name in _OF_TOPIC if filled.get(name) is not None}
    return msgspec.json.encode({"http": shown}).decode()


def subscription_policy(text: str) -> str:
    """A subscription's `DeliveryPolicy` as it is kept and shown: checked, with what it does not say as null."""
    if not text:
        return ""
    policy = json_object("DeliveryPolicy", text)
    _check_members(policy, _OF_SUBSCRIPTION)
    _check(policy, "", "")
    shown = {name: policy.get(name) for name in _OF_SUBSCRIPTION} | {"guaranteed": bool(policy.get("guaranteed"))}
    return msgspec.json.encode(shown).decode()


def _check_members(policy: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in policy:
        if name not in known:
            raise invalid(f"DeliveryPolicy: Unexpected JSON member: {name}")


def _named(prefix: str, name: str) -> str:
    return prefix + name[0].upper() + name[1:] if prefix else name


def _part(policy: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = policy.get(name)
    if found is not None and not isinstance(found, dict):
        raise invalid(f"DeliveryPolicy: {name} must be an object")
    return found or {}


def _check(policy: Mapping[str, Any], prefix: str, place: str) -> None:
    for name in ("healthyRetryPolicy", "sicklyRetryPolicy"):
        part = _named(prefix, name)
        if policy.get(part) is not None:
            _check_retries(_part(policy, part), place + part)
    part = _named(prefix, "throttlePolicy")
    rate = _part(policy, part).get("maxReceivesPerSecond")
    if rate is not None and (not isinstance(rate, int) or isinstance(rate, bool) or rate < 1):
        raise invalid(f"DeliveryPolicy: {place}{part}.maxReceivesPerSecond must be greater than or equal to 1")
    part = _named(prefix, "requestPolicy")
    kind = _part(policy, part).get("headerContentType")
    if kind is not None and (not isinstance(kind, str) or kind not in _CONTENT_TYPES):
        raise invalid(f"DeliveryPolicy: {place}{part}.headerContentType: {kind} is not supported")


def _check_retries(given: Mapping[str, Any], place: str) -> None:
    """Raise what is wrong with a retry policy that is there. AWS demands three members of it."""
    _check_members(given, tuple(RETRY_DEFAULTS))
    for name in _NEEDED:
        if given.get(name) is None:
            raise invalid(f"DeliveryPolicy: {place}.{name} must be specified")
    for name, (low, high) in _BOUNDS.items():
        value = given.get(name, low)
        if not isinstance(value, int) or isinstance(value, bool):
            raise invalid(f"DeliveryPolicy: {place}.{name} must be an integer")
        if value < low:
            raise invalid(f"DeliveryPolicy: {place}.{name} must be greater than or equal to {low}")
        if value > high:
            raise invalid(f"DeliveryPolicy: {place}.{name} must be less than or equal to {high}")
    if given["maxDelayTarget"] < given["minDelayTarget"]:
        raise invalid(f"DeliveryPolicy: {place}.maxDelayTarget must be greater than or equal to minDelayTarget")
    if sum(given.get(f"num{phase}DelayRetries", 0) for phase in ("Max", "No", "Min")) > given["numRetries"]:
        raise invalid(f"DeliveryPolicy: {place}.numRetries must be as many as those of all phases, or more")
    if given.get("backoffFunction", "linear") not in _BACKOFF_FUNCTIONS:
        raise invalid(f"DeliveryPolicy: {place}.backoffFunction must be one of {', '.join(_BACKOFF_FUNCTIONS)}")


def _stored(text: str) -> dict[str, Any]:
    """A policy that was checked when it was set."""
    found: dict[str, Any] = msgspec.json.decode(text) if text else {}
    return found


def _retries(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    made = {**defaults, **given}
    made["maxDelayTarget"] = max(made["minDelayTarget"], made["maxDelayTarget"])
    return made


def effective_for_topic(text: str) -> str:
    """`EffectiveDeliveryPolicy` of a topic.

    >>> '"numRetries":7' in effective_for_topic('{"http": {"defaultHealthyRetryPolicy": {"numRetries": 7}}}')
    True
    """
    http = _part(_stored(text), "http")
    shown = {
        "defaultHealthyRetryPolicy": _retries(_part(http, "defaultHealthyRetryPolicy"), RETRY_DEFAULTS),
        "disableSubscriptionOverrides": bool(http.get("disableSubscriptionOverrides", False)),
    }
    if http.get("defaultThrottlePolicy"):
        shown["defaultThrottlePolicy"] = http["defaultThrottlePolicy"]
    shown["defaultRequestPolicy"] = {"headerContentType": CONTENT_TYPE} | _part(http, "defaultRequestPolicy")
    return msgspec.json.encode({"http": shown}).decode()


def _merged(topic_text: str, own_text: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    http, own = _part(_stored(topic_text), "http"), _stored(own_text)
    if http.get("disableSubscriptionOverrides"):
        own = {}
    retries = _retries(_part(http, "defaultHealthyRetryPolicy"), RETRY_DEFAULTS)
    retries = _retries(_part(own, "healthyRetryPolicy"), retries)
    throttle = _part(own, "throttlePolicy") or _part(http, "defaultThrottlePolicy")
    request = _part(http, "defaultRequestPolicy") | _part(own, "requestPolicy")
    return retries, throttle, {"headerContentType": CONTENT_TYPE} | request


def effective_for_subscription(topic_text: str, own_text: str) -> str:
    """`EffectiveDeliveryPolicy` of an HTTP(S) subscription."""
    retries, throttle, request = _merged(topic_text, own_text)
    shown = {
        "healthyRetryPolicy": retries,
        "sicklyRetryPolicy": None,
        "throttlePolicy": throttle or None,
        "requestPolicy": request,
        "guaranteed": False,
    }
    return msgspec.json.encode(shown).decode()


def retry_policy(topic_text: str, own_text: str) -> RetryPolicy:
    """What is done to an HTTP(S) endpoint.

    >>> retry_policy("", '{"throttlePolicy": {"maxReceivesPerSecond": 5}}').per_second
    5
    """
    retries, throttle, request = _merged(topic_text, own_text)
    return RetryPolicy(retries, throttle.get("maxReceivesPerSecond"), request["headerContentType"])


_DAY_MS = 24 * 3_600 * 1_000
_DAYS_MAX = 365


def archived_ms(text: str) -> int:
    """How long an `ArchivePolicy` keeps messages; 0: not at all.

    >>> archived_ms('{"MessageRetentionPeriod": "2"}'), archived_ms("{}"), archived_ms("")
    (172800000, 0, 0)
    """
    policy = json_object("ArchivePolicy", text) if text else {}
    if not policy:
        return 0
    days = str(policy.get("MessageRetentionPeriod"))
    if set(policy) != {"MessageRetentionPeriod"} or not days.isdecimal():
        raise invalid("ArchivePolicy: MessageRetentionPeriod must be a number of days")
    if not 1 <= int(days) <= _DAYS_MAX:
        raise invalid(f"ArchivePolicy: MessageRetentionPeriod must be between 1 and {_DAYS_MAX}")
    return int(days) * _DAY_MS


def replayed_between(text: str) -> tuple[int, int | None] | None:
    """The first and the last time of a `ReplayPolicy`; None if there is none.

    >>> replayed_between('{"PointType": "Timestamp", "StartingPoint": "2026-01-01T00:00:00.5Z"}')
    (1767225600500, None)
    """
    policy = json_object("ReplayPolicy", text) if text else {}
    if not policy:
        return None
    if policy.get("PointType") != "Timestamp" or not set(policy) <= {"PointType", "StartingPoint", "EndingPoint"}:
        raise invalid("ReplayPolicy: PointType must be Timestamp")
    start = _time_ms("StartingPoint", policy.get("StartingPoint"))
    end = _time_ms("EndingPoint", policy["EndingPoint"]) if "EndingPoint" in policy else None
    if end is not None and end < start:
        raise invalid("ReplayPolicy: EndingPoint must be after StartingPoint")
    return start, end


def _time_ms(name: str, value: Any) -> int:
    try:
        if not isinstance(value, str):
            raise ValueError
        found = datetime.fromisoformat(value)
        return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1_000)
    except (ValueError, OverflowError):
        raise invalid(f"ReplayPolicy: {name} must be a time, as in 2026-01-31T12:00:00.000Z") from None
