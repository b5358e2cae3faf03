"""Filter policies: which messages a subscription gets. Pure: text in, a predicate out.

A policy is a JSON object. Each key has a list of conditions, one of which must hold; all keys must hold. With the scope
`MessageBody` keys nest as the body does. `$or` has a list of policies, one of which must hold. A policy is checked when
it is set, and compiled to closures, so that a whole run of messages is filtered without reading it again.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from penstock.protocols.sns.wire import invalid
from penstock.protocols.sqs.errors import SqsError

Values = list[Any]
"""What a message has under a key: the values of an attribute, or of the places in the body that a path leads to."""
Test = Callable[[Any], bool]
Filter = Callable[[Mapping[str, Any]], bool]

_POLICY_BYTES_MAX = 256 * 1024
_KEYS_MAX = 5
_COMBINATIONS_MAX = 150
_NUMBER_MAX = 10**9
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": lambda value, bound: value == bound,
    "<": lambda value, bound: value < bound,
    "<=": lambda value, bound: value <= bound,
    ">": lambda value, bound: value > bound,
    ">=": lambda value, bound: value >= bound,
}


def _wrong(reason: str) -> SqsError:
    return invalid(f"FilterPolicy: {reason}")


def compile_policy(text: str, *, of_body: bool) -> Filter:
    """The predicate of a policy, over attributes (`attribute_values`) or over a body; `SqsError` if it is not valid.

    >>> wanted = compile_policy('{"kind": ["order", {"prefix": "re"}], "size": [{"numeric": [">", 3]}]}', of_body=False)
    >>> wanted({"kind": ["return"], "size": [4]}), wanted({"kind": ["order"], "size": [3]}), wanted({"size": [9]})
    (True, False, False)
    """
    if len(text.encode()) > _POLICY_BYTES_MAX:
        raise _wrong("Filter policy is too large")
    try:
        policy = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise _wrong("failed to parse JSON.") from None
    if not isinstance(policy, dict):
        raise _wrong("Filter policy must be a JSON object")
    try:
        found = _object(policy, 1)
    except RecursionError:
        raise _wrong("Filter policy is too complex") from None
    if found.is_nested and not of_body:
        raise invalid("Filter policy scope MessageAttributes does not support nested filter policy")
    if len(policy) > _KEYS_MAX:
        raise _wrong(f"Filter policy can not have more than {_KEYS_MAX} keys")
    if found.combinations > _COMBINATIONS_MAX:
        raise _wrong("Filter policy is too complex")
    return found.holds


class _Compiled(NamedTuple):
    """A policy, or a part of one."""

    holds: Filter
    combinations: int
    """How many combinations of values it has, as AWS counts: deeper ones more often, alternatives together."""
    is_nested: bool


def _object(policy: dict[str, Any], depth: int) -> _Compiled:
    parts: list[Filter] = []
    combinations, is_nested = 1, False
    for key, rule in policy.items():
        if key == "$or" and isinstance(rule, list) and len(rule) >= 2 and all(isinstance(each, dict) for each in rule):
            either = [_object(each, depth) for each in rule]
            combinations *= sum(each.combinations for each in either)
            is_nested |= any(each.is_nested for each in either)
            alternatives = [each.holds for each in either]
            parts.append(lambda message, either=alternatives: any(each(message) for each in either))  # type: ignore[misc]
        elif isinstance(rule, dict):
            if not rule:
                raise _wrong("Empty objects are not allowed as a filter policy")
            inner = _object(rule, depth + 1)
            combinations *= inner.combinations
            is_nested = True
            parts.append(
                lambda message, key=key, inner=inner.holds: any(  # type: ignore[misc]
                    isinstance(each, dict) and inner(each) for each in _flat(message.get(key))
                )
            )
        elif isinstance(rule, list):
            if not rule:
                raise _wrong("Empty arrays are not allowed")
            combinations *= len(rule) * depth
            parts.append(_leaf(key, rule))
        else:
            raise _wrong(f'"{key}" must be an object or an array')
    return _Compiled(lambda message: all(part(message) for part in parts), combinations, is_nested)


def _flat(value: Any) -> Values:
    """A value, or the values of lists in it.

    >>> _flat([1, [2, 3]]), _flat("a")
    ([1, 2, 3], ['a'])
    """
    if not isinstance(value, list):
        return [value]
    found: Values = []
    rest = value[::-1]
    while rest:  # a message may have lists in lists as deep as it likes
        each = rest.pop()
        if isinstance(each, list):
            rest += each[::-1]
        else:
            found.append(each)
    return found


def _leaf(key: str, rule: list[Any]) -> Filter:
    """One of the conditions holds for one of the values under the key."""
    tests: list[Test] = []
    exists: set[bool] = set()
    texts = frozenset(each for each in rule if isinstance(each, str))
    if texts:
        tests.append(lambda value: isinstance(value, str) and value in texts)
    for condition in rule:
        if isinstance(condition, str):
            continue
        if isinstance(condition, dict) and list(condition) == ["exists"]:
            if not isinstance(condition["exists"], bool):
                raise _wrong("exists match pattern must be either true or false.")
            exists.add(condition["exists"])
        else:
            tests.append(_test(condition))

    def holds(message: Mapping[str, Any]) -> bool:
        if key not in message:
            return False in exists
        if True in exists:
            return True
        return any(test(value) for value in _flat(message[key]) for test in tests)

    return holds


def _test(condition: Any) -> Test:
    if condition is None or isinstance(condition, bool | str):
        return lambda value: type(value) is type(condition) and value == condition
    if isinstance(condition, int | float):
        return lambda value: _is_number(value) and value == condition
    if not isinstance(condition, dict):
        raise _wrong("Match value must be String, number, true, false, or null")
    if len(condition) != 1:
        raise _wrong("Only one key allowed in match expression")
    ((name, argument),) = condition.items()
    if name == "anything-but":
        if isinstance(argument, dict):
            if list(argument) != ["prefix"]:
                raise _wrong(f"Unsupported anything-but pattern: {', '.join(argument)}")
            inner = [_test(argument)]
        else:
            listed = argument if isinstance(argument, list) else [argument]
            if not listed or not all(isinstance(each, str) or _is_number(each) for each in listed):
                raise _wrong("Inside anything but list, start|null|boolean is not supported.")
            texts = frozenset(each for each in listed if isinstance(each, str))
            numbers = frozenset(each for each in listed if not isinstance(each, str))
            inner = [lambda value: value in texts if isinstance(value, str) else _is_number(value) and value in numbers]
        return lambda value: not any(test(value) for test in inner)
    if name in ("prefix", "suffix", "equals-ignore-case", "cidr"):
        if not isinstance(argument, str):
            raise _wrong(f"{name} match pattern must be a string")
        if name == "prefix":
            return lambda value: isinstance(value, str) and value.startswith(argument)
        if name == "suffix":
            return lambda value: isinstance(value, str) and value.endswith(argument)
        if name == "equals-ignore-case":
            folded = argument.casefold()
            return lambda value: isinstance(value, str) and value.casefold() == folded
        try:
            network = ipaddress.ip_network(argument, strict=False)
        except ValueError:
            raise _wrong("Malformed CIDR, one '/' required") from None
        return lambda value: _is_in(value, network)
    if name == "numeric":
        return _numeric(argument)
    raise _wrong(f"Unrecognized match type {name}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_in(value: Any, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return ipaddress.ip_address(value) in network
    except ValueError:
        return False


def _numeric(argument: Any) -> Test:
    """`["=", 3]`, or a bound, or two: `[">", 0, "<=", 150]`. What is wrong is said in the order in which AWS reads."""
    if not isinstance(argument, list):
        raise _wrong("Value of numeric must be an array.")
    first = argument[0] if argument else None
    if not isinstance(first, str):
        raise _wrong(f"Invalid member in numeric match: {_shown(first) if argument else ']'}")
    if first not in _COMPARE:
        raise _wrong(f"Unrecognized numeric range operator: {first}")
    low = _bound("equals" if first == "=" else first, argument[1:2])
    tests = [(_COMPARE[first], low)]
    if len(argument) > 2:
        if first not in (">", ">="):
            raise _wrong("Too many elements in numeric expression")
        second = argument[2]
        if not isinstance(second, str):
            raise _wrong(f"Bad value in numeric range: {_shown(second)}")
        if second not in ("<", "<="):
            raise _wrong(f"Bad numeric range operator: {second}")
        high = _bound(second, argument[3:4])
        if low >= high:
            raise _wrong("Bottom must be less than top")
        if len(argument) > 4:
            raise _wrong("Too many terms in numeric range expression")
        tests.append((_COMPARE[second], high))
    return lambda value: _is_number(value) and all(compare(value, bound) for compare, bound in tests)


def _bound(operator: str, there: list[Any]) -> float:
    """The number after an operator."""
    if not there or not _is_number(there[0]):
        raise _wrong(f"Value of {operator} must be numeric")
    bound: float = there[0]
    if not -_NUMBER_MAX <= bound <= _NUMBER_MAX:
        raise _wrong(f"Value of {operator} must be from -{_NUMBER_MAX} to {_NUMBER_MAX}")
    return bound


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def attribute_values(attributes: Mapping[str, tuple[str, Any]]) -> dict[str, Values]:
    """Message attributes (type and value) as policies see them: numbers as numbers, arrays as their values.

    >>> attribute_values({"n": ("Number", "1.0"), "l": ("String.Array", '["a", 1]'), "b": ("Binary", b"x")})
    {'n': [1.0], 'l': ['a', 1], 'b': []}
    """
    found: dict[str, Values] = {}
    for name, (kind, value) in attributes.items():
        if kind.startswith("Binary"):
            found[name] = []  # it exists, and equals nothing
        elif kind == "String.Array":
            try:
                found[name] = _flat(msgspec.json.decode(value))
            except (msgspec.DecodeError, RecursionError):
                found[name] = []
        elif kind.startswith("Number"):
            try:
                found[name] = [float(value)]
            except ValueError:  # what others than SNS send to the topic's queue need not be as its type says
                found[name] = []
        else:
            found[name] = [value]
    return found


def body_values(body: bytes) -> Mapping[str, Any] | None:
    """A body as policies see it; None if it is not a JSON object: then no policy holds."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def holds_for(wanted: Filter, message: Mapping[str, Any]) -> bool:
    """Whether a message is wanted. One that is nested more deeply than can be looked into is not."""
    try:
        return wanted(message)
    except RecursionError:
        return False


def chosen(wanted: Filter, messages: Iterable[Mapping[str, Any] | None]) -> list[int]:
    """The indexes of a run's messages that a policy wants."""
    return [index for index, message in enumerate(messages) if message is not None and wanted(message)]
