"""The Query protocol: a form in, XML out; the action is a field of the form.

Both directions are one walk over the shapes that JSON uses as well. What differs is in the two tables: lists and maps
are numbered fields with a name of their own (`Attribute.1.Name`, `Attribute.1.Value`), and elements repeated without
an enclosing one in XML.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

import msgspec

from penstock.protocols.http import Exchange
from penstock.protocols.http.exchange import Rendered
from penstock.protocols.sqs.errors import (
    MALFORMED_INPUT,
    QUEUE_DOES_NOT_EXIST,
    SERVICE_UNAVAILABLE,
    UNKNOWN_OPERATION,
    SqsError,
)
from penstock.protocols.sqs.message_attributes import escaped
from penstock.protocols.sqs.shapes import Shape

CONTENT_TYPE = ("content-type", "text/xml")
NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
FIELDS_MAX = 20_000
_DEPTH_MAX = 6
_DIGITS_MAX = 10
_PROTOCOL_FIELDS = frozenset(
    {"Action", "Version", "AWSAccessKeyId", "Signature", "SignatureMethod", "SignatureVersion", "Timestamp", "Expires"}
)


class _Many(NamedTuple):
    """A list or a map in the shapes, and its name in the form and in XML."""

    member: str
    name: str
    key: str = ""
    """For maps: the field with the key; the value is in `Value`."""


_MANY_IN = (
    _Many("Attributes", "Attribute", "Name"),
    _Many("MessageAttributes", "MessageAttribute", "Name"),
    _Many("MessageSystemAttributes", "MessageSystemAttribute", "Name"),
    _Many("Tags", "Tag", "Key"),
    _Many("AttributeNames", "AttributeName"),
    _Many("MessageSystemAttributeNames", "MessageSystemAttributeName"),
    _Many("MessageAttributeNames", "MessageAttributeName"),
    _Many("AWSAccountIds", "AWSAccountId"),
    _Many("Actions", "ActionName"),
    _Many("TagKeys", "TagKey"),
    _Many("Entries", "SendMessageBatchRequestEntry"),
    _Many("Entries", "DeleteMessageBatchRequestEntry"),
    _Many("Entries", "ChangeMessageVisibilityBatchRequestEntry"),
    _Many("StringListValues", "StringListValue"),
    _Many("BinaryListValues", "BinaryListValue"),
)
_IN = {many.name: many for many in _MANY_IN}
_EMPTIES = frozenset(many.member for many in _MANY_IN)
"""An empty list or map is a field of its member's name, without a value."""
_INTEGERS = frozenset(
    {
        "DelaySeconds",
        "MaxNumberOfMessages",
        "MaxNumberOfMessagesPerSecond",
        "MaxResults",
        "VisibilityTimeout",
        "WaitTimeSeconds",
    }
)

_OUT = {
    "Attributes": ("Attribute", "Name"),
    "MessageAttributes": ("MessageAttribute", "Name"),
    "Tags": ("Tag", "Key"),
    "QueueUrls": ("QueueUrl", ""),
    "queueUrls": ("QueueUrl", ""),
    "Messages": ("Message", ""),
    "Results": ("ListMessageMoveTasksResultEntry", ""),
    "Failed": ("BatchResultErrorEntry", ""),
}


# -- in ----------------------------------------------------------------------------------------------------------------


def parse_form(text: str) -> dict[str, str]:
    """The fields of a form; a field that comes again replaces the first.

    >>> parse_form("Action=SendMessage&MessageBody=a%20b+c")
    {'Action': 'SendMessage', 'MessageBody': 'a b c'}
    """
    fields: dict[str, str] = {}
    if text.count("&") >= FIELDS_MAX:
        raise _malformed(f"The form has more than {FIELDS_MAX} fields.")
    try:
        for pair in text.split("&"):
            if pair:
                name, _, value = pair.partition("=")
                fields[unquote_plus(name, errors="strict")] = unquote_plus(value, errors="strict")
    except UnicodeDecodeError:
        raise _malformed("The form is not UTF-8.") from None
    return fields


def _malformed(message: str) -> SqsError:
    return SqsError(MALFORMED_INPUT, message)


def decode(fields: dict[str, str], shape: type[Shape]) -> Any:
    members = _members(_tree(fields))
    if "Tags" in members and "tags" in shape.__struct_encode_fields__:
        members["tags"] = members.pop("Tags")
    try:
        return msgspec.convert(members, shape)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise _malformed(f"The request is not as the action needs it: {error}") from None


_Tree = dict[str, Any]


def _tree(fields: dict[str, str]) -> _Tree:
    """Fields with dots in their names, as a tree."""
    tree: _Tree = {}
    for name, value in fields.items():
        if name in _PROTOCOL_FIELDS:
            continue
        path = name.split(".")
        if len(path) > _DEPTH_MAX:
            raise _malformed(f"The field {name} is too deep.")
        branch = tree
        for step in path[:-1]:
            branch = branch.setdefault(step, {})
            if not isinstance(branch, dict):
                raise _malformed(f"The field {name} is a value and a structure at once.")
        if isinstance(branch.get(path[-1]), dict):
            raise _malformed(f"The field {name} is a value and a structure at once.")
        branch[path[-1]] = value
    return tree


