"""Settings, declared once: the type and the default are a field's own, the rest stands beside them in its annotation.

    lease_ms: Annotated[int, Setting("How long a receiver has.", 0, LEASE_MS_MAX)] = 30_000

From this come the check of a value and the words that refuse it, the Python signature, REST's schema, the tables of
penstock.toml, the options of the command line, environment variables, SQS's attributes, and the tables of the docs.
Queues' settings are the fields of `QueueConfig`, a server's those of the structs in `server/settings.py`.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union

import msgspec

from penstock.core.errors import InvalidConfig

SECOND_MS = 1_000
_SHOWN_MAX = 100
"""How much of a refused value is shown."""


class SqsAttribute(NamedTuple):
    """The attribute of SQS that a setting is; its range, in SQS's units, where that is another one than ours."""

    name: str
    low: int | None = None
    high: int | None = None
    relaxed: tuple[int, int] | None = None
    """The range with `limits = "relaxed"`, if that is another one."""
    words: Mapping[str, str] = {}
    """SQS's words for ours."""


class Setting(NamedTuple):
    """What a field's annotation says of a setting."""

    help: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    """It must be larger than this: instead of `low`, for lengths of time that cannot be 0."""
    for_life: bool = False
    """It is given when a queue is created, and stays."""
    sqs: SqsAttribute | None = None
    flag: str | None = None
    """A server's: the option of the command line, where there is one, with commas between its names."""
    is_secret: bool = False
    """It is not shown when it is refused."""
    live: bool = False
    """A server's: a running server takes a change of it, at SIGHUP."""
    example: str = ""
    """Of a setting with parts: one as JSON, for whoever gives something else."""


class Declared(msgspec.Struct, frozen=True):
    """A setting with all that is known of it."""

    field: str
    """Its name in the struct: `lease_ms`."""
    name: str
    """Its name for users: `lease`. Lengths of time in milliseconds are given in seconds."""
    type: Any
    kind: Any
    """Its type when it is not none."""
    choices: tuple[str, ...]
    """The words that it may be; empty if it is no matter of words."""
    default: Any
    setting: Setting

    @property
    def is_optional(self) -> bool:
        return NoneType in typing.get_args(self.type)

    @property
    def in_seconds(self) -> bool:
        """Whether users give seconds where the struct has milliseconds."""
        return self.field != self.name

    @property
    def unit(self) -> str:
        """What a number of it counts, for users; empty if its name says so, or if it is no number."""
        return "seconds" if self.in_seconds or self.field.endswith("_s") else ""

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """The least and the largest value, in the users' unit."""
        return self.given(self.setting.low), self.given(self.setting.high)

    # -- a value ---

    def check(self, value: Any) -> None:
        """Raise `InvalidConfig` if this cannot be the field's value. Most are the default."""
        if type(value) is not type(self.default) or value != self.default:
            self.checked(value, self.name)

    def read(self, value: Any, said: str) -> Any:
        """A value that a user gave, as the struct has it; `InvalidConfig`, with the name that the user said, if not."""
        if not self.in_seconds or value is None:
            return self.checked(value, said)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not _is_usable(value):
            raise self._of_a_wrong_kind(value, said)
        return self.checked(round(value * SECOND_MS), said)

    def from_text(self, text: str) -> Any:
        """What a text of an option or a variable says: a number, JSON, `none`, a list with commas, or the text itself.

        What cannot be read stays as it is, and is refused as it was given.
        """
        if text == "none" and self.is_optional:
            return None
        if self.kind is str or self.choices:
            return text
        if typing.get_origin(self.kind) is list and not text.startswith("["):
            parts = [part.strip() for part in text.split(",")]
            return parts if typing.get_args(self.kind) == (str,) else self.from_text(f"[{text}]")
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text

    def checked(self, value: Any, said: str) -> Any:
        """A value of the field's own type and unit, if that is what it is, and in its range.

        >>> from penstock.core.queues.config import SETTINGS
        >>> for name, value in (("lease", -1_000), ("policy", "never"), ("max_receives", "many")):
        ...     try: SETTINGS[name].checked(value, f"--{name}")
        ...     except InvalidConfig as error: print(error)
        --lease is -1 seconds: it must be from 0 to 43200 seconds
        --policy is 'never': it must be at_least_once, consume_times or consume_once
        --max_receives is 'many': it must be a whole number from 0 to 1000
        """
        if isinstance(self.kind, type) and issubclass(self.kind, msgspec.Struct):
            return _checked_struct(self.kind, value, said, self.setting.example)
        try:
            found = msgspec.convert(msgspec.to_builtins(value), self.type)
            if isinstance(found, dict | str):
                msgspec.msgpack.encode(found)  # half a character cannot be kept
        except (msgspec.ValidationError, TypeError, UnicodeEncodeError, RecursionError):
            raise self._of_a_wrong_kind(value, said) from None
        if isinstance(found, float) and not _is_usable(found):
            raise self._of_a_wrong_kind(value, said)
        if found is not None and not self._is_within(found):
            unit = f" {self.unit}" if self.unit else ""
            raise InvalidConfig(f"{said} is {_number(self.given(found))}{unit}: it must be {self.ends}{unit}")
        return found

    def _is_within(self, number: float) -> bool:
        low, high, above = self.setting.low, self.setting.high, self.setting.above
        return (low is None or number >= low) and (high is None or number <= high) and (above is None or number > above)

    @property
    def ends(self) -> str:
        """Its range in words, in the users' unit; empty if it has none."""
        low, high = self.limits
        if self.setting.above is not None:
            return f"larger than {_number(self.setting.above)}" + ("" if high is None else f", up to {_number(high)}")
        if low is None:
            return ""
        return f"{_number(low)} or more" if high is None else f"from {_number(low)} to {_number(high)}"

    def _of_a_wrong_kind(self, value: Any, said: str) -> InvalidConfig:
        if self.choices:
            *others, last = self.choices
            wanted = f"{', '.join(others)} or {last}"
        else:
            kind = float if self.in_seconds else typing.get_origin(self.kind) or self.kind
            wanted = " ".join(filter(None, (_WORDS[kind], self.unit and f"of {self.unit}", self.ends)))
            wanted += f", as in {self.setting.example}" if self.setting.example else ""
        shown = "not right" if self.setting.is_secret else _shown(value)
        return InvalidConfig(f"{said} is {shown}: it must be {wanted}{', or none' if self.is_optional else ''}")

    # -- for others ---

    def given(self, value: Any) -> Any:
        """A value of the struct as users would give it."""
        if not self.in_seconds or value is None:
            return value
        return value / SECOND_MS if value % SECOND_MS else value // SECOND_MS

    @property
    def default_text(self) -> str:
        """The default as users would write it; empty if it is nothing, or has parts."""
        value = self.given(self.default)
        if isinstance(value, bool):
            return "true" if value else "false"
        return "none" if value is None else str(value) if isinstance(value, int | float | str) else ""

    def schema(self) -> dict[str, Any]:
        low, high = self.limits
        kind = self.kind
        if self.choices:
            found: dict[str, Any] = {"type": "string", "enum": list(self.choices)}
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            properties = {each.name: each.schema() for each in nested(kind).values()}
            found = {"type": "object", "properties": properties, "additionalProperties": False}
        elif typing.get_origin(kind) is dict:
            found = {"type": "object", "additionalProperties": {"type": "string"}}
        else:
            found = {"type": "number" if self.in_seconds else _JSON_TYPES[kind]}
        found |= {} if low is None else {"minimum": low}
        found |= {} if high is None else {"maximum": high}
        about = {"description": self.setting.help}
        return {"anyOf": [found, {"type": "null"}], **about} if self.is_optional else {**found, **about}


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "texts by name",
    list: "a list",
}
_JSON_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = "nested too deeply"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def _is_usable(number: float) -> bool:
    """Whether it is a number, and has an end: in milliseconds as well."""
    return abs(number * SECOND_MS) <= sys.float_info.max


