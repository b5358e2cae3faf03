"""Reading by offset over REST: records as JSON and as Arrow, named consumers, virtual queues."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import httpx
import pyarrow as pa
import pytest

from penstock.core.commands import Send
from penstock.core.queues.attributes import encode_attributes
from penstock.core.queues.partition import partition_of
from penstock.protocols.rest import records
from penstock.server.partition_map import PartitionMap
from tests.protocols.rest.asking import bodies, done, refused, send
from tests.protocols.rest.serving import PATIENCE_S, Server

ARROW = {"accept": "application/vnd.apache.arrow.stream"}


def arrow(response: httpx.Response) -> pa.Table:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == ARROW["accept"]
    return pa.ipc.open_stream(response.content).read_all()


def test_records_are_read_from_an_offset_to_an_end(http: httpx.Client, name: str) -> None:
    send(http, name, "a", "b", group="g")
    send(http, name, "c", attributes={"n": 1})
    found = done(http.get(f"/v1/queues/{name}/records"))
    assert [(each["offset"], each["body"], each.get("key")) for each in found["records"]] == [
        (0, "a", "g"),
        (1, "b", "g"),
        (2, "c", None),
    ]
    assert found["records"][2]["attributes"] == {"n": 1}
    assert (found["next_offset"], found["end_offset"]) == (3, 3)
    part = done(http.get(f"/v1/queues/{name}/records?offset=1&end=2"))
    assert (bodies(part["records"]), part["next_offset"], part["end_offset"]) == (["b"], 2, 3)
    assert bodies(done(http.get(f"/v1/queues/{name}/records?max=1"))["records"]) == ["a"]
    assert bodies(done(http.get(f"/v1/queues/{name}/records?max_bytes=2"))["records"]) == ["a", "b"]


def test_records_are_read_as_arrow(server: Server, http: httpx.Client, name: str) -> None:
    send(http, name, "a", "b", group="g")
    server.call(Send(queue=name, bodies=[b"\xff"], attributes=[encode_attributes({"n": 1, "b": b"\x00"})]))
    response = http.get(f"/v1/queues/{name}/records", headers=ARROW)
    table = arrow(response)
    assert table.column_names == ["offset", "timestamp", "key", "value"]
    assert table["offset"].to_pylist() == [0, 1, 2]
    assert table["value"].to_pylist() == [b"a", b"b", b"\xff"]
    assert table["key"].to_pylist() == [b"g", b"g", None]
    assert table.schema.metadata == {b"penstock-next-offset": b"3", b"penstock-end-offset": b"3"}
    assert (response.headers["penstock-next-offset"], response.headers["penstock-end-offset"]) == ("3", "3")
    with_headers = arrow(http.get(f"/v1/queues/{name}/records?headers=true&offset=2", headers=ARROW))
    assert with_headers["headers"].to_pylist() == [[{"key": "n", "value": b"1"}, {"key": "b", "value": b"\x00"}]]
    empty = http.get(f"/v1/queues/{name}/records?offset=3", headers=ARROW)
    assert arrow(empty).num_rows == 0


def test_arrow_comes_in_pieces_that_together_are_all(server: Server, http: httpx.Client, name: str) -> None:
    sizes = [(number * 37) % 2_000 for number in range(3_000)]
    for start in range(0, 3_000, 500):
        server.call(Send(queue=name, bodies=[b"x" * size for size in sizes[start : start + 500]]))
    found: list[int] = []
    offset, requests = 0, 0
    while offset < 3_000:
        response = http.get(f"/v1/queues/{name}/records?offset={offset}&max_bytes=300000&max=100000", headers=ARROW)
        values = arrow(response)["value"].to_pylist()
        assert sum(map(len, values)) <= 300_000
        found += map(len, values)
        offset, requests = int(response.headers["penstock-next-offset"]), requests + 1
    assert found == sizes
    assert requests > 5


def test_a_reader_that_does_not_read_holds_no_more_than_a_response(serve: Callable[..., Server]) -> None:
    server = serve("[rest]\nresponse_bytes_max = 1000000")
    for _ in range(20):
        server.call(Send(queue="q", bodies=[b"x" * 10_000] * 50))
    with server.client() as http:
        response = http.get("/v1/queues/q/records?max=100000", headers=ARROW)
        assert len(response.content) < 1_200_000
        assert response.headers["penstock-next-offset"] == "100"
        connection = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
        connection.sendall(
            b"GET /v1/queues/q/records?max=100000 HTTP/1.1\r\nhost: localhost\r\naccept: "
            + ARROW["accept"].encode()
            + b"\r\n\r\n"
        )
        assert done(http.get("/v1/stats"))["messages"] == 1_000
        connection.close()
        assert done(http.get("/v1/stats"))["messages"] == 1_000


def test_without_pyarrow_the_server_says_so(http: httpx.Client, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    send(http, name, "a")
    monkeypatch.setattr(records, "_HAS_ARROW", False)
    assert "penstock-mq[arrow]" in refused(http.get(f"/v1/queues/{name}/records", headers=ARROW), 406, "not_acceptable")
    assert http.get(f"/v1/queues/{name}/records").status_code == 200


def test_a_named_consumer_reads_on_where_it_was(http: httpx.Client, name: str) -> None:
    send(http, name, *"abc")
    at = f"/v1/queues/{name}/consumers/reader"
    assert bodies(done(http.get(f"{at}/records?max=2"))["records"]) == ["a", "b"]
    refused(http.get(at), 404, "consumer_not_found")
    assert done(http.put(at, json={"offset": 2})) == {"consumer": "reader", "offset": 2, "end_offset": 3, "lag": 1}
    assert bodies(done(http.get(f"{at}/records"))["records"]) == ["c"]
    assert "is at offset 2" in refused(http.put(at, json={"offset": 1}), 409, "rewind_refused")
    assert done(http.put(at, json={"offset": 1, "allow_rewind": True}))["lag"] == 2
    refused(http.put(at, json={"offset": 4}), 400, "invalid_request")
    assert [each["consumer"] for each in done(http.get(f"/v1/queues/{name}/consumers"))["consumers"]] == ["reader"]
    assert http.delete(at).status_code == 204
    refused(http.delete(at), 404, "consumer_not_found")


# -- virtual queues ----------------------------------------------------------------------------------------------------


def test_one_node_owns_all_there_is(server: Server, http: httpx.Client) -> None:
    found = done(http.post("/get_partitions"))
    assert found == {"version": 1, "partitions": 1, "owners": ["0"], "nodes": {"0": server.url}}


def test_a_virtual_queue_appears_with_its_first_message(http: httpx.Client, name: str) -> None:
    refused(http.post("/get_records", json={"queue": name}), 404, "queue_not_found")
    body = {"queue": name, "messages": [{"body": "a"}, {"body": "b"}, {"body": "c"}]}
    assert done(http.post("/publish", json=body)) == {"offsets": [0, 1, 2]}
    found = done(http.post("/get_records", json={"queue": name, "max_records": 2}))
    assert (bodies(found["records"]), found["next_offset"], found["end_offset"]) == (["a", "b"], 2, 3)
    ack = {"queue": name, "consumer": "c1", "offset": 2}
    assert done(http.post("/consumer_ack", json=ack)) == {"offset": 2}
    assert bodies(done(http.post("/get_records", json={"queue": name, "consumer": "c1"}))["records"]) == ["c"]
    explicit = {"queue": name, "consumer": "c1", "offset": 1, "max_records": 1}
    assert bodies(done(http.post("/get_records", json=explicit))["records"]) == ["b"]
    refused(http.post("/consumer_ack", json={**ack, "offset": 1}), 409, "rewind_refused")
    assert done(http.post("/consumer_ack", json={**ack, "offset": 1, "AllowRewind": True})) == {"offset": 1}
    assert done(http.post("/consumer_ack", json={**ack, "offset": 0, "allow_rewind": True})) == {"offset": 0}
    assert http.post("/delete_consumer", json={"queue": name, "consumer": "c1"}).status_code == 204
    refused(http.post("/delete_consumer", json={"queue": name, "consumer": "c1"}), 404, "consumer_not_found")
    assert http.post("/delete_queue", json={"queue": name}).status_code == 204
    refused(http.post("/delete_queue", json={"queue": name}), 404, "queue_not_found")


def test_virtual_queues_know_the_names_that_their_clients_know(http: httpx.Client, name: str) -> None:
    body = {"Queue": name, "messages": [{"body": each} for each in "abc"]}
    assert done(http.post("/publish", json=body)) == {"offsets": [0, 1, 2]}
    found = done(http.post("/get_records", json={"Queue": name, "Offset": 1, "MaxRecords": 1}))
    assert (bodies(found["records"]), found["next_offset"]) == (["b"], 2)
    ack = {"Queue": name, "Consumer": "c1", "Offset": 2}
    assert done(http.post("/consumer_ack", json=ack)) == {"offset": 2}
    assert bodies(done(http.post("/get_records", json={"Queue": name, "Consumer": "c1"}))["records"]) == ["c"]
    refused(http.post("/consumer_ack", json={**ack, "Offset": 1}), 409, "rewind_refused")
    refused(http.post("/consumer_ack", json={**ack, "Offset": 1, "AllowRewind": False}), 409, "rewind_refused")
    assert done(http.post("/consumer_ack", json={**ack, "Offset": 1, "AllowRewind": True})) == {"offset": 1}
    assert http.post("/delete_consumer", json={"Queue": name, "Consumer": "c1"}).status_code == 204
    refused(http.post("/delete_consumer", json={"Queue": name, "Consumer": "c1"}), 404, "consumer_not_found")
    assert http.post("/delete_queue", json={"Queue": name}).status_code == 204
    refused(http.post("/delete_queue", json={"Queue": name}), 404, "queue_not_found")


@pytest.mark.parametrize("queue", ["queue", "Queue"])
def test_virtual_queues_take_their_names_from_the_url_too(http: httpx.Client, name: str, queue: str) -> None:
    messages = {"messages": [{"body": each} for each in "abc"]}
    assert done(http.post("/publish", params={queue: name}, json=messages)) == {"offsets": [0, 1, 2]}
    found = done(http.post("/get_records", params={queue: name, "Offset": 1, "MaxRecords": 1}))
    assert bodies(found["records"]) == ["b"]
    ack = {queue: name, "Consumer": "c1", "Offset": 2}
    assert done(http.post("/consumer_ack", params=ack)) == {"offset": 2}
    refused(http.post("/consumer_ack", params={**ack, "Offset": 1}), 409, "rewind_refused")
    back = {**ack, "Offset": 1, "AllowRewind": "true"}
    assert done(http.post("/consumer_ack", params=back)) == {"offset": 1}
    mixed = http.post("/get_records", params={"Consumer": "c1"}, json={"queue": name, "max_records": 1})
    assert bodies(done(mixed)["records"]) == ["b"]
    assert http.post("/delete_consumer", params={queue: name, "Consumer": "c1"}).status_code == 204
    assert http.post("/delete_queue", params={queue: name}).status_code == 204


@pytest.mark.parametrize(
    ("query", "body", "words"),
    [
        (
            "",
            {"queue": "a", "Queue": "b"},
            'queue in the body is "a", and Queue in the body is "b": they mean the same',
        ),
        ("", {"queue": "a", "offset": 1, "Offset": 2}, "offset in the body is 1, and Offset in the body is 2"),
        ("", {"queue": "a", "offset": None, "Offset": 2}, "offset in the body is null, and Offset in the body is 2"),
        (
            "?MaxRecords=5",
            {"queue": "a", "max_records": 6},
            "MaxRecords in the URL is 5, and max_records in the body is 6",
        ),
        ("?Queue=b", {"queue": "a"}, 'Queue in the URL is "b", and queue in the body is "a"'),
        ("", {}, "queue (or Queue) is missing"),
        ("", {"QUEUE": "a"}, "unknown field `QUEUE`"),
        ("", {"queue": "a", "maxRecords": 1}, "unknown field `maxRecords`"),
        ("?Queues=a", {}, "there is no parameter 'Queues'"),
        ("?MaxRecords=0", {"queue": "a"}, "MaxRecords: Expected `int` >= 1"),
        ("", {"Queue": "a", "MaxRecords": "many"}, "MaxRecords: Expected `int`, got `str`"),
    ],
)
def test_two_names_for_one_thing_must_agree(http: httpx.Client, query: str, body: dict[str, Any], words: str) -> None:
    assert words in refused(http.post(f"/get_records{query}", json=body), 400, "invalid_request")


def test_the_same_under_both_names_is_fine(http: httpx.Client, name: str) -> None:
    send(http, name, "a")
    body = {"queue": name, "Queue": name, "offset": 0, "Offset": 0, "max_records": 5, "MaxRecords": 5}
    assert bodies(done(http.post(f"/get_records?Queue={name}", json=body))["records"]) == ["a"]


def test_the_document_shows_both_names_of_what_virtual_queues_take(http: httpx.Client) -> None:
    described = done(http.get("/v1/openapi.json"))
    both = {"queue", "Queue", "consumer", "Consumer", "offset", "Offset", "max_records", "MaxRecords"}
    call = described["paths"]["/get_records"]["post"]
    assert {each["name"] for each in call["parameters"]} == both
    reference = call["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert set(described["components"]["schemas"][reference]["properties"]) == both
    acked = described["components"]["schemas"]["ConsumerAck"]["properties"]
    assert {"Queue", "Consumer", "Offset", "AllowRewind"} < set(acked)


class TwoNodes:
    """The map of two nodes; this one is `a`."""

    def __init__(self) -> None:
        self.map = PartitionMap(7, "a", ("a", "b", "a", "b"), {"a": "http://a:9325", "b": "http://b:9325"})

    def current(self) -> PartitionMap:
        return self.map


def test_a_queue_of_another_node_is_refused_with_the_maps_version(serve: Callable[..., Server]) -> None:
    nodes = TwoNodes()
    server = serve(maps=nodes)
    names = [f"q{number}" for number in range(20)]
    mine = [each for each in names if partition_of(each, 4) in (0, 2)]
    theirs = [each for each in names if each not in mine]
    assert mine
    assert theirs
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/publish", {"messages": [{"body": "a"}]}),
        ("/get_records", {}),
        ("/consumer_ack", {"consumer": "c", "offset": 1}),
        ("/delete_consumer", {"consumer": "c"}),
        ("/delete_queue", {}),
    ]
    with server.client() as http:
        assert done(http.post("/get_partitions"))["owners"] == ["a", "b", "a", "b"]
        for path, fields in requests:
            assert http.post(path, json={"queue": mine[0], **fields}).status_code in (200, 204)
            response = http.post(path, json={"queue": theirs[0], **fields})
            refused(response, 409, "partition_moved")
            assert (response.json()["map_version"], response.json()["owner"]) == (7, "http://b:9325")
        nodes.map = PartitionMap(8, "a", ("a",) * 4, nodes.map.urls)
        done(http.post("/publish", json={"queue": theirs[0], "messages": [{"body": "a"}]}))


def test_a_client_that_routes_itself_may_ask_not_to_be_forwarded(serve: Callable[..., Server]) -> None:
    server = serve(maps=TwoNodes())
    names = [f"q{number}" for number in range(20)]
    mine = next(each for each in names if partition_of(each, 4) in (0, 2))
    theirs = next(each for each in names if partition_of(each, 4) in (1, 3))
    with server.client() as http:
        for queue, route, status in (
            (mine, "strict", 201),
            (theirs, "strict", 409),
            (theirs, "forward", 201),
            (theirs, "elsewhere", 400),
        ):
            response = http.post(f"/v1/queues/{queue}/messages", json={"body": "a"}, headers={"Penstock-Route": route})
            assert response.status_code == status, response.text
        assert done(http.get(f"/v1/queues/{theirs}"))["stats"]["messages"] == 1  # what was refused was not done
        refused(http.get(f"/v1/queues/{theirs}", headers={"Penstock-Route": "strict"}), 409, "partition_moved")
