"""AWS JSON 1.0: a JSON object in, a JSON object out; the action is in the header `X-Amz-Target`."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.protocols.http import Exchange
from penstock.protocols.sqs.errors import MALFORMED_INPUT, SqsError

TARGET_PREFIX = "AmazonSQS."
CONTENT_TYPE = ("content-type", "application/x-amz-json-1.0")
OK_LINES: Final = "content-type: application/x-amz-json-1.0\r\nx-amzn-requestid: "
"""The header of an answer that went well, up to the request's id."""
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading a request raises that is not as its action needs it."""

_encoder = msgspec.json.Encoder()
encode = _encoder.encode
"""A result's bytes."""


def malformed(error: Exception) -> SqsError:
    return SqsError(MALFORMED_INPUT, f"The request is not as the action needs it: {error}")


def respond_error(exchange: Exchange, error: SqsError) -> None:
    exchange.outcome = error.kind.code
    headers = (CONTENT_TYPE, ("x-amzn-requestid", exchange.request_id), error_header(error))
    exchange.respond(error.kind.status, headers, encode_error(error))


def encode_error(error: SqsError) -> bytes:
    """An error's bytes.

    >>> from penstock.protocols.sqs.errors import OVER_LIMIT
    >>> encode_error(SqsError(OVER_LIMIT, "too many"))
    b'{"__type":"com.amazonaws.sqs#OverLimit","message":"too many"}'
    """
    kind = error.kind
    return _encoder.encode({"__type": f"{kind.namespace}#{kind.shape}", "message": error.message})


def error_header(error: SqsError) -> tuple[str, str]:
    """The header that tells clients of the old protocol's codes.

    >>> from penstock.protocols.sqs.errors import no_such_queue
    >>> error_header(no_such_queue())
    ('x-amzn-query-error', 'AWS.SimpleQueueService.NonExistentQueue;Sender')
    """
    fault = "Sender" if error.kind.is_senders_fault else "Receiver"
    return "x-amzn-query-error", f"{error.kind.code};{fault}"
