"""Values with a schema: what is read, what is new, and what is told of a value that cannot be read."""

from __future__ import annotations

import base64
import contextlib
import datetime
import io
import json
import pickle
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from penstock.core.storage.chunk import Chunk
from penstock.spark.errors import InvalidOption, SparkError
from penstock.spark.options import Where
from penstock.spark.schemas import Avro, Json, Protobuf, Registry, dead_letters, decode_batch, decoded
from penstock.spark.server import Connection
from penstock.wire.pieces import Target, encode_section
from tests.spark.running import Queues

ORDER_1 = {"type": "record", "name": "Order", "fields": [{"name": "order", "type": "long"}]}
ORDER_2 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "order", "type": "long"},
        {"name": "cups", "type": ["null", "int"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["TEA", "COFFEE"]}, "default": "TEA"},
        {"name": "notes", "type": {"type": "map", "values": "string"}, "default": {}},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}
OTHER = {"type": "record", "name": "Order", "fields": [{"name": "order", "type": "string"}]}


def avro(schema: Any, record: Any, number: int | None = None) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return (b"" if number is None else struct.pack(">bI", 0, number)) + out.getvalue()


class RegistryServer(ThreadingHTTPServer):
    """Confluent's API, as far as readers use it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.schemas = {1: ORDER_1, 2: ORDER_2, 3: OTHER}
        self.latest = 2
        self.texts: dict[int, Any] = {}
        self.asked: list[str] = []
        self.failing = 0
        self.credentials: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Answers(BaseHTTPRequestHandler):
    server: RegistryServer

    def do_GET(self) -> None:
        registry = self.server
        registry.asked.append(self.path)
        if registry.failing:
            registry.failing -= 1
            return self.answer(503, {"error_code": 50301, "message": "not now"})
        if registry.credentials is not None and self.headers["authorization"] != f"Basic {registry.credentials}":
            return self.answer(401, {"error_code": 40101, "message": "who are you?"})
        *_, kind, what = self.path.split("/")
        if kind == "ids" and int(what) in registry.texts:
            return self.answer(200, registry.texts[int(what)])
        if kind == "ids" and int(what) in registry.schemas:
            return self.answer(200, {"schema": json.dumps(registry.schemas[int(what)])})
        if self.path == "/subjects/orders-value/versions/latest":
            schema = json.dumps(registry.schemas[registry.latest])
            return self.answer(200, {"subject": "orders-value", "id": registry.latest, "version": 1, "schema": schema})
        return self.answer(404, {"error_code": 40403, "message": "not found"})

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/vnd.schemaregistry.v1+json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with RegistryServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def read_all(format: Any, *values: bytes | None) -> list[dict[str, Any]]:
    """What an executor makes of values: it has the format as it travels."""
    arrived = pickle.loads(pickle.dumps(format))
    columns = decode_batch(arrived.reader(), arrived.arrow_type(), pa.array(values, pa.binary()))
    return pa.table(columns, ["data", "problem", "newFields"]).to_pylist()


# -- JSON --


SCHEMA = pa.schema(
    [
        pa.field("order", pa.int64(), nullable=False),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
        ("to", pa.struct([("city", pa.string())])),
        ("price", pa.decimal128(10, 2)),
        ("notes", pa.map_(pa.string(), pa.float64())),
        ("paid", pa.bool_()),
    ]
)


def test_json_is_read_by_its_schema_and_new_fields_are_told() -> None:
    value = {"order": 7, "at": "2026-01-02T03:04:05Z", "tags": ["a"], "to": {"city": "Bath"}, "price": "1.50"}
    (row,) = read_all(Json(SCHEMA), json.dumps(value | {"notes": {"x": 1}, "paid": True, "colour": "blue"}).encode())
    assert row["problem"] is None and row["newFields"] == ["colour"]
    assert row["data"]["at"] == datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert (row["data"]["order"], row["data"]["to"], str(row["data"]["price"])) == (7, {"city": "Bath"}, "1.50")
    assert (row["data"]["notes"], row["data"]["paid"]) == ([("x", 1.0)], True)
    (row,) = read_all(Json(SCHEMA), b'{"order": 8}')
    assert row["data"] == {"order": 8, **dict.fromkeys(("at", "tags", "to", "price", "notes", "paid"))}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"{", "the value is not JSON"),
        (b"\xff", "the value is not JSON"),
        (b"[1]", "the value is JSON, but not an object"),
        (None, "the value is null"),
        (b"{}", "missing or null: order"),
        (b'{"order": "7"}', "order must be int64, but it is '7'"),
        (b'{"order": true}', "order must be int64, but it is True"),
        (b'{"order": 1e30}', "order must be int64, but it is 1e+30"),
        (b'{"order": 1, "at": "soon"}', "at must be timestamp[us, tz=UTC], but it is 'soon'"),
        (b'{"order": 1, "tags": "a"}', "tags must be a list, but it is 'a'"),
        (b'{"order": 1, "tags": [1]}', "tags[0] must be string, but it is 1"),
        (b'{"order": 1, "to": {"city": 5}}', "to.city must be string, but it is 5"),
        (b'{"order": 1, "paid": 1}', "paid must be bool, but it is 1"),
        pytest.param(b"[" * 100_000, "the value is not JSON: it is nested too deeply", id="nested"),
        pytest.param(b"1" * 100_000, "the value is not JSON", id="digits"),
        (rb'{"order": "\ud800"}', r"order must be int64, but it is '\ud800'"),
        (rb'{"order": 1, "tags": ["\ud800"]}', r"tags[0] must be string, but it is '\ud800'"),
        (rb'{"order": 1, "notes": {"\ud800": 1}}', "its values do not fit the columns"),
        (rb'{"order": 1, "notes": {"\ud800": "x"}}', r"notes.\ud800 must be double, but it is 'x'"),
    ],
)
def test_json_that_is_not_of_its_schema_is_a_problem_of_its_row_alone(value: bytes | None, problem: str) -> None:
    first, bad, last = read_all(Json(SCHEMA), b'{"order": 1}', value, b'{"order": 2}')
    assert (first["data"]["order"], last["data"]["order"]) == (1, 2)
    assert bad["data"] is None and bad["problem"].startswith(problem)


def test_a_name_that_is_no_text_is_told_as_it_is_escaped() -> None:
    first, odd = read_all(Json(SCHEMA), b'{"order": 1}', rb'{"order": 2, "\ud800": 1}')
    assert (first["data"]["order"], odd["data"]["order"], odd["newFields"]) == (1, 2, [r"\ud800"])


# -- Avro and the registry --


def test_avro_is_read_by_the_schema_that_each_value_was_written_with(registry: RegistryServer) -> None:
    registry.latest = 1
    old = Avro(registry=Registry(registry.url), subject="orders-value")
    registry.latest = 2
    new = Avro(registry=Registry(registry.url), subject="orders-value")
    at = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    later = {"order": 8, "cups": 3, "at": at, "kind": "COFFEE", "notes": {"a": "b"}, "tags": ["t"]}
    values = [avro(ORDER_1, {"order": 7}, 1), avro(ORDER_2, later, 2)]
    assert [(row["data"], row["newFields"]) for row in read_all(old, *values)] == [
        ({"order": 7}, []),
        ({"order": 8}, ["at", "cups", "kind", "notes", "tags"]),
    ]
    by_default = {"order": 7, "cups": None, "kind": "TEA", "notes": [], "tags": []}
    first, second = read_all(new, *values)
    assert first["data"] == by_default | {"at": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)}
    assert second["data"] == later | {"notes": [("a", "b")]}
    assert registry.asked.count("/schemas/ids/1") == 1, "the one that was the latest is known"
    assert registry.asked.count("/schemas/ids/2") == 1, "the one that was the latest is known"


def test_avro_that_does_not_fit_is_a_problem_of_its_row_alone(registry: RegistryServer) -> None:
    format = Avro(registry=Registry(registry.url), subject="orders-value")
    good = avro(ORDER_1, {"order": 7}, 1)
    found = read_all(
        format, good, avro(OTHER, {"order": "x"}, 3), b"\0\0\0\0\x09x", b"plain", good + b"!", good[:5], good
    )
    assert [row["problem"] is None for row in found] == [True, False, False, False, False, False, True]
    assert "the value does not match its Avro schema: SchemaResolutionError" in found[1]["problem"]
    assert [row["problem"] for row in found[2:5]] == [
        "the registry has no schema 9",
        "the value does not begin with the number of a schema",
        "1 extra bytes follow the Avro record",
    ]


def test_a_number_of_what_is_no_avro_record_is_a_problem_of_its_row_alone(registry: RegistryServer) -> None:
    format = Avro(registry=Registry(registry.url), subject="orders-value")
    registry.texts = {
        4: {"schema": 'syntax = "proto3"; message Order { int64 order = 1; }', "schemaType": "PROTOBUF"},
        5: {"schema": json.dumps({"type": "enum", "name": "Kind", "symbols": ["TEA"]})},
        6: {"schema": '"long"'},
        7: {"schema": "[" * 100_000},
        8: {"no": "schema"},
        9: [],
    }
    good = avro(ORDER_1, {"order": 7}, 1)
    found = read_all(format, good, *(struct.pack(">bI", 0, number) + b"\0" for number in registry.texts), good)
    assert [row["problem"] is None for row in found] == [True, False, False, False, False, False, False, True]
    says = [row["problem"] for row in found[1:-1]]
    assert says[0].startswith("schema 4 in the registry is not an Avro schema: ")
    assert says[1].startswith("the value does not match its Avro schema: SchemaResolutionError")
    assert says[2].startswith("the value does not match its Avro schema: SchemaResolutionError")
    assert says[3].startswith("schema 7 in the registry is not an Avro schema: ")
    assert says[4:] == ["the registry has no schema 8", "the registry has no schema 9"]


def test_made_up_numbers_are_asked_for_once_and_only_so_many_in_a_batch(registry: RegistryServer) -> None:
    registry.latest = 1
    format = Avro(registry=Registry(registry.url), subject="orders-value")
    kind, read = format.arrow_type(), format.reader()
    good = avro(ORDER_1, {"order": 7}, 1)
    made_up = [struct.pack(">bI", 0, number) + b"x" for number in range(100, 1_100)]
    registry.asked.clear()
    data, problems, _ = decode_batch(read, kind, pa.array([*made_up, good, made_up[0]], pa.binary()))
    assert data[-2].as_py() == {"order": 7}, "a schema that is there is found all the same"
    assert len(registry.asked) <= 102
    assert {problems[index].as_py() for index in (0, 99, -1)} == {
        "the registry has no schema 100",
        "the registry has no schema 199",
    }
    assert (
        problems[999].as_py() == "schema 1099 was not looked up: too many values named schemas that the registry lacks"
    )
    before = len(registry.asked)
    decode_batch(read, kind, pa.array([*made_up[:100], good] * 2, pa.binary()))
    assert len(registry.asked) == before, "what is not there is not asked for again at once"


def test_avro_needs_no_registry_where_the_schema_is_given() -> None:
    (row, bad) = read_all(Avro(json.dumps(ORDER_1)), avro(ORDER_1, {"order": 7}), b"")
    assert (row["data"], bad["problem"].startswith("the value does not match its Avro schema")) == ({"order": 7}, True)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "this is not an Avro schema"),
        ('{"type": "record", "name": "X", "fields": [{"name": "a", "type": ["int", "string"]}]}', "a is a union"),
        ('"long"', "must be a record"),
        (None, "Avro needs a schema, or a registry"),
    ],
)
def test_an_avro_schema_that_makes_no_columns_is_refused_at_once(schema: str | None, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        Avro(schema).arrow_type()


def test_a_registry_that_fails_is_asked_again_and_one_that_refuses_is_told_of(registry: RegistryServer) -> None:
    registry.failing = 2
    assert json.loads(Registry(registry.url).schema(1)) == ORDER_1
    registry.credentials = base64.b64encode(b"me:secret").decode()
    with pytest.raises(SparkError, match="refused /schemas/ids/1: HTTP Error 401"):
        Registry(registry.url).schema(1)
    knowing = Registry(registry.url, "me", "secret")
    assert json.loads(knowing.schema(1)) == ORDER_1
    assert "secret" not in repr(knowing)
    with pytest.raises(InvalidOption, match="has no subject 'tea'"):
        knowing.latest("tea")
    with pytest.raises(SparkError, match="could not be read"):
        Registry("http://127.0.0.1:1").schema(1)


# -- Protobuf --


def descriptors(*, with_colour: bool = False) -> tuple[bytes, Any]:
    """What protoc writes for a file with an Order; and the class of its messages."""
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    order = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    order.field.add(name="order", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    order.field.add(name="tags", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_REPEATED)
    of_time = {"type": kinds.TYPE_MESSAGE, "type_name": ".google.protobuf.Timestamp", "label": kinds.LABEL_OPTIONAL}
    order.field.add(name="at", number=3, **of_time)
    if with_colour:
        order.field.add(name="colour", number=4, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    time = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(time)
    data = descriptor_pb2.FileDescriptorSet(file=[time, file]).SerializeToString()
    return data, Protobuf(data, "shop.Order")._class()


def test_protobuf_is_read_by_its_descriptors_and_new_fields_are_told() -> None:
    known, _ = descriptors()
    _, later = descriptors(with_colour=True)
    value = later(order=7, tags=["a", "b"], colour="blue")
    value.at.FromJsonString("2026-01-02T00:00:00Z")
    sent = value.SerializeToString()
    at = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    expected = {"order": 7, "tags": ["a", "b"], "at": at}
    plain, empty, bad = read_all(Protobuf(known, "shop.Order"), sent, b"", b"\xff\xff")
    assert (plain["data"], plain["newFields"], plain["problem"]) == (expected, ["#4"], None)
    assert empty["data"] == {"order": 0, "tags": [], "at": None}
    assert bad["data"] is None and bad["problem"].startswith("the value is not a shop.Order")
    framed = Protobuf(known, "shop.Order", framed=True)
    for path in (b"\0", b"\x02\0", b"\x04\x02\x04"):
        (row,) = read_all(framed, b"\0\0\0\0\x07" + path + sent)
        assert row["data"] == expected
    (row,) = read_all(framed, b"\0\0\0\0\x07\x84")
    assert row["problem"] == "the value ends within the path of its message"


def test_protobuf_that_no_column_holds_is_a_problem_of_its_row_alone() -> None:
    known, kind = descriptors()
    good, late, early = kind(order=7), kind(order=8), kind(order=9)
    late.at.seconds, early.at.seconds, early.at.nanos = 2**62, -(2**62), -5
    values = [each.SerializeToString() for each in (good, late, early, good)]
    rows = read_all(Protobuf(known, "shop.Order"), *values)
    assert [row["data"] and row["data"]["order"] for row in rows] == [7, None, None, 7]
    assert [row["problem"] for row in rows[1:3]] == [
        "a time is out of range: 4611686018427387904 s and 0 ns",
        "a time is out of range: -4611686018427387904 s and -5 ns",
    ]


def test_the_path_of_a_message_is_bounded() -> None:
    known, kind = descriptors()
    framed = Protobuf(known, "shop.Order", framed=True)
    began_s = time.process_time()
    long, many, negative = read_all(
        framed,
        b"\0\0\0\0\x07" + b"\xff" * 200_000 + b"\0",
        b"\0\0\0\0\x07" + b"\xfe\xff\xff\x0f" + b"\0" * 200_000,
        b"\0\0\0\0\x07\x01" + kind(order=7).SerializeToString(),
    )
    assert time.process_time() - began_s < 0.5
    assert long["problem"] == "the path of its message has a number of more than 10 bytes"
    assert many["problem"] == "the value ends within the path of its message"
    assert negative["problem"] == "the path of its message has -1 numbers"


@pytest.mark.parametrize(
    ("data", "message", "says"),
    [
        (descriptors()[0], "shop.Tea", "the descriptors have no message 'shop.Tea'"),
        (b"\xff", "x", "not Protobuf descriptors"),
    ],
)
def test_descriptors_that_do_not_have_the_message_are_refused(data: bytes, message: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        Protobuf(data, message).arrow_type()


# -- with Spark --


def test_a_stream_reads_avro_and_what_it_cannot_read_becomes_a_dead_letter(
    queues: Queues, registry: RegistryServer
) -> None:
    name, dead = queues.create(), queues.create("q.dead")
    values = [avro(ORDER_1, {"order": 1}, 1), b"broken", avro(ORDER_2, {"order": 2, "cups": 5, "at": 0, "kind": "TEA",
              "notes": {}, "tags": []}, 2)]  # fmt: skip
    with contextlib.closing(Connection(Where(url=queues.url))) as connection:
        section = b"".join(encode_section(Target(name), Chunk.of(0, 0, values)))
        connection.fetch("POST", "/v1/bulk/send", section, {})
    found = decoded(queues.stream(), Avro(registry=Registry(registry.url), subject="orders-value"))
    good: list[tuple[Any, ...]] = []

    def write(batch: Any, _: int) -> None:
        good.extend(tuple(row) for row in batch.where("problem is null").select("data.order", "data.cups").collect())
        dead_letters(batch).write.format("penstock").option("url", queues.url).option("topic", dead).mode(
            "append"
        ).save()

    checkpoint = str(queues.directory / "checkpoint")
    query = found.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    assert query.start().awaitTermination(60)
    assert sorted(good) == [(1, None), (2, 5)]
    (row,) = queues.reader("q.dead", includeDeadLetters="true").collect()
    assert (bytes(row.value), row.deadReason) == (b"broken", "the value does not begin with the number of a schema")
    assert (row.deadOrigin.queue, row.deadOrigin.offset) == (name, 1)
    with pytest.raises(InvalidOption, match="there is no column 'body' to read"):
        decoded(queues.reader(), Json("order bigint"), column="body")
    with pytest.raises(InvalidOption, match="there is a column 'data' already"):
        decoded(decoded(queues.reader(), Json("order bigint")), Json("order bigint"))
