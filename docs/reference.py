"""The pages of docs/reference, made from the code: `python -m docs.draw` writes them.

What a page says of a name is what the code says of it: signatures and docstrings, the OpenAPI document, Click's help,
declared settings, metric families, the tables of errors. A test fails when a page and the code differ.
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

import penstock
from penstock import cli
from penstock.client.listening import ListenerMetrics
from penstock.cluster.node import shard_families
from penstock.cluster.routing.router import Router
from penstock.core.errors import PenstockError, ReceiptRefused
from penstock.core.queues.config import SETTINGS
from penstock.core.settings import Declared, declared
from penstock.protocols.front_end import http_families
from penstock.protocols.http import HttpCounters
from penstock.protocols.lookup.service import LookupService
from penstock.protocols.nsq.server import _families as nsq_families
from penstock.protocols.rest.app import resources_of
from penstock.protocols.rest.operations import Operation, document, operations_of
from penstock.protocols.rest.pages import EXPLAINED
from penstock.protocols.rest.problems import RestError, code_of
from penstock.protocols.rest.shapes import Result, Shape
from penstock.protocols.sns.delivery import Deliveries
from penstock.protocols.sqs.errors import KINDS, from_core
from penstock.server.metrics import RequestMeter, queue_families, tally_families, traffic_families
from penstock.server.node import Node
from penstock.server.tally import Tally
from penstock.store.base import StoreStats

_SOURCES = Path(__file__).parent.parent / "src"
_MADE = "*This page is made from the code by `python -m docs.draw`.*"


def _page(title: str, about: str, parts: Iterable[str]) -> str:
    return "\n\n".join([f"# {title}", about, _MADE, *parts]) + "\n"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *(tuple(each.replace("|", "\\|") for each in row) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# -- Python ------------------------------------------------------------------------------------------------------------

_DATA = "What they return"
_CHAPTERS: dict[str, Callable[[Any], bool]] = {
    "Open and connect": inspect.isfunction,
    "Queues and messages": lambda each: each.__module__.startswith("penstock.client.sync."),
    "The same for asyncio": lambda each: each.__module__.startswith("penstock.client.aio."),
    "Errors": lambda each: issubclass(each, PenstockError),
    _DATA: lambda each: True,
}
"""Chapter -> which names are in it, unless they are in one before."""


def python() -> str:
    """Every public name of the package, with its signature and its docstring."""
    chapters: dict[str, list[str]] = {title: [] for title in _CHAPTERS}
    for name in sorted(penstock.__all__, key=str.lower):
        if name != "__version__":
            public = getattr(penstock, name)
            chapters[next(title for title, has in _CHAPTERS.items() if has(public))].append(name)
    parts: list[str] = []
    for title, names in chapters.items():
        parts.append(f"## {title}")
        if title == "The same for asyncio":
            rows = (
                (f"`{each}`", f"[{each.removeprefix('Async')}](#{each.removeprefix('Async').lower()})")
                for each in names
            )
            parts += [
                "`open_async` and `connect_async` give these. Their methods are those above, as coroutines.",
                _table(("class", "as"), rows),
            ]
        elif title == "Errors":
            kinds = [getattr(penstock, each) for each in names]
            parts += [
                "What each error is in other protocols, and what to do about it: [Errors](errors.md).",
                _table(
                    ("error", "is a", "meaning"), ((f"`{each.__name__}`", _bases(each), _first(each)) for each in kinds)
                ),
            ]
        else:
            for each in names:
                parts += _described(each, getattr(penstock, each))
    about = "`import penstock` has these names. The [guide](../python-api.md) shows how they are used together."
    return _page("Python API", about, parts)


def _bases(error: type) -> str:
    return ", ".join(f"`{base.__name__}`" for base in error.__bases__)


def _first(public: object) -> str:
    return " ".join((inspect.getdoc(public) or "").partition("\n\n")[0].split())


def _described(name: str, public: Any) -> Iterator[str]:
    """A function, or a class with its members."""
    yield f"### {name}"
    if inspect.isfunction(public):
        yield _code(f"penstock.{name}{_signature(public)}")
        yield from _prose(public)
        return
    if inspect.isfunction(vars(public).get("__init__")) and public.__module__.startswith("penstock.core"):
        yield _code(f"penstock.{name}{_signature(public.__init__)}")
    yield from _prose(public)
    if issubclass(public, enum.Enum):
        yield _table(("name", "value"), ((f"`{each.name}`", f"`{each.value}`") for each in public))
        return
    fields = _fields(public)
    if fields:
        told = _field_docs(public)
        rows = ((f"`{field}`", f"`{kind}`", told.get(field, "")) for field, kind in fields.items())
        yield _table(("field", "type", "meaning"), rows)
    properties = [
        (f"`{member}`", f"`{inspect.signature(value.fget).return_annotation}`".replace("'", ""), _first(value))
        for member, value in _members(public)
        if isinstance(value, property) and value.fget is not None
    ]
    if properties:
        yield _table(("property", "type", "meaning"), properties)
    for member, value in _members(public):
        if not isinstance(value, property):
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            is_async = "async " if inspect.iscoroutinefunction(function) else ""
            yield f"#### {name}.{member}"
            yield _code(f"{is_async}{member}{_signature(function)}")
            yield from _prose(function)


def _fields(public: type) -> dict[str, str]:
    """What instances of a dataclass, a struct, a named tuple or a typed dictionary consist of."""
    is_record = any(
        hasattr(public, mark) for mark in ("__dataclass_fields__", "__struct_fields__", "_fields", "__total__")
    )
    if not is_record:
        return {}
    found = {
        field: str(kind.__forward_arg__ if hasattr(kind, "__forward_arg__") else kind)
        for base in reversed(public.__mro__)
        if base.__module__.startswith("penstock")
        for field, kind in inspect.get_annotations(base).items()
        if not field.startswith("_") and not str(kind).startswith("ClassVar")
    }
    return {field: re.sub(r"^Annotated\[([^,]+), .*\]$", r"\1", kind, flags=re.DOTALL) for field, kind in found.items()}


_INTERNAL = {
    "Listener": {"prepare", "tell_of_stops", "room", "ask", "take"},
    "ListenerMetrics": {"worked", "new_worker", "collect", "describe"},
    "Message": {"extended_to", "lease_ends_ms", "place", "span"},
    "Batch": {"spans"},
    "UnitOfWork": {"hold", "let_go", "begin_commit", "end_commit", "abandon"},
}
"""Class -> members that other modules of Penstock use, and programs do not."""


def _members(public: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties that a user may call, those of the bases included."""
    seen: set[str] = set(_INTERNAL.get(public.__name__, ()))
    for base in public.__mro__:
        if base.__module__.partition(".")[0] != "penstock":
            continue
        for name, value in vars(base).items():
            is_member = isinstance(value, property | classmethod | staticmethod) or inspect.isroutine(value)
            if is_member and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, value


