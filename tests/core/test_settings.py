"""Settings: one declaration says what a value may be, how users write it, and what the docs and schemas show."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from penstock.core.errors import InvalidConfig
from penstock.core.queues.config import SETTINGS, Backoff, read_changes
from penstock.core.settings import Declared, Setting, declared, with_settings


class Sample(msgspec.Struct):
    """Settings of every kind."""

    pause_ms: Annotated[int, Setting("How long.", 0, 60_000)] = 1_500
    names: Annotated[list[str], Setting("Which.")] = msgspec.field(default_factory=list)
    ports: Annotated[list[int], Setting("Where.")] = msgspec.field(default_factory=list)
    labels: Annotated[dict[str, str], Setting("What.")] = msgspec.field(default_factory=dict)
    secret: Annotated[str, Setting("Who.", is_secret=True)] = ""
    share_s: Annotated[float, Setting("How much.", above=0, high=2)] = 1.0
    limit: Annotated[int | None, Setting("How many.", 1)] = None
    needed: Annotated[bool, Setting("Whether.")] = False
    plain: int = 0
    """No setting: nothing is declared of it."""


def of(name: str) -> Declared:
    return declared(Sample)[name]


def refusal(name: str, value: Any) -> str:
    with pytest.raises(InvalidConfig) as refused:
        (SETTINGS["backoff"] if name == "backoff" else of(name)).read(value, name)
    return str(refused.value)


def test_only_annotated_fields_are_settings_and_milliseconds_are_named_as_seconds() -> None:
    assert list(declared(Sample)) == ["pause", "names", "ports", "labels", "secret", "share_s", "limit", "needed"]
    assert of("pause").read(0.25, "pause") == 250
    assert of("pause").given(250) == 0.25


@pytest.mark.parametrize(
    "value", [True, "5", float("nan"), float("inf"), 1e308, -1e308, 10**400], ids=lambda value: repr(value)[:6]
)
def test_seconds_must_be_a_number(value: object) -> None:
    assert refusal("pause", value).endswith("it must be a number of seconds from 0 to 60")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("share_s", 0.0, "larger than 0, up to 2"),
        ("limit", 0, "1 or more"),
        ("limit", "many", "a whole number 1 or more, or none"),
        ("names", 7, "a list"),
        ("labels", [1], "texts by name"),
        ("needed", 1, "true or false"),
        ("secret", "half \ud800 a character", "secret is not right: it must be text"),
    ],
)
def test_what_is_refused_is_told_what_it_must_be(name: str, value: object, words: str) -> None:
    assert words in refusal(name, value)


def test_a_value_that_is_endless_or_long_is_shown_in_short() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for _ in range(3_000):
        endless = [endless]
    assert "nested too deeply" in refusal("labels", endless)
    assert "..." in refusal("limit", "x" * 1_000)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("limit", "none", None),
        ("limit", "7", 7),
        ("limit", "seven", "seven"),
        ("secret", "none", "none"),
        ("names", "a, b", ["a", "b"]),
        ("names", '["a"]', ["a"]),
        ("ports", "1, 2", [1, 2]),
        ("needed", "true", True),
    ],
)
def test_a_text_is_read_as_what_the_setting_is(name: str, text: str, value: object) -> None:
    assert of(name).from_text(text) == value


def test_defaults_are_shown_as_users_would_write_them() -> None:
    shown = {name: each.default_text for name, each in declared(Sample).items()}
    assert shown == {
        "pause": "1.5",
        "names": "",
        "ports": "",
        "labels": "",
        "secret": "",
        "share_s": "1.0",
        "limit": "none",
        "needed": "false",
    }


def test_schemas_have_kinds_ranges_words_and_parts() -> None:
    assert of("pause").schema() == {"type": "number", "minimum": 0, "maximum": 60, "description": "How long."}
    assert of("limit").schema()["anyOf"] == [{"type": "integer", "minimum": 1}, {"type": "null"}]
    assert of("labels").schema()["additionalProperties"] == {"type": "string"}
    assert SETTINGS["policy"].schema()["enum"] == ["at_least_once", "consume_times", "consume_once"]
    backoff = SETTINGS["backoff"].schema()
    assert "shape" in backoff["properties"] and backoff["additionalProperties"] is False


def test_a_setting_with_parts_is_checked_part_by_part() -> None:
    known = read_changes({"backoff": {"shape": "fixed"}})["backoff"]
    assert isinstance(known, Backoff) and known.shape == "fixed"
    assert "it must have some of the parts" in refusal("backoff", 7)
    assert "backoff has no part 'colour'" in refusal("backoff", {"colour": 1})
    assert "backoff.shape is 'round'" in refusal("backoff", {"shape": "round"})
    with pytest.raises(InvalidConfig, match="there is no setting 'colour'"):
        read_changes({"colour": 1})


def test_a_struct_with_settings_takes_any_value_and_leaves_out_what_is_not_given() -> None:
    @with_settings(declared(Sample).values())
    class Asked(msgspec.Struct, forbid_unknown_fields=True):
        """What somebody asked for."""

        name: str

    asked = msgspec.json.decode(b'{"name": "q", "pause": "soon"}', type=Asked)
    given = msgspec.structs.asdict(asked)
    assert (given["name"], given["pause"], given["limit"]) == ("q", "soon", msgspec.UNSET)
    assert Asked.__doc__ == "What somebody asked for."
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"name": "q", "colour": 1}', type=Asked)
