"""Delivery policies: how often, when and how fast an HTTP(S) endpoint is tried. Pure: JSON in, waits out.

A topic's policy has the defaults of its subscriptions, under `http`. A subscription's own policy goes first, part by
part, unless the topic has `disableSubscriptionOverrides`.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        "application/json",
        "application/octet-stream",
        "application/soap+xml",
        "application/x-www-form-urlencoded",
        "application/xml",
        "text/css",
        "text/html",
        "text/xml",
    }
)
_DELAY_S_MAX = 3_600
_RETRIES_MAX = 100
_COUNTS = ("numRetries", "numMaxDelayRetries", "numNoDelayRetries", "numMinDelayRetries")


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


def read_topic_policy(text: str) -> dict[str, Any]:
    """A topic's `DeliveryPolicy`, checked; empty if there is none."""
    if not text:
        return {}
    policy = json_object("DeliveryPolicy", text)
    http = policy.get("http", {})
    if not isinstance(http, dict):
        raise invalid("DeliveryPolicy: http must be an object")
    for key in http:
        if key not in (
            "defaultHealthyRetryPolicy",
            "defaultSicklyRetryPolicy",
            "defaultThrottlePolicy",
            "defaultRequestPolicy",
            "disableSubscriptionOverrides",
        ):
            raise invalid(f"DeliveryPolicy: Unexpected JSON member: {key}")
    _check(http, "default")
    return http


def read_subscription_policy(text: str) -> dict[str, Any]:
    """A subscription's `DeliveryPolicy`, checked; empty if there is none."""
    if not text:
        return {}
    policy = json_object("DeliveryPolicy", text)
    for key in policy:
        if key not in ("healthyRetryPolicy", "sicklyRetryPolicy", "throttlePolicy", "requestPolicy", "guaranteed"):
            raise invalid(f"DeliveryPolicy: Unexpected JSON member: {key}")
    _check(policy, "")
    return policy


def _named(prefix: str, name: str) -> str:
    return prefix + name[0].upper() + name[1:] if prefix else name


def _part(policy: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = policy.get(name)
    if found is not None and not isinstance(found, dict):
        raise invalid(f"DeliveryPolicy: {name} must be an object")
    return found or {}


def _check(policy: Mapping[str, Any], prefix: str) -> None:
    given = _part(policy, _named(prefix, "healthyRetryPolicy"))
    _part(policy, _named(prefix, "sicklyRetryPolicy"))
    for name, value in given.items():
        if name not in RETRY_DEFAULTS:
            raise invalid(f"DeliveryPolicy: Unexpected JSON member: {name}")
        if name == "backoffFunction":
            if value not in _BACKOFF_FUNCTIONS:
                raise invalid("DeliveryPolicy: backoffFunction must be linear, arithmetic, geometric or exponential")
        elif not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise invalid(f"DeliveryPolicy: {name} must be a number that is not negative")
    retries = RETRY_DEFAULTS | given
    low, high = retries["minDelayTarget"], retries["maxDelayTarget"]
    if "minDelayTarget" in given and "maxDelayTarget" not in given:
        high = max(low, high)
    if not 1 <= low <= _DELAY_S_MAX or not 1 <= high <= _DELAY_S_MAX:
        raise invalid(f"DeliveryPolicy: minDelayTarget and maxDelayTarget must be from 1 to {_DELAY_S_MAX}")
    if low > high:
        raise invalid("DeliveryPolicy: minDelayTarget must be less than or equal to maxDelayTarget")
    if retries["numRetries"] > _RETRIES_MAX:
        raise invalid(f"DeliveryPolicy: numRetries must be from 0 to {_RETRIES_MAX}")
    if sum(retries[name] for name in _COUNTS[1:]) > retries["numRetries"]:
        raise invalid("DeliveryPolicy: the retries of the phases must not be more than numRetries")
    throttle = _part(policy, _named(prefix, "throttlePolicy"))
    rate = throttle.get("maxReceivesPerSecond")
    if rate is not None and (not isinstance(rate, int) or isinstance(rate, bool) or rate < 1):
        raise invalid("DeliveryPolicy: maxReceivesPerSecond must be 1 or more")
    request = _part(policy, _named(prefix, "requestPolicy"))
    kind = request.get("headerContentType")
    if kind is not None and kind not in _CONTENT_TYPES:
        raise invalid(f"DeliveryPolicy: headerContentType: {kind} is not supported")


def _retries(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    made = {**defaults, **given}
    made["maxDelayTarget"] = max(made["minDelayTarget"], made["maxDelayTarget"])
    return made


def effective_for_topic(text: str) -> str:
    """`EffectiveDeliveryPolicy` of a topic.

    >>> '"numRetries":7' in effective_for_topic('{"http": {"defaultHealthyRetryPolicy": {"numRetries": 7}}}')
    True
    """
    http = read_topic_policy(text)
    shown = {
        "defaultHealthyRetryPolicy": _retries(_part(http, "defaultHealthyRetryPolicy"), RETRY_DEFAULTS),
        "disableSubscriptionOverrides": bool(http.get("disableSubscriptionOverrides", False)),
    }
    if http.get("defaultThrottlePolicy"):
        shown["defaultThrottlePolicy"] = http["defaultThrottlePolicy"]
    shown["defaultRequestPolicy"] = {"headerContentType": CONTENT_TYPE} | _part(http, "defaultRequestPolicy")
    return msgspec.json.encode({"http": shown}).decode()


def _merged(topic_text: str, own_text: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    http, own = read_topic_policy(topic_text), read_subscription_policy(own_text)
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
