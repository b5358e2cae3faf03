"""Filter policies: against a naive reading of them, and what is refused."""

from __future__ import annotations

import ipaddress
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.sns.filters import attribute_values, body_values, compile_policy, holds_for
from penstock.protocols.sqs.errors import SqsError


def matches(condition: Any, value: Any) -> bool:
    """One condition, read naively."""
    if not isinstance(condition, dict):
        return json.dumps(condition) == json.dumps(value) or (
            not isinstance(condition, bool)
            and not isinstance(value, bool)
            and isinstance(condition, int | float)
            and isinstance(value, int | float)
            and condition == value
        )
    ((name, argument),) = condition.items()
    match name:
        case "anything-but":
            inner = [argument] if isinstance(argument, dict) else argument
            return all(not matches(each, value) for each in inner)
        case "prefix":
            return isinstance(value, str) and value[: len(argument)] == argument
        case "suffix":
            return isinstance(value, str) and (value[-len(argument) :] if argument else "") == argument
        case "equals-ignore-case":
            return isinstance(value, str) and value.lower() == argument.lower()
        case "cidr":
            try:
                return isinstance(value, str) and ipaddress.ip_address(value) in ipaddress.ip_network(argument)
            except ValueError:
                return False
        case "numeric":
            if isinstance(value, bool) or not isinstance(value, int | float):
                return False
            pairs = zip(argument[::2], argument[1::2], strict=True)
            return all(eval(f"a {'==' if o == '=' else o} b", {"a": value, "b": b}) for o, b in pairs)
    raise AssertionError(name)


def leaves(value: Any) -> list[Any]:
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, list) else [value]


def model(policy: dict[str, Any], message: dict[str, Any]) -> bool:
    """A whole policy, read naively."""
    for key, rule in policy.items():
        if key == "$or":
            holds = any(model(each, message) for each in rule)
        elif isinstance(rule, dict):
            holds = any(isinstance(each, dict) and model(rule, each) for each in leaves(message.get(key)))
        else:
            holds = False
            for condition in rule:
                if isinstance(condition, dict) and "exists" in condition:
                    holds |= (key in message) == condition["exists"]
                elif key in message:
                    holds |= any(matches(condition, value) for value in leaves(message[key]))
        if not holds:
            return False
    return True


texts = st.sampled_from(["", "a", "A", "ab", "ba", "10.0.0.1", "192.168.1.7"])
numbers = st.integers(-3, 3) | st.sampled_from([0.5, -1.5])
scalars = texts | numbers | st.booleans() | st.none()
ranges = st.tuples(st.sampled_from([">", ">="]), st.integers(-3, 0), st.sampled_from(["<", "<="]), st.integers(1, 3))
conditions = (
    scalars
    | st.fixed_dictionaries({"prefix": texts})
    | st.fixed_dictionaries({"suffix": texts})
    | st.fixed_dictionaries({"equals-ignore-case": texts})
    | st.fixed_dictionaries({"cidr": st.sampled_from(["10.0.0.0/24", "192.168.0.0/16"])})
    | st.fixed_dictionaries({"exists": st.booleans()})
    | st.fixed_dictionaries({"numeric": ranges.map(list) | st.tuples(st.just("="), numbers).map(list)})
    | st.fixed_dictionaries({"anything-but": st.lists(texts | numbers, min_size=1, max_size=2)})
    | st.fixed_dictionaries({"anything-but": st.fixed_dictionaries({"prefix": texts})})
)
rules = st.lists(conditions, min_size=1, max_size=2)
keys = st.sampled_from(["k", "l"])
flat = st.dictionaries(keys, rules, min_size=1, max_size=2)
either = st.fixed_dictionaries(
    {"$or": st.lists(st.dictionaries(keys, rules, min_size=1, max_size=1), min_size=2, max_size=2)}
)
nested = st.dictionaries(keys, st.dictionaries(keys, rules, min_size=1, max_size=1), min_size=1, max_size=2)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=2))
messages = st.dictionaries(keys, values, max_size=2)