def _signature(function: Callable[..., Any]) -> str:
    """A signature as it is written in the code; a long one has a line for each parameter."""
    signature = inspect.signature(function)
    written = [_parameter(each) for each in signature.parameters.values() if each.name not in ("self", "cls")]
    kinds = [each.kind for each in signature.parameters.values() if each.name not in ("self", "cls")]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        written.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    if inspect.Parameter.POSITIONAL_ONLY in kinds:
        written.insert(len(kinds) - kinds[::-1].index(inspect.Parameter.POSITIONAL_ONLY), "/")
    result = "" if signature.return_annotation is signature.empty else f" -> {_kind(signature.return_annotation)}"
    line = f"({', '.join(written)}){result}"
    return line if len(line) <= 90 else "(\n    " + ",\n    ".join(written) + f",\n){result}"


def _parameter(each: inspect.Parameter) -> str:
    stars = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
    kind = "" if each.annotation is each.empty else f": {_kind(each.annotation)}"
    default = "" if each.default is each.empty else f" = {re.sub(r' at 0x[0-9a-f]+', '', repr(each.default))}"
    return f"{stars}{each.name}{kind}{default}"


def _kind(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```"


def _prose(public: object) -> Iterator[str]:
    """A docstring: paragraphs as they are, examples as code."""
    for paragraph in re.split(r"\n\n+", (inspect.getdoc(public) or "").strip()):
        if paragraph.startswith(">>>"):
            yield _code(re.sub(r"  # doctest: .*", "", paragraph))
        elif paragraph.startswith("    "):
            yield _code(inspect.cleandoc(paragraph), "text")
        else:
            yield paragraph


# -- REST --------------------------------------------------------------------------------------------------------------


def _rest_operations() -> list[Operation]:
    settings = SimpleNamespace(rest=None)
    services: Any = SimpleNamespace(shard=None, settings=settings)
    return list(operations_of(resources_of(services, penstock.__version__)))


@functools.cache
def _written_in(module: str) -> dict[str, ast.ClassDef]:
    """The classes of a module, as they are written."""
    parsed = ast.parse((_SOURCES / (module.replace(".", "/") + ".py")).read_text())
    return {each.name: each for each in ast.walk(parsed) if isinstance(each, ast.ClassDef)}


def _field_docs(shape: type[Any]) -> dict[str, str]:
    """What the strings below the fields of a record say, those of its bases included: field -> text."""
    if not shape.__module__.startswith("penstock."):
        return {}
    told = {name: text for base in reversed(shape.__bases__) for name, text in _field_docs(base).items()}
    told |= {name: each.setting.help.removesuffix(".") for name, each in _settings_of(shape).items()}
    encoded = getattr(shape, "__struct_encode_fields__", ())
    names = dict(zip(getattr(shape, "__struct_fields__", ()), encoded, strict=True))
    written = _written_in(shape.__module__).get(shape.__name__)
    for field, after in pairwise(written.body if written is not None else ()):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                told[names.get(name, name)] = " ".join(str(text).split())
    return told


def _settings_of(shape: type) -> dict[str, Declared]:
    """The settings that the fields of a record are."""
    found: Mapping[str, Declared] = declared(shape) if shape in (penstock.QueueConfig, penstock.Backoff) else {}
    return {each.field: each for each in found.values()}


def _shapes(kind: type[Any]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        yield each
        yield from _shapes(each)


def rest() -> str:
    """Every operation of the API, and every shape."""
    operations = _rest_operations()
    described = document(operations, penstock.__version__, needs_credentials=False)
    queries = {each.name: each.query for each in operations}
    by_tag: dict[str, list[str]] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            query = queries[operation["operationId"]]
            told = {} if query is None else _field_docs(query)
            by_tag.setdefault(operation["tags"][0], []).append("\n\n".join(_operation(path, method, operation, told)))
    shapes = {each.__name__: each for base in (Shape, Result) for each in _shapes(base)}
    parts = [text for tag, operations in by_tag.items() for text in (f"## {tag.capitalize()}", *operations)]
    parts.append("## Shapes")
    for name, schema in sorted(described["components"]["schemas"].items()):
        parts += _shape(name, schema, _field_docs(shapes[name]) if name in shapes else {})
    about = (
        "Every request of the REST API, as `/v1/openapi.json` of a running server has it. The [guide](../rest.md) "
        "explains credentials, batches, sessions and waiting. Any operation can answer with a problem: "
        "[Errors](errors.md)."
    )
    return _page("REST API", about, parts)


def _operation(path: str, method: str, operation: Mapping[str, Any], told: Mapping[str, str]) -> Iterator[str]:
    yield f"### `{method.upper()} {path}`"
    yield operation["summary"]
    if "description" in operation:
        yield operation["description"]
    parameters = [
        (
            f"`{each['name']}`",
            each["in"] + (", required" if each["in"] == "query" and each["required"] else ""),
            _type(each["schema"]),
            _meaning({**each["schema"], **_about(each, told.get(each["name"], ""))}),
        )
        for each in operation["parameters"]
    ]
    if parameters:
        yield _table(("parameter", "in", "type", "meaning"), parameters)
    body = operation.get("requestBody")
    if body is not None:
        needed = "" if body["required"] else " (may be left out)"
        yield f"Body{needed}: {_contents(body['content'])}."
    for status, answer in operation["responses"].items():
        if status.isdigit():
            content = answer.get("content")
            yield f"Answer: {status}" + (f" with {_contents(content)}." if content else ", without a body.")


def _contents(content: Mapping[str, Any]) -> str:
    kinds = []
    for kind, each in content.items():
        schema = each["schema"]
        shape = schema.get("description", "") if kind != "application/json" else _type(schema)
        kinds.append(shape if kind == "application/json" else f"`{kind}`" + (f" ({shape})" if shape else ""))
    return ", or ".join(kinds)


def _about(described: Mapping[str, Any], told: str) -> dict[str, str]:
    """What is said of a field: by the string below it, or by its type."""
    text = told or described.get("description", "")
    return {"description": text} if text else {}


def _shape(name: str, schema: Mapping[str, Any], told: Mapping[str, str]) -> Iterator[str]:
    yield f"### {name}"
    if "description" in schema:
        yield " ".join(schema["description"].partition("\n\n")[0].split())
    if "properties" in schema:
        required = schema.get("required", [])
        yield _table(
            ("field", "type", "meaning"),
            (
                (
                    f"`{field}`" + (" (required)" if field in required else ""),
                    _type(each),
                    _meaning({**each, **_about(each, told.get(field, ""))}),
                )
                for field, each in schema["properties"].items()
            ),
        )
    else:
        yield _type(schema)


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {_type(schema.get('items') or {})}" if schema.get("items") else "array"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"object of {_type(values)}" if isinstance(values, dict) and values else "object"
    return str(kind)


_BOUNDS = {
    "minimum": "at least {:,}",
    "exclusiveMinimum": "above {:,}",
    "maximum": "at most {:,}",
    "minLength": "at least {:,} characters",
    "maxLength": "at most {:,} characters",
    "minItems": "at least {:,}",
    "maxItems": "at most {:,}",
}


def _meaning(schema: Mapping[str, Any]) -> str:
    inner = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    bounds = {**(inner[0] if len(inner) == 1 else {}), **schema}
    parts = [" ".join(str(schema.get("description", "")).split()).removesuffix(".")]
    limits = [text.format(bounds[key]) for key, text in _BOUNDS.items() if key in bounds]
    parts += [each.replace(" 1 characters", " 1 character") for each in limits]
    if schema.get("default") not in (None, "", [], {}):
        default = schema["default"]
        default = ", ".join(default) if isinstance(default, tuple | list) else default
        parts.append(f"default `{str(default).lower() if isinstance(default, bool) else default}`")
    return "; ".join(part for part in parts if part)


# -- the command line --------------------------------------------------------------------------------------------------


def command_line() -> str:
    """The help of every command."""
    parts = [
        text
        for path, command in _commands(("penstock",), cli.app)
        for text in (f"## {' '.join(path)}", _code(_help(path, command), "text"))
    ]
    about = "Every command, as `--help` prints it. The [guide](../cli.md) has examples, and what scripts can rely on."
    return _page("Command line", about, parts)


def _commands(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _commands((*path, name), found)


def _help(path: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command, info_name=" ".join(path), terminal_width=110, **command.context_settings)
    return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


# -- settings ----------------------------------------------------------------------------------------------------------


def settings() -> str:
    """Every setting of a queue, in every place where it can be given. Those of servers are on their own page."""
    flags = {
        parameter.name: parameter.opts[0]
        for parameter in _command_at("queue", "create").get_params(click.Context(cli.app))
        if isinstance(parameter, click.Option)
    }
    rows = []
    for each in SETTINGS.values():
        sqs = "" if each.setting.sqs is None else f"`{each.setting.sqs.name}`"
        flag = flags.get(each.name) or flags.get({"kind": "fifo"}.get(each.name, ""), "")
        when = "at creation only" if each.setting.for_life else "any time"
        rows.append((f"`{each.name}`", f"`{flag}`" if flag else "", sqs, when, each.setting.help.removesuffix(".")))
    parts = [
        "## Of a queue",
        "The name is the same in Python, in REST, in `[[queues]]` of penstock.toml and in the websocket. The command "
        "line has an option for it (`penstock queue create` and `configure`), and SQS an attribute for some. "
        "Defaults and ranges: [Delivery rules](../delivery.md#settings).",
        _table(("name", "option", "in SQS", "can be set", "meaning"), rows),
        "## Of a server",
        "Settings of a server come from penstock.toml, from `PENSTOCK_...` variables and from the options of "
        "`penstock serve`. Each with its default and range: [Server](../server.md#every-setting).",
    ]
    return _page("Settings", "Where each setting can be given.", parts)


def _command_at(*path: str) -> click.Command:
    command: click.Command = cli.app
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


# -- metrics -----------------------------------------------------------------------------------------------------------


def _metric_sources() -> dict[str, tuple[str, list[Iterable[Any]]]]:
    """Section -> what there is to say about it, and who tells its families."""
    nobody: Any = SimpleNamespace(connections=(), accepted=0, refused=0, delivered=0)
    registry = SimpleNamespace(peer_count=0, name_count=0)
    lookup: Any = SimpleNamespace(registry=registry, _nodes=SimpleNamespace(connections_open=0))
    router: Any = SimpleNamespace(forwarded={})
    store: Any = SimpleNamespace(_recording=(), _store=SimpleNamespace(stats=StoreStats()))
    listener: Any = SimpleNamespace(in_hand=0)
    topics: Any = SimpleNamespace(counts={})
    return {
        "Requests and connections": (
            "",
            [
                RequestMeter().families(),
                http_families("rest", 0, HttpCounters()),
                nsq_families(nobody),
                Deliveries.families(topics),
            ],
        ),
        "All queues": ("", [traffic_families([]), tally_families(Tally())]),
        "Each queue and channel": (
            "`[metrics]` in penstock.toml says which queues have series of their own.",
            [queue_families([])],
        ),
        "The store": ("", [Node._store_metrics(store)]),
        "Nodes": (
            "In a cluster, the counts of all queues' messages (`penstock_messages_sent_total` and the like) have "
            "the labels `shard` and `node`.",
            [shard_families({}, {}, ""), Router.families(router)],
        ),
        "The lookup service": ("On the HTTP port of `penstock lookup`.", [LookupService._families(lookup)]),
        "Listeners": (
            "In your own program: see [Listeners](../listener.md).",
            [ListenerMetrics(listener, "", "", "").collect()],
        ),
    }


def families_by_section() -> dict[str, dict[str, Any]]:
    """Section -> name, as it is exposed -> metric family. A family that several tell is the first one's."""
    seen: set[str] = set()
    found: dict[str, dict[str, Any]] = {}
    for title, (_, families) in _metric_sources().items():
        section = found[title] = {}
        for family in (each for some in families for each in some):
            name = family.name + ("_total" if family.type == "counter" else "")
            if name not in seen:
                seen.add(name)
                section[name] = family
    return found


def metrics() -> str:
    """Every metric family, by who tells it."""
    parts, told = [], {title: about for title, (about, _) in _metric_sources().items()}
    for title, section in families_by_section().items():
        rows = [
            (f"`{name}`", each.type, ", ".join(f"`{label}`" for label in each._labelnames), each.documentation)
            for name, each in section.items()
        ]
        said = [told[title]] if told[title] else []
        parts += [f"## {title}", *said, _table(("name", "type", "labels", "meaning"), rows)]
    about = (
        "What `/metrics` on the HTTP port (9325) tells Prometheus. What to watch, and alerts: "
        "[Monitoring](../how-to/monitoring.md)."
    )
    return _page("Metrics", about, parts)


# -- errors ------------------------------------------------------------------------------------------------------------

_NSQ = {
    "E_AUTH_DISABLED": "The server has no credentials, but the client sent AUTH. Leave it out.",
    "E_AUTH_FAILED": "The secret is wrong.",
    "E_AUTH_FIRST": "The server needs credentials. Send AUTH before anything else.",
    "E_BAD_BODY": "The body of IDENTIFY, MPUB or AUTH cannot be read, or a value in it is out of range.",
    "E_BAD_CHANNEL": "No channel can have this name.",
    "E_BAD_MESSAGE": "A message is empty, or larger than the server accepts.",
    "E_BAD_PROTOCOL": "The connection did not begin with two spaces and `V2`.",
    "E_BAD_TOPIC": "No topic can have this name.",
    "E_IDENTIFY_FAILED": "The features that the client asked for cannot be combined.",
    "E_INVALID": "The command is unknown, malformed, or not allowed in this state.",
    "E_UNAUTHORIZED": "The credentials do not allow this.",
    "E_PUB_FAILED": "The message was not accepted. MPUB and DPUB: `E_MPUB_FAILED`, `E_DPUB_FAILED`.",
    "E_SUB_FAILED": "The subscription failed.",
    "E_FIN_FAILED": "The message is not in flight on this connection. REQ and TOUCH: `E_REQ_FAILED`, `E_TOUCH_FAILED`.",
}
"""What NSQ clients are told."""
_NOT_IN_SQS_OR_NSQ = {
    "no_common_version",
    "channel_not_found",
    "consumer_not_found",
    "session_not_found",
    "message_not_found",
    "not_found",
    "queue_changed",
    "rewind_refused",
    "work_refused",
    "partition_moved",
    "mark_moved",
    "lease_too_long",
}
"""Errors of what only REST, the websocket and Python can do."""
_NOT_IN_NSQ = {"queue_not_found", "queue_replaced", "queue_exists", "task_not_found", "over_limit", "rate_limited"}
_RENDERED = {  # where a front end looks before the core does
    "access_denied": ("AccessDenied", "E_UNAUTHORIZED"),
    "invalid_name": ("InvalidParameterValue", "E_BAD_TOPIC"),
    "invalid_config": ("InvalidAttributeValue", "E_PUB_FAILED"),
}


def errors() -> str:
    """Every error: what it means, what to do, and what it is called in each protocol."""
    classes = {code_of(_bare(each)): each for each in _classes(PenstockError)}
    rows = []
    for code, status, meaning, remedy in EXPLAINED:
        kind = classes.pop(code, None)
        public = f"`{kind.__name__}`" if kind is not None and kind.__name__ in penstock.__all__ else ""
        rows.append((f"`{code}`", str(status), public, *_names(code, kind), f"{meaning} {remedy}"))
    rest_of_python = [
        (f"`{each.__name__}`", _bases(each), _first(each))
        for each in sorted(classes.values(), key=lambda each: each.__name__)
        if each.__name__ in penstock.__all__
    ]
    of_sqs = [(f"`{kind.code.rpartition('.')[2]}`", f"`{kind.shape}`", str(kind.status)) for kind in KINDS]
    parts = [
        "## By code",
        "The code is what REST and the websocket answer with. Python raises the class. An error that has no entry for "
        "a protocol does not occur there. NSQ answers most errors with the name of the command that failed: "
        "where the table has `E_PUB_FAILED`, it may be `E_MPUB_FAILED` or `E_SUB_FAILED`, with the reason as text.",
        _table(("code", "HTTP status", "Python", "SQS", "NSQ", "what it means, and what to do"), rows),
        "## Only in Python",
        "These are raised by the client or by a directory that your own process opens.",
        _table(("error", "is a", "meaning"), rest_of_python),
        "## In SQS",
        "Every error code of the SQS API. Their meaning is that of AWS; [SQS](../sqs.md) lists the differences.",
        _table(("code", "type in JSON", "HTTP status"), sorted(of_sqs)),
        "## In NSQ",
        "The text after the code has the reason.",
        _table(("code", "meaning"), ((f"`{code}`", meaning) for code, meaning in sorted(_NSQ.items()))),
    ]
    return _page("Errors", "Every error that a program can get, with its name in each protocol.", parts)


def _classes(base: type[PenstockError]) -> Iterator[type[PenstockError]]:
    """Every error of the package that is not made for one protocol."""
    if not issubclass(base, RestError):
        yield base
        for each in base.__subclasses__():
            if each.__module__.startswith("penstock."):
                yield from _classes(each)


def _bare(kind: type[PenstockError]) -> PenstockError:
    """An error of which only the class counts."""
    return kind.__new__(kind)


def _names(code: str, kind: type[PenstockError] | None) -> tuple[str, str]:
    """What SQS and NSQ call an error; nothing where it does not occur."""
    if kind is None or code in _NOT_IN_SQS_OR_NSQ:
        return "", ""
    failed = "E_FIN_FAILED" if issubclass(kind, ReceiptRefused) else "E_PUB_FAILED"
    sqs, nsq = _RENDERED.get(code, (from_core(_bare(kind)).kind.code.rpartition(".")[2], failed))
    return f"`{sqs}`", "" if code in _NOT_IN_NSQ else f"`{nsq}`"


PAGES: dict[str, Callable[[], str]] = {
    "reference/python.md": python,
    "reference/rest.md": rest,
    "reference/cli.md": command_line,
    "reference/settings.md": settings,
    "reference/metrics.md": metrics,
    "reference/errors.md": errors,
}
"""Page -> what writes it."""
