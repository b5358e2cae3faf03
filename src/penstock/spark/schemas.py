"""Values with a schema: JSON, Avro and Protobuf, decoded by Python's libraries on Arrow batches.

    orders = spark.readStream.format("penstock").options(url=url, subscribe="orders").load()
    found = decoded(orders, Avro(registry=Registry("http://registry:8081"), subject="orders-value"))
    found.where("problem is null").select("data.*")
    dead_letters(found)

`decoded` adds three columns: `data`, a struct; `problem`, why a value could not be read (then `data` is null); and
`newFields`, the fields that a value has and the schema has not.

Values may be framed as Confluent's serialisers do it: a zero byte, the schema's number (4 bytes, big-endian), for
Protobuf the path of the message in its file, and the value. A registry is anything that speaks Confluent's API.

Evolution. The columns of a query are fixed when it starts: by the schema that is given, or the latest one in the
registry. A value that was written with another schema is read as Avro's rules of resolution say; a field that JSON or
Protobuf lack is null. New fields are allowed, and told. What does not fit is a problem of that row, and of no other.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import decimal
import http.client
import io
import json
import struct
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from penstock.spark.errors import InvalidOption, SparkError

DATA, PROBLEM, NEW_FIELDS = "data", "problem", "newFields"
_FRAME = struct.Struct(">bI")
_TRIES = 4
_PROBLEM_LENGTH_MAX = 300
_NUMBER_MAX = 2**31 - 1
_MISSED_MAX = 100
_MISSED_S = 10.0
_VARINT_BYTES_MAX = 10
_TIMESTAMP = pa.timestamp("us", tz="UTC")


class Unreadable(Exception):
    """A value that is not what its schema says."""


class Format(Protocol):
    """How values are written. It travels to the executors."""

    def arrow_type(self) -> Any:
        """The struct that values become."""
        ...

    def reader(self) -> Callable[[bytes], tuple[dict[str, Any], list[str]]]:
        """What reads a value, made anew in each executor: its fields, and the names of those that are new."""
        ...


# -- the registry ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Registry:
    """A registry of schemas, by Confluent's API: schemas by number, and the latest one of a subject."""

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    timeout_s: float = 10.0
    _known: dict[int, str] = field(default_factory=dict, repr=False, compare=False)
    _missed: dict[int, float] = field(default_factory=dict, repr=False, compare=False)
    """Numbers that it did not have, and when it was asked for them."""

    def schema(self, number: int) -> str:
        """The schema with this number; `Unreadable` if there is none.

        Whoever sends may make numbers up. So the registry is asked for few in a while that it has not.
        """
        if number in self._known:
            return self._known[number]
        now_s = time.monotonic()
        for each in [each for each, asked_s in self._missed.items() if now_s - asked_s > _MISSED_S]:
            del self._missed[each]
        if number not in self._missed and number <= _NUMBER_MAX:
            if len(self._missed) >= _MISSED_MAX:
                raise Unreadable(
                    f"schema {number} was not looked up: too many values named schemas that the registry lacks"
                )
            found = self._ask(f"/schemas/ids/{number}")
            if isinstance(found, dict) and isinstance(found.get("schema"), str):
                return self._known.setdefault(number, found["schema"])
            self._missed[number] = now_s
        raise Unreadable(f"the registry has no schema {number}")

    def latest(self, subject: str) -> str:
        """The latest schema of a subject."""
        found = self._ask(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        if found is None:
            raise InvalidOption(f"the registry at {self.url} has no subject {subject!r}")
        if isinstance(found.get("id"), int):
            self._known[found["id"]] = str(found["schema"])
        return str(found["schema"])

    def _ask(self, path: str) -> Any:
        request = urllib.request.Request(self.url.rstrip("/") + path)
        request.add_header("accept", "application/vnd.schemaregistry.v1+json, application/json")
        if self.user is not None:
            pair = base64.b64encode(f"{self.user}:{self.password or ''}".encode()).decode()
            request.add_header("authorization", f"Basic {pair}")
        for left in reversed(range(_TRIES)):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code < 500 or not left:
                    raise SparkError(f"the registry at {self.url} refused {path}: {error}") from None
            except (OSError, http.client.HTTPException, ValueError) as error:
                if not left:
                    raise SparkError(f"the registry at {self.url} could not be read: {error}") from None
            time.sleep(0.1 * (_TRIES - left))
        raise AssertionError


def unframed(value: bytes) -> tuple[int, bytes]:
    """The schema's number, and what follows it.

    >>> unframed(bytes([0, 0, 0, 0, 7]) + b"rest")
    (7, b'rest')
    """
    if len(value) < _FRAME.size or value[0]:
        raise Unreadable("the value does not begin with the number of a schema")
    return _FRAME.unpack_from(value)[1], value[_FRAME.size :]


# -- JSON --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Json:
    """JSON objects with these columns: as Spark writes a schema (`order bigint, at timestamp`), or an Arrow schema."""

    schema: Any
    framed: bool = False

    def arrow_type(self) -> Any:
        """The struct that values become."""
        return pa.struct(_arrow_schema(self.schema))

    def reader(self) -> Callable[[bytes], tuple[dict[str, Any], list[str]]]:
        """What reads a value."""
        kind, framed = self.arrow_type(), self.framed
        names = {each.name for each in kind}

        def read(value: bytes) -> tuple[dict[str, Any], list[str]]:
            try:
                found = json.loads(unframed(value)[1] if framed else value)
                if not isinstance(found, dict):
                    raise Unreadable("the value is JSON, but not an object")
                return _fitted(found, kind, ""), sorted(found.keys() - names)
            except ValueError as error:
                raise Unreadable(f"the value is not JSON: {error}") from None
            except RecursionError:
                raise Unreadable("the value is not JSON: it is nested too deeply") from None

        return read


def _arrow_schema(schema: Any) -> Any:
    if isinstance(schema, pa.Schema):
        return schema
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    kind: Any = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    return to_arrow_schema(kind)


_TEXTS: dict[Callable[[Any], bool], Callable[[str], Any]] = {
    pa.types.is_timestamp: datetime.datetime.fromisoformat,
    pa.types.is_date: datetime.date.fromisoformat,
    pa.types.is_decimal: decimal.Decimal,
    pa.types.is_binary: lambda text: base64.b64decode(text, validate=True),
}
"""What JSON writes as a text."""


def _fitted(value: Any, kind: Any, path: str) -> Any:
    """A value of JSON as its type wants it; `Unreadable` if it is another."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        if not isinstance(value, dict):
            raise Unreadable(f"{path} must be an object, but it is {_shown(value)}")
        found = {each.name: _fitted(value.get(each.name), each.type, _below(path, each.name)) for each in kind}
        missing = [_below(path, each.name) for each in kind if not each.nullable and found[each.name] is None]
        if missing:
            raise Unreadable(f"missing or null: {', '.join(missing)}")
        return found
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            raise Unreadable(f"{path} must be a list, but it is {_shown(value)}")
        return [_fitted(each, kind.value_type, f"{path}[{index}]") for index, each in enumerate(value)]
    if pa.types.is_map(kind):
        if not isinstance(value, dict):
            raise Unreadable(f"{path} must be an object, but it is {_shown(value)}")
        return [(key, _fitted(each, kind.item_type, _below(path, key))) for key, each in value.items()]
    try:
        for is_one, read in _TEXTS.items():
            if is_one(kind) and isinstance(value, str):
                value = read(value)
        if isinstance(value, bool) != pa.types.is_boolean(kind):
            raise Unreadable(f"{path} must be {kind}, but it is {_shown(value)}")
        return pa.scalar(value, kind).as_py()
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError, OverflowError):
        raise Unreadable(f"{path} must be {kind}, but it is {_shown(value)}") from None


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- Avro --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Avro:
    """Avro records. With a registry, values are framed, and name the schema that they were written with.

    `schema` (JSON) says the columns; without it, the latest one of `subject` in the registry, when the query starts.
    """

    schema: str | None = None
    registry: Registry | None = None
    subject: str | None = None

    def __post_init__(self) -> None:
        if self.schema is None:
            if self.registry is None or self.subject is None:
                raise InvalidOption("Avro needs a schema, or a registry and a subject")
            object.__setattr__(self, "schema", self.registry.latest(self.subject))

    def arrow_type(self) -> Any:
        """The struct that values become."""
        parsed, names = _parsed_avro(self.schema or "")
        kind = _avro_type(parsed, names, "the schema")
        if not pa.types.is_struct(kind):
            raise InvalidOption(f"the Avro schema must be a record, but it is {kind}")
        return kind

    def reader(self) -> Callable[[bytes], tuple[dict[str, Any], list[str]]]:
        """What reads a value."""
        import fastavro

        wanted, _ = _parsed_avro(self.schema or "")
        registry, own = self.registry, {each["name"] for each in wanted["fields"]}
        written: dict[int, tuple[Any, list[str]] | Unreadable] = {}

        def read(value: bytes) -> tuple[dict[str, Any], list[str]]:
            new: list[str] = []
            writer = wanted
            if registry is not None:
                number, value = unframed(value)
                known = written.get(number)
                if known is None:
                    known = written[number] = _written_avro(number, registry.schema(number), own)
                if isinstance(known, Unreadable):
                    raise known
                writer, new = known
            stream = io.BytesIO(value)
            try:
                found = fastavro.schemaless_reader(stream, writer, None if writer is wanted else wanted)
            except Exception as error:  # whatever damaged bytes lead the library to
                raise Unreadable(f"the value does not match its Avro schema: {type(error).__name__}: {error}") from None
            if stream.tell() != len(value):
                raise Unreadable(f"{len(value) - stream.tell()} extra bytes follow the Avro record")
            return found, new  # type: ignore[return-value]

        return read


def _written_avro(number: int, text: str, own: set[str]) -> tuple[Any, list[str]] | Unreadable:
    """A schema that values were written with, and its fields besides our own. A registry has other kinds, too."""
    try:
        schema, _ = _parsed_avro(text)
    except InvalidOption as error:
        return Unreadable(f"schema {number} in the registry is not an Avro schema: {error}")
    named = {each["name"] for each in schema.get("fields", ())} if isinstance(schema, dict) else set()
    return schema, sorted(named - own)


def _parsed_avro(text: str) -> tuple[Any, dict[str, Any]]:
    try:
        import fastavro
    except ImportError:
        raise InvalidOption("Avro needs fastavro: install penstock-mq[schemas], on the executors too") from None
    names: dict[str, Any] = {}
    try:
        return fastavro.parse_schema(json.loads(text), named_schemas=names), names
    except Exception as error:
        raise InvalidOption(f"this is not an Avro schema: {type(error).__name__}: {error}") from None


_AVRO_TYPES: dict[str, Any] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "timestamp-millis": _TIMESTAMP,
    "timestamp-micros": _TIMESTAMP,
    "date": pa.date32(),
    "uuid": pa.string(),
}


def _avro_type(schema: Any, names: dict[str, Any], where: str) -> Any:
    """The Arrow type of an Avro schema."""
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise InvalidOption(f"{where} is a union of several types, but a column has one type (and may be null)")
        return _avro_type(others[0], names, where)
    if isinstance(schema, str):
        if schema in names:
            return _avro_type(names[schema], names, where)
        if schema not in _AVRO_TYPES:
            raise InvalidOption(f"{where} has the Avro type {schema}, which no column can have")
        return _AVRO_TYPES[schema]
    kind = schema["type"]
    if kind == "record":
        return pa.struct([(each["name"], _avro_type(each["type"], names, each["name"])) for each in schema["fields"]])
    if kind == "array":
        return pa.list_(_avro_type(schema["items"], names, where))
    if kind == "map":
        return pa.map_(pa.string(), _avro_type(schema["values"], names, where))
    if schema.get("logicalType") == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    return _AVRO_TYPES.get(schema.get("logicalType", "")) or _avro_type(kind, {}, where)


# -- Protobuf ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Protobuf:
    """Messages of a type in a set of descriptors: what `protoc --include_imports --descriptor_set_out=FILE` writes.

    `framed`: values have the number of their schema in front, as Confluent's serialisers write it. The registry is not
    asked: it has the text of a .proto file, and the descriptors say the same.
    """

    descriptors: bytes = field(repr=False)
    message: str = ""
    framed: bool = False

    def arrow_type(self) -> Any:
        """The struct that values become."""
        return _message_type(self._class().DESCRIPTOR, ())

    def reader(self) -> Callable[[bytes], tuple[dict[str, Any], list[str]]]:
        """What reads a value."""
        from google.protobuf.message import DecodeError
        from google.protobuf.unknown_fields import UnknownFieldSet

        kind, framed = self._class(), self.framed

        def read(value: bytes) -> tuple[dict[str, Any], list[str]]:
            try:
                found = kind.FromString(_without_path(unframed(value)[1]) if framed else value)
            except DecodeError as error:
                raise Unreadable(f"the value is not a {kind.DESCRIPTOR.full_name}: {error}") from None
            new = {f"#{each.field_number}" for each in UnknownFieldSet(found)}
            return _message_value(found), sorted(new)

        return read

    def _class(self) -> Any:
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        except ImportError:
            raise InvalidOption("Protobuf needs protobuf: install penstock-mq[schemas], on the executors too") from None
        pool = descriptor_pool.DescriptorPool()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(self.descriptors)
            for each in files.file:
                pool.Add(each)
            return message_factory.GetMessageClass(pool.FindMessageTypeByName(self.message))
        except KeyError:
            raise InvalidOption(f"the descriptors have no message {self.message!r}") from None
        except Exception as error:
            raise InvalidOption(f"these are not Protobuf descriptors: {type(error).__name__}: {error}") from None


def _without_path(value: bytes) -> bytes:
    """What follows the path of the message in its file: a count and so many indexes, zigzag varints; one 0 for [0]."""
    count, at = _varint(value, 0)
    if count < 0:
        raise Unreadable(f"the path of its message has {count} numbers")
    for _ in range(count):
        _, at = _varint(value, at)
    return value[at:]


def _varint(value: bytes, at: int) -> tuple[int, int]:
    number = 0
    for index, byte in enumerate(value[at : at + _VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), at + index + 1
    if len(value) - at < _VARINT_BYTES_MAX:
        raise Unreadable("the value ends within the path of its message")
    raise Unreadable(f"the path of its message has a number of more than {_VARINT_BYTES_MAX} bytes")


_TIME = "google.protobuf.Timestamp"


def _message_type(descriptor: Any, above: tuple[str, ...]) -> Any:
    if descriptor.full_name == _TIME:
        return _TIMESTAMP
    if descriptor.full_name in above:
        raise InvalidOption(f"{descriptor.full_name} contains itself, which a column cannot")
    above = (*above, descriptor.full_name)
    return pa.struct([(each.name, _field_type(each, above)) for each in descriptor.fields])


def _field_type(of: Any, above: tuple[str, ...]) -> Any:
    if _is_map(of):
        key, item = (of.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_single_type(key, above), _single_type(item, above))
    single = _single_type(of, above)
    return pa.list_(single) if of.is_repeated else single


def _single_type(of: Any, above: tuple[str, ...]) -> Any:
    if of.cpp_type == of.CPPTYPE_MESSAGE:
        return _message_type(of.message_type, above)
    if of.cpp_type == of.CPPTYPE_STRING:
        return pa.binary() if of.type == of.TYPE_BYTES else pa.string()
    return {
        of.CPPTYPE_INT32: pa.int32(),
        of.CPPTYPE_UINT32: pa.int64(),
        of.CPPTYPE_INT64: pa.int64(),
        of.CPPTYPE_UINT64: pa.decimal128(20, 0),
        of.CPPTYPE_FLOAT: pa.float32(),
        of.CPPTYPE_DOUBLE: pa.float64(),
        of.CPPTYPE_BOOL: pa.bool_(),
        of.CPPTYPE_ENUM: pa.string(),
    }[of.cpp_type]


def _is_map(of: Any) -> bool:
    return bool(of.message_type is not None and of.message_type.GetOptions().map_entry)


def _message_value(message: Any) -> Any:
    if message.DESCRIPTOR.full_name == _TIME:
        try:
            return message.ToDatetime(tzinfo=datetime.UTC)
        except (ValueError, OverflowError):
            raise Unreadable(f"a time is out of range: {message.seconds} s and {message.nanos} ns") from None
    found: dict[str, Any] = {}
    for of in message.DESCRIPTOR.fields:
        value = getattr(message, of.name)
        if _is_map(of):
            item = of.message_type.fields_by_name["value"]
            found[of.name] = [(key, _single_value(item, each)) for key, each in value.items()]
        elif of.is_repeated:
            found[of.name] = [_single_value(of, each) for each in value]
        else:
            found[of.name] = _single_value(of, value) if not of.has_presence or message.HasField(of.name) else None
    return found


def _single_value(of: Any, value: Any) -> Any:
    if of.cpp_type == of.CPPTYPE_MESSAGE:
        return _message_value(value)
    if of.cpp_type == of.CPPTYPE_ENUM:
        named = of.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    return value


# -- on frames ---------------------------------------------------------------------------------------------------------


def decode_batch(read: Callable[[bytes], tuple[dict[str, Any], list[str]]], kind: Any, values: Any) -> list[Any]:
    """The columns `data`, `problem` and `newFields` of some values."""
    data: list[Any] = []
    problems: list[str | None] = []
    new: list[list[str]] = []
    for value in values.cast(pa.binary()).to_pylist():
        found: dict[str, Any] | None = None
        names: list[str] = []
        problem: str | None = None
        try:
            if value is None:
                raise Unreadable("the value is null")
            found, names = read(value)
        except Unreadable as error:
            problem = _as_text(str(error)[:_PROBLEM_LENGTH_MAX])
        except SparkError:
            raise
        except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as error:  # whatever else is odd
            problem = _as_text(f"the value cannot be read: {type(error).__name__}: {error}"[:_PROBLEM_LENGTH_MAX])
        data.append(found)
        problems.append(problem)
        new.append([_as_text(name) for name in names])
    try:
        column = pa.array(data, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):  # one of them does not fit: which?
        for index, each in enumerate(data):
            with contextlib.suppress(pa.ArrowException, ValueError, TypeError, OverflowError):
                pa.array([each], kind)
                continue
            data[index], problems[index] = None, "its values do not fit the columns"
        column = pa.array(data, kind)
    return [column, pa.array(problems, pa.string()), pa.array(new, pa.list_(pa.string()))]


def _as_text(text: str) -> str:
    """What JSON escapes need not be text: half a character stays escaped."""
    return text.encode(errors="backslashreplace").decode()


def decoded(frame: Any, format: Format, column: str = "value") -> Any:
    """The same rows with their values read. It works on batches, on streams and over Spark Connect."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    if column not in frame.columns:
        raise InvalidOption(f"there is no column {column!r} to read. The columns are: {', '.join(frame.columns)}")
    taken = [name for name in (DATA, PROBLEM, NEW_FIELDS) if name in frame.columns]
    if taken:
        raise InvalidOption(f"the frame has a column {taken[0]!r} already: rename it first")
    kind = pa.struct([each.with_nullable(True) for each in format.arrow_type()])
    added = [
        StructField(DATA, from_arrow_type(kind, prefer_timestamp_ntz=False)),
        StructField(PROBLEM, StringType()),
        StructField(NEW_FIELDS, ArrayType(StringType())),
    ]

    def batches(iterator: Iterator[Any]) -> Iterator[Any]:
        read = format.reader()
        for batch in iterator:
            columns = decode_batch(read, kind, batch[column])
            names = [*batch.schema.names, DATA, PROBLEM, NEW_FIELDS]
            yield pa.RecordBatch.from_arrays([*batch.columns, *columns], names)

    return frame.mapInArrow(batches, StructType([*frame.schema.fields, *added]))


def dead_letters(frame: Any, channel: str = "spark") -> Any:
    """The rows of `decoded` that could not be read, for the sink: dead letters with their reason and their origin."""
    named = channel.replace("'", "")
    return frame.where("problem is not null").selectExpr(
        "value",
        "key",
        "timestamp",
        "problem as deadReason",
        f"struct(topic as queue, '{named}' as channel, offset, cast(null as string) as id) as deadOrigin",
        "1 as attempts",
    )