def _members(tree: _Tree) -> dict[str, Any]:
    """A tree's members as JSON has them."""
    members: dict[str, Any] = {}
    for name, node in tree.items():
        many = _IN.get(name)
        if many is not None and isinstance(node, dict):
            if many.key:
                members[many.member] = dict(_pairs(node, many))
            else:
                members[many.member] = [_item(each) for each in _in_order(node)]
        elif not node and name in _EMPTIES:
            continue
        elif many is not None and not many.key:
            members[many.member] = [node] if node else []
        elif isinstance(node, dict):
            continue
        elif name in _INTEGERS:
            members[name] = _integer(name, node)
        else:
            members[name] = node
    return members


def _in_order(node: _Tree) -> Iterator[Any]:
    """The numbered items of a list; one that is not numbered at all is a list of one."""
    numbered = [key for key in node if key.isascii() and key.isdigit() and len(key) < _DIGITS_MAX]
    if numbered:
        yield from (node[key] for key in sorted(numbered, key=int))
    elif node:
        yield node


def _item(node: Any) -> Any:
    return _members(node) if isinstance(node, dict) else node


def _pairs(node: _Tree, many: _Many) -> Iterator[tuple[str, Any]]:
    for item in _in_order(node):
        key = item.get(many.key) if isinstance(item, dict) else None
        if not isinstance(key, str):
            raise _malformed(f"An item of {many.name} has no {many.key}.")
        yield key, _item(item.get("Value", ""))


def _integer(name: str, text: str) -> int:
    try:
        if len(text) > 20:
            raise ValueError
        return int(text)
    except ValueError:
        raise _malformed(f"The value of {name} is not an integer.") from None


_OPENED = 2
"""Pieces of an answer in whose result is nothing yet."""


# -- out ---------------------------------------------------------------------------------------------------------------


def encode(action: str, result: Shape | None, request_id: str) -> bytes:
    """An action's answer.

    >>> encode("DeleteQueue", None, "1").decode()
    '<?xml version="1.0"?><DeleteQueueResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/"><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></DeleteQueueResponse>'
    """
    pieces = [f'<?xml version="1.0"?><{action}Response xmlns="{NAMESPACE}">']
    if result is not None:
        pieces.append(f"<{action}Result>")
        _write(pieces, action, result)
        if len(pieces) == _OPENED:
            pieces[-1] = f"<{action}Result/>"
        else:
            pieces.append(f"</{action}Result>")
    pieces.append(f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{action}Response>")
    return "".join(pieces).encode()


def _write(pieces: list[str], action: str, shape: Shape) -> None:
    for field, name in zip(shape.__struct_fields__, shape.__struct_encode_fields__, strict=True):
        value = getattr(shape, field)
        if value is None:
            continue
        if isinstance(value, dict):
            _write_map(pieces, action, value, *_OUT[name])
        elif isinstance(value, list):
            element = f"{action}ResultEntry" if name == "Successful" else _OUT[name][0]
            for item in value:
                _write_element(pieces, action, element, item)
        else:
            _write_element(pieces, action, name, value)


def _write_map(pieces: list[str], action: str, values: dict[str, Any], element: str, key: str) -> None:
    for name, value in values.items():
        pieces.append(f"<{element}><{key}>{_text(name)}</{key}>")
        _write_element(pieces, action, "Value", value)
        pieces.append(f"</{element}>")


def _write_element(pieces: list[str], action: str, element: str, value: Any) -> None:
    pieces.append(f"<{element}>")
    if isinstance(value, Shape):
        _write(pieces, action, value)
    else:
        pieces.append(_text(value))
    pieces.append(f"</{element}>")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def respond(exchange: Exchange, action: str, result: Shape | None) -> bool:
    """Answer with a result; False if the client is gone."""
    headers = (CONTENT_TYPE, ("x-amzn-requestid", exchange.request_id))
    return exchange.respond(200, headers, encode(action, result, exchange.request_id))


def respond_unknown(exchange: Exchange) -> None:
    """Answer a request that names no action, as AWS does: before it is taken for one of SQS's."""
    exchange.outcome = UNKNOWN_OPERATION.code
    headers = (CONTENT_TYPE, ("x-amzn-requestid", exchange.request_id))
    exchange.respond(404, headers, b"<UnknownOperationException/>\n")


def respond_error(exchange: Exchange, error: SqsError) -> None:
    exchange.outcome = error.kind.code
    headers = (CONTENT_TYPE, ("x-amzn-requestid", exchange.request_id))
    exchange.respond(error.kind.status, headers, encode_error(error, exchange.request_id))


def render_refusal(status: int, _code: str, reason: str) -> Rendered:
    """What is said to who is refused before a handler sees a request, in whichever protocol it would have been. SDKs of
    the Query protocol fail on anything but XML, and those of JSON take it for a text.
    """
    kind = SERVICE_UNAVAILABLE if status == SERVICE_UNAVAILABLE.status else MALFORMED_INPUT
    return (CONTENT_TYPE,), encode_error(SqsError(kind, reason), str(uuid.uuid4()))


def encode_error(error: SqsError, request_id: str) -> bytes:
    kind, message = error.kind, error.message
    if kind is QUEUE_DOES_NOT_EXIST:
        message = "The specified queue does not exist for this wsdl version."
    fault = "Sender" if kind.is_senders_fault else "Receiver"
    return (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{fault}</Type>'
        f"<Code>{kind.code}</Code><Message>{_text(message)}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    ).encode()