@given(flat | either | nested, messages)
def test_a_compiled_policy_is_the_naive_reading(policy: dict[str, Any], message: dict[str, Any]) -> None:
    assert compile_policy(json.dumps(policy), of_body=True)(message) == model(policy, message)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("{", "failed to parse JSON."),
        ("[]", "Filter policy must be a JSON object"),
        ('{"a": []}', "Empty arrays are not allowed"),
        ('{"a": "b"}', '"a" must be an object or an array'),
        ('{"a": {"b": "c"}}', '"b" must be an object or an array'),
        ('{"key": [["value"]]}', "Match value must be String, number, true, false, or null"),
        ('{"key": [{"suffix": 100}]}', "suffix match pattern must be a string"),
        ('{"key": [{"suffix": null}]}', "suffix match pattern must be a string"),
        ('{"key": [{"suffix": []}]}', "suffix match pattern must be a string"),
        ('{"key": [{"suffix": ["test", "test2"]}]}', "suffix match pattern must be a string"),
        ('{"key": {"suffix": "value", "prefix": "value"}}', '"suffix" must be an object or an array'),
        ('{"key": {"not-an-operator": "value"}}', '"not-an-operator" must be an object or an array'),
        ('{"key": [{"exists": null}]}', "exists match pattern must be either true or false."),
        ('{"key": [{"numeric": []}]}', "Invalid member in numeric match: ]"),
        ('{"key": [{"numeric": ["operator"]}]}', "Unrecognized numeric range operator: operator"),
        ('{"key": [{"numeric": [1, "<="]}]}', "Invalid member in numeric match: 1"),
        ('{"key": [{"numeric": ["=", "000"]}]}', "Value of equals must be numeric"),
        ('{"key": [{"numeric": [">="]}]}', "Value of >= must be numeric"),
        ('{"key": [{"numeric": ["<", 100, ">", 10]}]}', "Too many elements in numeric expression"),
        ('{"key": [{"numeric": [">=", 1, ">", 2]}]}', "Bad numeric range operator: >"),
        ('{"key": [{"numeric": [">", 20, "<="]}]}', "Value of <= must be numeric"),
        ('{"key": [{"numeric": [">", 20, 30]}]}', "Bad value in numeric range: 30"),
        ('{"key": [{"numeric": [">", 20, "test"]}]}', "Bad numeric range operator: test"),
        ('{"key": [{"numeric": [">", "20", "<", "30"]}]}', "Value of > must be numeric"),
        ('{"key": [{"numeric": [">", 20, "<", "30"]}]}', "Value of < must be numeric"),
        ('{"key": [{"numeric": [">", 20, "<", 30, "<", 50]}]}', "Too many terms in numeric range expression"),
        ('{"key": [{"anything-but": {"wrong-operator": null}}]}', "Unsupported anything-but pattern: wrong-operator"),
        ('{"key": [{"anything-but": {"suffix": "test"}}]}', "Unsupported anything-but pattern: suffix"),
        ('{"key": [{"anything-but": {"exists": false}}]}', "Unsupported anything-but pattern: exists"),
        ('{"key": [{"anything-but": {"prefix": false}}]}', "prefix match pattern must be a string"),
        ('{"a": [{"prefix": "a", "suffix": "b"}]}', "Only one key allowed in match expression"),
        ('{"a": [{"colour": "b"}]}', "Unrecognized match type colour"),
        ('{"a": [{"exists": "yes"}]}', "exists match pattern must be either true or false."),
        ('{"a": [{"numeric": ["<", "b"]}]}', "Value of < must be numeric"),
        ('{"a": [{"numeric": [">", 5, "<", 2]}]}', "Bottom must be less than top"),
        ('{"a": [{"numeric": ["~", 5]}]}', "Unrecognized numeric range operator: ~"),
        ('{"a": [{"cidr": "x/33"}]}', "Malformed CIDR, one '/' required"),
        ('{"a":[1],"b":[1],"c":[1],"d":[1],"e":[1],"f":[1]}', "Filter policy can not have more than 5 keys"),
        (json.dumps({"a": list(range(13)), "b": list(range(13))}), "Filter policy is too complex"),
    ],
)
def test_a_policy_that_is_not_valid_is_refused(policy: str, reason: str) -> None:
    with pytest.raises(SqsError) as caught:
        compile_policy(policy, of_body=False)
    assert caught.value.message == f"Invalid parameter: FilterPolicy: {reason}"


