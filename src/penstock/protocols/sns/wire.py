"""SNS's wire protocol (Query): a form in, XML out. SDKs speak no other to SNS.

Lists are `Tags.member.1.Key`, maps `Attributes.entry.1.key` or, for message attributes, `entry.1.Name`. In XML they
are `<member>` and `<entry>` elements. Errors are `SqsError`s with codes of SNS.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core import errors as core
from penstock.protocols.http import Exchange
from penstock.protocols.sqs.errors import SERVICE_UNAVAILABLE, ErrorKind, SqsError
from penstock.protocols.sqs.message_attributes import escaped

NAMESPACE = "http://sns.amazonaws.com/doc/2010-03-31/"
_DEPTH_MAX = 10
_DIGITS_MAX = 10
_MAPS = frozenset({"Attributes"})

_SNS = "com.amazonaws.sns"
INVALID_PARAMETER = ErrorKind("InvalidParameterException", "InvalidParameter", 400, _SNS)
PARAMETER_VALUE_INVALID = ErrorKind("ParameterValueInvalid", "ParameterValueInvalid", 400, _SNS)
NOT_FOUND = ErrorKind("NotFoundException", "NotFound", 404, _SNS)
RESOURCE_NOT_FOUND = ErrorKind("ResourceNotFoundException", "ResourceNotFound", 404, _SNS)
AUTHORIZATION_ERROR = ErrorKind("AuthorizationErrorException", "AuthorizationError", 403, _SNS)
SUBSCRIPTION_LIMIT_EXCEEDED = ErrorKind("SubscriptionLimitExceededException", "SubscriptionLimitExceeded", 403, _SNS)
INVALID_STATE = ErrorKind("InvalidStateException", "InvalidState", 400, _SNS)
THROTTLED = ErrorKind("ThrottledException", "Throttled", 429, _SNS)
VALIDATION_ERROR = ErrorKind("ValidationException", "ValidationError", 400, _SNS)
TAG_LIMIT_EXCEEDED = ErrorKind("TagLimitExceededException", "TagLimitExceeded", 400, _SNS)
EMPTY_BATCH = ErrorKind("EmptyBatchRequestException", "EmptyBatchRequest", 400, _SNS)
TOO_MANY_ENTRIES = ErrorKind("TooManyEntriesInBatchRequestException", "TooManyEntriesInBatchRequest", 400, _SNS)
IDS_NOT_DISTINCT = ErrorKind("BatchEntryIdsNotDistinctException", "BatchEntryIdsNotDistinct", 400, _SNS)
INVALID_ENTRY_ID = ErrorKind("InvalidBatchEntryIdException", "InvalidBatchEntryId", 400, _SNS)
BATCH_TOO_LONG = ErrorKind("BatchRequestTooLongException", "BatchRequestTooLong", 400, _SNS)


def invalid(reason: str) -> SqsError:
    """A parameter that is not as SNS needs it.

    >>> invalid("Topic Name").message
    'Invalid parameter: Topic Name'
    """
    return SqsError(INVALID_PARAMETER, f"Invalid parameter: {reason}")


def json_object(name: str, text: str) -> dict[str, Any]:
    """A parameter that has to be a JSON object.

    >>> json_object("Policy", '{"a": 1}')
    {'a': 1}
    """
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise invalid(f"{name}: failed to parse JSON.")
    return found


def from_core(error: core.PenstockError) -> SqsError:
    """What an error of the core is in SNS.

    >>> from_core(core.QueueNotFound("there is no queue 'a'")).message
    'Topic does not exist'
    """
    if isinstance(error, core.QueueNotFound):
        return SqsError(NOT_FOUND, "Topic does not exist")
    if isinstance(error, core.Throttled):
        return SqsError(THROTTLED, str(error))
    if isinstance(error, core.InvalidRequest | core.NotFound):
        return invalid(str(error))
    return SqsError(SERVICE_UNAVAILABLE, str(error))


def decode(fields: dict[str, str]) -> dict[str, Any]:
    """The members of a request, lists as lists and maps as maps.

    >>> decode({"Name": "a", "Tags.member.1.Key": "k", "Attributes.entry.1.key": "x", "Attributes.entry.1.value": "y"})
    {'Name': 'a', 'Tags': [{'Key': 'k'}], 'Attributes': {'x': 'y'}}
    """
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        path = name.split(".")
        branch = tree
        for step in path[:-1]:
            branch = branch.setdefault(step, {})
            if not isinstance(branch, dict):
                raise invalid(f"{name} is a value and a structure at once")
        if len(path) > _DEPTH_MAX or isinstance(branch.get(path[-1]), dict):
            raise invalid(f"{name} is a value and a structure at once, or too deep")
        branch[path[-1]] = value
    return {name: _members(node) for name, node in tree.items()}


def _members(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    for kind in ("member", "entry"):
        numbered = node.get(kind)
        if isinstance(numbered, dict):
            keys = [key for key in numbered if key.isascii() and key.isdigit() and len(key) < _DIGITS_MAX]
            items = [_members(numbered[key]) for key in sorted(keys, key=int)]
            if kind == "member":
                return items
            pairs: dict[str, Any] = {}
            for item in items:
                key = (item.get("key") or item.get("Name")) if isinstance(item, dict) else None
                if not isinstance(key, str):
                    raise invalid("an entry of a map has no name")
                pairs[key] = item.get("value", item.get("Value", ""))
            return pairs
    return {name: _members(each) for name, each in node.items()}


def _write(name: str, value: Any) -> str:
    if isinstance(value, list):
        inner = "".join(_write("member", item) for item in value)
    elif isinstance(value, dict) and name in _MAPS:
        inner = "".join(f"<entry>{_write('key', key)}{_write('value', item)}</entry>" for key, item in value.items())
    elif isinstance(value, dict):
        inner = "".join(_write(key, item) for key, item in value.items() if item is not None)
    elif isinstance(value, bool):
        inner = "true" if value else "false"
    else:
        inner = escaped(str(value))
    return f"<{name}>{inner}</{name}>"


def encode(action: str, result: dict[str, Any] | None, request_id: str) -> bytes:
    """An action's answer.

    >>> encode("CreateTopic", {"TopicArn": "a"}, "1").decode()
    '<CreateTopicResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><CreateTopicResult><TopicArn>a</TopicArn></CreateTopicResult><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></CreateTopicResponse>'
    """
    body = "" if result is None else _write(f"{action}Result", result)
    return (
        f'<{action}Response xmlns="{NAMESPACE}">{body}<ResponseMetadata><RequestId>{request_id}</RequestId>'
        f"</ResponseMetadata></{action}Response>"
    ).encode()


def respond(exchange: Exchange, action: str, result: dict[str, Any] | None) -> None:
    exchange.outcome = "ok"
    headers = (("content-type", "text/xml"), ("x-amzn-requestid", exchange.request_id))
    exchange.respond(200, headers, encode(action, result, exchange.request_id))


def respond_error(exchange: Exchange, error: SqsError) -> None:
    exchange.outcome = error.kind.code
    fault = "Sender" if error.kind.is_senders_fault else "Receiver"
    body = (
        f'<ErrorResponse xmlns="{NAMESPACE}"><Error>{_write("Type", fault)}{_write("Code", error.kind.code)}'
        f"{_write('Message', error.message)}</Error>{_write('RequestId', exchange.request_id)}</ErrorResponse>"
    )
    headers = (("content-type", "text/xml"), ("x-amzn-requestid", exchange.request_id))
    exchange.respond(error.kind.status, headers, body.encode())
