"""Message attributes: their rules, their checksum, and how the store keeps them.

The checksum is AWS's: MD5 over the attributes in order of their names; name, type and value each with its length as
four bytes before it, and one byte between type and value that says whether the value is text (1) or binary (2).

Stored, a `String` is text, a `Binary` is bytes; every other type goes with its value (`TypedText`, `TypedBytes`). So an
attribute that another front end has set arrives here as String, Number or Binary, and the other way round.
"""

from __future__ import annotations

import hashlib
import html
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal

from penstock.core.queues.attributes import Attributes, TypedBytes, TypedText
from penstock.core.queues.attributes import AttributeValue as StoredValue
from penstock.protocols.sqs.errors import (
    INVALID_MESSAGE_CONTENTS,
    INVALID_PARAMETER_VALUE,
    UNSUPPORTED_OPERATION,
    SqsError,
)
from penstock.protocols.sqs.shapes import AttributeValue

TRACE_HEADER = "AWSTraceHeader"
STORED_TRACE_HEADER = "AWS.TraceHeader"
"""No user's attribute can have such a name, so there is no mistaking it."""
STORED_SENDER = "AWS.SenderId"
_HIDDEN = frozenset({STORED_TRACE_HEADER, STORED_SENDER})
ENCODING = "Penstock.Encoding"
"""Set on a message whose body is not text that SQS could carry: its value says how it was made one."""
BASE64 = AttributeValue(data_type="String", string_value="base64")

ALLOWED = "the set of allowed characters is #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF"
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\Z")
"""Letters of any script: AWS takes more than its documentation says."""
_RESERVED = ("aws.", "amazon.")
_NAME_LENGTH_MAX = 256
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_NUMBER_DIGITS_MAX = 38
_NUMBER_EXPONENT_MAX = 126
_NUMBER_EXPONENT_MIN = -128
_LENGTH = struct.Struct(">I")
_TEXT, _BINARY = b"\x01", b"\x02"


def not_allowed_in(text: str) -> str | None:
    """The first character that a message cannot have.

    >>> not_allowed_in("fine"), not_allowed_in("a" + chr(0))
    (None, '\\x00')
    """
    if text.isprintable():
        return None
    found = _NOT_ALLOWED.search(text)
    return None if found is None else found.group()


def escaped(text: str) -> str:
    """The text as XML has it. A character that XML cannot have is replaced.

    `xml.sax.saxutils` has the same, and takes a tenth of a server's start to load.

    >>> escaped("tea & <milk>" + chr(13) + chr(0))
    'tea &amp; &lt;milk&gt;&#13;�'
    """
    allowed = text if text.isprintable() else _NOT_ALLOWED.sub("\ufffd", text)
    return html.escape(allowed, quote=False).replace("\r", "&#13;")


# -- rules -------------------------------------------------------------------------------------------------------------


def check(attributes: Mapping[str, AttributeValue], attributes_max: int) -> None:
    """Raise what is wrong with the attributes of a message that is sent."""
    if len(attributes) > attributes_max:
        raise _invalid(
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{attributes_max}]."
        )
    for name, value in attributes.items():
        _check_name(name)
        _check_value(name, value)


def _invalid(message: str) -> SqsError:
    return SqsError(INVALID_PARAMETER_VALUE, message)


def _check_name(name: str) -> None:
    if not name:
        raise _invalid("The request must contain non-empty message attribute name.")
    if len(name) > _NAME_LENGTH_MAX:
        raise _invalid(f"Message (user) attribute name '{name}' must be shorter than {_NAME_LENGTH_MAX} bytes.")
    if name.lower().startswith(_RESERVED):
        raise _invalid(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. "
            "These strings are reserved for internal use."
        )
    if not _NAME.match(name):
        raise _invalid(
            f"Invalid attribute name '{name}': it can contain letters, digits, underscores, hyphens and periods; "
            "it must not start or end with a period, nor have two in succession."
        )


def _check_value(name: str, value: AttributeValue) -> None:
    if value.string_list_values or value.binary_list_values:
        raise SqsError(
            UNSUPPORTED_OPERATION, "Message attribute list values in SendMessage operation are not supported."
        )
    if not value.data_type:
        raise _invalid(f"The message (user) attribute '{name}' must contain non-empty message attribute type.")
    if len(value.data_type) > _NAME_LENGTH_MAX:
        raise _invalid(f"The type of message (user) attribute '{name}' must be shorter than {_NAME_LENGTH_MAX} bytes.")
    kind, dot, label = value.data_type.partition(".")
    if kind not in ("String", "Number", "Binary") or (dot and not label) or not_allowed_in(value.data_type):
        raise _invalid(
            f"The type of message (user) attribute '{name}' is invalid. You must use only the following supported "
            "type prefixes: Binary, Number, String."
        )
    if kind == "Binary":
        if value.string_value is not None or not value.binary_value:
            raise _empty(name, kind)
        return
    if value.binary_value is not None or not value.string_value:
        raise _empty(name, kind)
    if not_allowed_in(value.string_value) is not None:
        raise _invalid(f"Invalid binary character was found in the value of message attribute '{name}', {ALLOWED}")
    if kind == "Number" and not is_number(value.string_value):
        raise _invalid(f"Can't cast the value of message (user) attribute '{name}' to a number.")