def values_of(count: int) -> list[str]:
    return [str(number) for number in range(count)]


@pytest.mark.parametrize(
    ("policy", "combinations"),
    [
        ({"a": values_of(3), "b": values_of(1), "c": values_of(2)}, 6),
        ({"a": {"b": {"c": values_of(4)}}, "d": {"e": values_of(3)}, "f": values_of(3)}, 216),
        ({"a": {"b": values_of(25)}, "c": values_of(3)}, 150),
        ({"source": values_of(4), "$or": [{"a": values_of(20)}, {"b": values_of(17)}]}, 148),
        (
            {
                "source": values_of(4),
                "$or": [
                    {"metricName": values_of(2)},
                    {"metricType": values_of(3), "$or": [{"namespace": values_of(7)}, {"spec": values_of(6)}]},
                ],
            },
            164,
        ),
    ],
)
def test_combinations_are_counted_as_aws_counts_them(policy: dict[str, Any], combinations: int) -> None:
    text = json.dumps(policy)
    if combinations <= 150:
        compile_policy(text, of_body=True)
    else:
        with pytest.raises(SqsError, match="Filter policy is too complex"):
            compile_policy(text, of_body=True)


def test_a_nested_policy_counts_by_its_keys_at_the_top_and_is_for_bodies() -> None:
    nested = '{"a": [1], "b": [1], "c": [1], "d": {"e": [1], "f": [1], "g": [1]}}'
    compile_policy(nested, of_body=True)
    with pytest.raises(SqsError) as caught:
        compile_policy(nested, of_body=False)
    expected = "Invalid parameter: Filter policy scope MessageAttributes does not support nested filter policy"
    assert caught.value.message == expected


@pytest.mark.parametrize("depth", [100, 400, 900])
def test_lists_in_lists_are_looked_into_however_deep_they_are(depth: int) -> None:
    wanted = compile_policy('{"a": ["x"]}', of_body=True)
    found = body_values(b'{"a": ' + b"[" * depth + b'"x"' + b"]" * depth + b"}")
    assert found is not None
    assert wanted(found)


def test_the_deepest_policy_that_there_can_be_is_looked_into() -> None:
    wanted = compile_policy('{"$or": [' * 149 + '{"a": ["x"]}' + ', {"b": ["y"]}]}' * 149, of_body=True)
    assert wanted({"a": "x"})
    assert not wanted({"a": "y"})
    message: dict[str, Any] = {"a": "x"}
    for _ in range(99):
        message = {"a": [message]}
    wanted = compile_policy('{"a":' * 100 + '["x"]' + "}" * 100, of_body=True)
    assert holds_for(wanted, message)


@pytest.mark.parametrize(
    "policy", ['{"a":' * 900 + '["x"]' + "}" * 900, '{"$or":[{},' * 900 + '{"a":["x"]}' + "]}" * 900]
)
def test_a_policy_that_is_too_deep_is_refused(policy: str) -> None:
    with pytest.raises(SqsError, match=r"Filter policy is too complex|failed to parse JSON"):
        compile_policy(policy, of_body=True)


def test_a_number_that_is_none_equals_nothing() -> None:
    assert attribute_values({"n": ("Number", "many")}) == {"n": []}


def test_long_lists_of_a_policy_are_not_compared_one_by_one() -> None:
    listed = [f"x{number}" for number in range(20_000)]
    wanted = compile_policy(json.dumps({"a": [{"anything-but": listed}]}), of_body=True)
    exact = compile_policy(json.dumps({"a": [f"y{number}" for number in range(150)]}), of_body=True)
    message = {"a": ["x19999"] * 100_000}
    started_s = time.process_time()
    assert not wanted(message)
    assert not exact(message)
    assert wanted({"a": [20, "x20000"]})
    assert time.process_time() - started_s < 1