def _number(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.15g}"


def _checked_struct(struct: type[msgspec.Struct], value: Any, said: str, example: str) -> Any:
    """A setting with parts, such as a backoff: each part is checked, and named with the whole in front."""
    parts = nested(struct)
    given = msgspec.structs.asdict(value) if isinstance(value, struct) else value
    if not isinstance(given, Mapping):
        words = (f"; the {name}s are {', '.join(part.choices)}" for name, part in parts.items() if part.choices)
        wanted = f"some of the parts {', '.join(parts)}, as in {example}{''.join(words)}"
        raise InvalidConfig(f"{said} is {_shown(value)}: it must have {wanted}")
    for name in given:
        if name not in parts:
            raise InvalidConfig(f"{said} has no part {name!r}; its parts are: {', '.join(parts)}")
    return struct(**{name: parts[name].checked(part, f"{said}.{name}") for name, part in given.items()})


def _declared(struct: type[msgspec.Struct], in_seconds: bool) -> dict[str, Declared]:
    found: dict[str, Declared] = {}
    hints = typing.get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        kind, *notes = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
        setting = next((note for note in notes if isinstance(note, Setting)), None)
        if setting is not None:
            default = None if field.required else field.default
            default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else default
            name = field.name.removesuffix("_ms") if in_seconds else field.name
            found[name] = _one(field.name, name, kind, default, setting)
    return found


def _one(field: str, name: str, type_: Any, default: Any, setting: Setting) -> Declared:
    is_union = typing.get_origin(type_) in (Union, UnionType)
    kinds = [each for each in typing.get_args(type_) if each is not NoneType]
    kind = kinds[0] if is_union and len(kinds) == 1 else type_
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    return Declared(field, name, type_, kind, choices, default, setting)


@cache
def declared(struct: type[msgspec.Struct]) -> dict[str, Declared]:
    """The settings of a struct, by the names that users give them, in order."""
    return _declared(struct, in_seconds=True)


@cache
def nested(struct: type[msgspec.Struct]) -> dict[str, Declared]:
    """The parts of a setting that is a struct itself. They have one name, and milliseconds stay milliseconds."""
    return _declared(struct, in_seconds=False)


Struct = TypeVar("Struct", bound=msgspec.Struct)


def with_settings(
    settings: Iterable[Declared], annotation: Callable[[Declared], Any] = lambda _: Any
) -> Callable[[type[Struct]], type[Struct]]:
    """Give a struct a field for each setting, unset unless it is given. It takes any value: `read` checks it."""
    fields = [(each.name, annotation(each), msgspec.UNSET) for each in settings]

    def decorate(struct: type[Struct]) -> type[Struct]:
        config = struct.__struct_config__
        made = msgspec.defstruct(
            struct.__name__,
            fields,
            bases=(struct,),
            module=struct.__module__,
            namespace={"__doc__": struct.__doc__},
            frozen=config.frozen,
            forbid_unknown_fields=config.forbid_unknown_fields,
            kw_only=True,
        )
        return typing.cast(type[Struct], made)

    return decorate
