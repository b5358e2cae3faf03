"""What a subscriber gets of a message: bare, or in an envelope with AWS's fields."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from penstock.core.commands import Run
from penstock.core.queues.attributes import Attributes, AttributeValue, decode_attributes
from penstock.protocols.sns.filters import Filter, attribute_values, body_values, holds_for
from penstock.protocols.sns.signing import Signer
from penstock.protocols.sns.topics import PENDING_MS_MAX, STRUCTURE, SUBJECT, Subscription
from penstock.protocols.sns.wire import INVALID_PARAMETER, invalid
from penstock.protocols.sqs.errors import SqsError
from penstock.protocols.sqs.message_attributes import STORED_SENDER, STORED_TRACE_HEADER, from_stored
from penstock.protocols.sqs.service import sequence_number

_RAW_ATTRIBUTES_MAX = 10
_MAC_BYTES = 16


class Outgoing(msgspec.Struct):
    """A message as a subscriber gets it."""

    body: bytes
    attributes: dict[str, AttributeValue]
    group: str | None
    dedup_id: str | None
    sequence: int = 0
    message_id: str = ""
    attempt: int = 1
    refusal: str = ""
    """Why it cannot be delivered."""
    is_fifo: bool = False
    """Whether its topic is a FIFO topic."""


def timestamp(ms: int) -> str:
    """A time as SNS writes it.

    >>> timestamp(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    return datetime.fromtimestamp(ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1_000:03d}Z"


class Envelopes:
    """Makes what one subscription gets of its topic's messages."""

    def __init__(
        self,
        found: Subscription,
        wanted: Filter | None,
        arn: str,
        *,
        is_fifo: bool,
        signer: Signer | None,
        version: str,
        message_id: Any,
    ) -> None:
        self._found = found
        self._wanted = wanted
        self._arn = arn
        self._is_fifo = is_fifo
        self._signer = signer
        self._version = version
        self._message_id = message_id

    def of(self, runs: list[Run], replay_id: str = "", stop: int | None = None) -> Iterator[Outgoing]:
        """What the subscriber gets of a delivery. Replayed messages go up to the number `stop`."""
        found = self._found
        for run in runs:
            chunk = run.chunk
            attempts = run.attempts
            for index in range(run.start, run.stop):
                sequence = chunk.base + index
                if stop is not None and sequence >= stop:
                    continue
                body, stored = chunk.body(index), decode_attributes(chunk.attributes(index))
                typed = from_stored(stored, lambda name: name not in (SUBJECT, STRUCTURE))
                if stored.get(STRUCTURE) == "json":
                    body = _for_protocol(body, found.protocol)
                if self._wanted is not None:
                    seen = (
                        body_values(body)
                        if found.of_body
                        else attribute_values(
                            {
                                name: (value.data_type or "String", value.string_value or value.binary_value or "")
                                for name, value in typed.items()
                            }
                        )
                    )
                    if seen is None or not holds_for(self._wanted, seen):
                        continue
                dedup_id = chunk.dedup_id(index)
                if self._is_fifo and dedup_id is None:
                    dedup_id = hashlib.sha256(chunk.body(index)).hexdigest()
                if replay_id:  # the queue has seen its id, and would drop it
                    dedup_id = hashlib.sha256(f"{replay_id} {dedup_id}".encode()).hexdigest()
                message_id = self._message_id(sequence)
                passed = {name: stored[name] for name in (STORED_TRACE_HEADER, STORED_SENDER) if name in stored}
                made = Outgoing(
                    body,
                    passed,
                    chunk.group(index),
                    dedup_id,
                    sequence,
                    message_id,
                    int(attempts[index - run.start]),
                    is_fifo=self._is_fifo,
                )
                if found.is_raw:
                    if found.protocol == "sqs" and len(typed) > _RAW_ATTRIBUTES_MAX:
                        made.refusal = "raw messages have at most 10 attributes"
                    made.attributes = passed | {name: stored[name] for name in typed}
                else:
                    made.body = self._enveloped(body, typed, stored, sequence, chunk.sent_ms, bool(replay_id))
                yield made

    def _enveloped(
        self, body: bytes, typed: dict[str, Any], stored: Attributes, sequence: int, sent_ms: int, is_replayed: bool
    ) -> bytes:
        """A message as it is delivered unless its subscriber wants it raw: signed, with what it is about."""
        envelope: dict[str, Any] = {"Type": "Notification", "MessageId": self._message_id(sequence)}
        if self._is_fifo:
            envelope["SequenceNumber"] = sequence_number(sequence)
        envelope["TopicArn"] = self._arn.rpartition(":")[0]
        if stored.get(SUBJECT) is not None:
            envelope["Subject"] = stored[SUBJECT]
        envelope["Message"] = body.decode("utf-8", "replace")
        envelope["Timestamp"] = timestamp(sent_ms)
        sign(envelope, self._signer, self._version, self._found.url)
        envelope["UnsubscribeURL"] = unsubscribe_url(self._found.url, self._arn)
        if is_replayed:
            envelope["Replayed"] = "true"
        if typed:
            envelope["MessageAttributes"] = {
                name: {
                    "Type": value.data_type,
                    "Value": value.string_value if value.string_value is not None else value.binary_value,
                }
                for name, value in typed.items()
            }
        return msgspec.json.encode(envelope)


def _for_protocol(body: bytes, protocol: str) -> bytes:
    """The text for a protocol, of a message that has several.

    >>> _for_protocol(b'{"default": "a", "http": "b"}', "http"), _for_protocol(b'{"default": "a"}', "sqs")
    (b'b', b'a')
    """
    by_protocol = body_values(body) or {}  # what others than SNS send to the topic's queue need not be as it says
    chosen = by_protocol.get(protocol, by_protocol.get("default"))
    if chosen is None:
        return body
    return chosen.encode() if isinstance(chosen, str) else msgspec.json.encode(chosen)


def unsubscribe_url(url: str, arn: str) -> str:
    """Where a subscription is ended with a click."""
    return f"{url}/?Action=Unsubscribe&SubscriptionArn={quote(arn, safe=':')}"


def sign(envelope: dict[str, Any], signer: Signer | None, version: str, url: str) -> None:
    """Add the fields of a signature, if there is a signer."""
    if signer is not None:
        envelope["SignatureVersion"] = version
        envelope["Signature"] = signer.sign(envelope, version)
        envelope["SigningCertURL"] = url + signer.path


def confirmation(
    kind: str, message_id: str, arn: str, token: str, url: str, now_ms: int, signer: Signer | None, version: str
) -> bytes:
    """A `SubscriptionConfirmation` or an `UnsubscribeConfirmation`. `arn` is the subscription's."""
    topic = arn.rpartition(":")[0]
    text = (
        f"You have chosen to subscribe to the topic {topic}.\n"
        "To confirm the subscription, visit the SubscribeURL included in this message."
        if kind == "SubscriptionConfirmation"
        else f"You have chosen to deactivate subscription {arn}.\n"
        "To cancel this operation and restore the subscription, visit the SubscribeURL included in this message."
    )
    envelope: dict[str, Any] = {
        "Type": kind,
        "MessageId": message_id,
        "Token": token,
        "TopicArn": topic,
        "Message": text,
        "SubscribeURL": f"{url}/?Action=ConfirmSubscription&TopicArn={quote(topic, safe=':')}&Token={token}",
        "Timestamp": timestamp(now_ms),
    }
    sign(envelope, signer, version, url)
    return msgspec.json.encode(envelope)


class Ticket(msgspec.Struct, array_like=True):
    """What a token says: which subscription is confirmed, and until when. It is sealed, and stored nowhere."""

    queue_id: int
    subscription_id: str
    made_ms: int
    restored: Subscription | None = None
    """The subscription that comes back, if it was ended."""


def seal(ticket: Ticket, secret: bytes) -> str:
    """A token.

    >>> open_token(seal(Ticket(1, "a", 5), b"secret"), b"secret", 6).subscription_id
    'a'
    """
    data = msgspec.msgpack.encode(ticket)
    return (_mac(data, secret) + data).hex()


def open_token(token: str, secret: bytes, now_ms: int) -> Ticket:
    """What a token says; `SqsError` if it is none of ours, or too old."""
    try:
        data = bytes.fromhex(token)
    except ValueError:
        raise SqsError(INVALID_PARAMETER, "Invalid token") from None
    if not hmac.compare_digest(_mac(data[_MAC_BYTES:], secret), data[:_MAC_BYTES]):
        raise invalid("Token")
    ticket = msgspec.msgpack.decode(data[_MAC_BYTES:], type=Ticket)
    if now_ms > ticket.made_ms + PENDING_MS_MAX:
        raise invalid("Token Reason: the token has expired")
    return ticket


def _mac(data: bytes, secret: bytes) -> bytes:
    return hashlib.blake2b(data, key=secret[:32], person=b"sns token 1", digest_size=_MAC_BYTES).digest()