def _empty(name: str, kind: str) -> SqsError:
    return _invalid(f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind}'.")


def is_number(text: str) -> bool:
    """Whether a text is a number with 38 digits at most, of a size from 10^-128 to 10^126.

    >>> is_number("-12.50e+3"), is_number("1" * 39), is_number("1e127"), is_number("NaN")
    (True, False, False, False)
    """
    if not _NUMBER.fullmatch(text):
        return False
    number = Decimal(text)
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    if len(digits) > _NUMBER_DIGITS_MAX:
        return False
    return not digits or _NUMBER_EXPONENT_MIN <= number.adjusted() <= _NUMBER_EXPONENT_MAX


def check_system(attributes: Mapping[str, AttributeValue]) -> None:
    """Raise what is wrong with the system attributes of a message that is sent. There is one: the trace header."""
    for name, value in attributes.items():
        if name != TRACE_HEADER:
            raise _invalid(
                f"Message system attribute name '{name}' is invalid. You must use only the following supported names: "
                f"{TRACE_HEADER}."
            )
        if value.data_type != "String":
            raise _invalid(f"The type of message system attribute '{name}' is invalid. You must use only: String.")
        if not value.string_value:
            raise _invalid(f"Message system attribute '{name}' must contain a non-empty value of type 'String'.")
        if not_allowed_in(value.string_value) is not None:
            raise SqsError(
                INVALID_MESSAGE_CONTENTS,
                f"Invalid binary character was found in the value of message system attribute '{name}', {ALLOWED}",
            )


def size(attributes: Mapping[str, AttributeValue]) -> int:
    """What attributes add to the size of their message: names, types and values.

    >>> size({"kind": AttributeValue(data_type="String", string_value="order")})
    15
    """
    return sum(
        len(name.encode()) + len((value.data_type or "").encode()) + len(_value_bytes(value))
        for name, value in attributes.items()
    )


# -- checksum ----------------------------------------------------------------------------------------------------------


def checksum(attributes: Mapping[str, AttributeValue]) -> str:
    """The MD5 that clients compare.

    >>> checksum({"Foo": AttributeValue(data_type="String", string_value="Bar")})
    'ae7155c6026991b6d54b11589678bf9c'
    """
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        value = attributes[name]
        is_binary = (value.data_type or "").startswith("Binary")
        digest.update(_measured(name.encode()))
        digest.update(_measured((value.data_type or "").encode()))
        digest.update(_BINARY if is_binary else _TEXT)
        digest.update(_measured(_value_bytes(value)))
    return digest.hexdigest()


def _measured(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _value_bytes(value: AttributeValue) -> bytes:
    return value.binary_value or b"" if value.string_value is None else value.string_value.encode()


# -- stored form -------------------------------------------------------------------------------------------------------


def to_stored(
    attributes: Mapping[str, AttributeValue] | None, system: Mapping[str, AttributeValue] | None
) -> dict[str, StoredValue]:
    stored = {name: _stored_value(value) for name, value in (attributes or {}).items()}
    if system:
        stored[STORED_TRACE_HEADER] = system[TRACE_HEADER].string_value or ""
    return stored


def _stored_value(value: AttributeValue) -> StoredValue:
    assert value.data_type is not None
    if value.data_type == "String":
        return value.string_value or ""
    if value.data_type == "Binary":
        return value.binary_value or b""
    if value.data_type.startswith("Binary"):
        return TypedBytes.of(value.binary_value or b"", value.data_type)
    return TypedText.of(value.string_value or "", value.data_type)


def from_stored(stored: Attributes, wanted: Callable[[str], bool]) -> dict[str, AttributeValue]:
    """Those attributes of a message that a receiver wants."""
    return {name: _value(value) for name, value in stored.items() if name not in _HIDDEN and wanted(name)}


def has_own(stored: Attributes) -> bool:
    """Whether a message has attributes that its sender gave it."""
    return any(name not in _HIDDEN for name in stored)


def _value(stored: StoredValue) -> AttributeValue:
    if isinstance(stored, TypedText):
        return AttributeValue(data_type=stored.type, string_value=str(stored))
    if isinstance(stored, TypedBytes):
        return AttributeValue(data_type=stored.type, binary_value=bytes(stored))
    if isinstance(stored, str):
        return AttributeValue(data_type="String", string_value=stored)
    if isinstance(stored, bytes):
        return AttributeValue(data_type="Binary", binary_value=stored)
    return AttributeValue(data_type="Number", string_value=str(stored))


def _anything(_name: str) -> bool:
    return True


def wanted(names: Iterable[str]) -> Callable[[str], bool] | None:
    """Whether an attribute was asked for: by name, by `prefix.*`, or with all (`All`, `.*`, `*`). None: nothing was.
    Names that no attribute can have are passed over.

    >>> asked = wanted(["kind", "trace.*"])
    >>> [asked(name) for name in ("kind", "kinds", "trace.id", "tracer")]
    [True, False, True, True]
    >>> wanted(["AWS.", "..foo"]) is None
    True
    """
    names = set(names)
    if names & {"All", ".*", "*"}:
        return _anything
    names = {name for name in names if _NAME.match(name.removesuffix(".*")) and not name.lower().startswith(_RESERVED)}
    if not names:
        return None
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    if not prefixes:
        return names.__contains__
    return lambda name: name in names or name.startswith(prefixes)
