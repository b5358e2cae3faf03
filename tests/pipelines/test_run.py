"""Pipelines on real Spark, against a real server: each row once, wherever it belongs."""

from __future__ import annotations

import base64
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.pipelines.checkpoints import status_of
from penstock.pipelines.errors import IncompatibleCheckpoint, InvalidDefinition
from penstock.pipelines.where import Where
from tests.pipelines.running import Bench
from tests.spark.running import Queues

ORDERS = """\
name: orders
dead_letters: "{q}-rejects"
source: {queue: "{q}-q", options: {maxOffsetsPerTrigger: 40}}
steps:
  - name: parsed
    parse: json
    schema: id bigint, amount double
    checks:
      amount is positive: amount > 0
  - name: doubled
    sql: select id, amount * 2 as amount, 'north' as key from parsed
sinks:
  - {name: to_queue, queue: "{q}-doubled"}
  - {name: to_files, from: parsed, parquet: out, partition_by: [id]}
"""


def send(queues: Queues, *bodies: str) -> None:
    queues.rest("POST", f"/v1/queues/{queues.name()}/messages", [{"body": body} for body in bodies])


def bodies(queues: Queues, short: str) -> list[Any]:
    return [json.loads(body_of(record)) for record in queues.records(short)]


def body_of(record: dict[str, Any]) -> str:
    return record["body"] if "body" in record else base64.b64decode(record["body_base64"]).decode(errors="replace")


def test_good_rows_go_to_every_sink_and_bad_ones_to_the_dead_letters_once(queues: Queues) -> None:
    bench = Bench(queues, ORDERS)
    send(queues, '{"id": 1, "amount": 1.5}', '{"id": 2, "amount": -2}', "no json", '{"id": "x", "amount": 1}')
    assert bench.run().state == "done"
    assert bodies(queues, "doubled") == [{"id": 1, "amount": 3.0}]
    assert [bytes(row.key) for row in queues.reader("doubled").collect()] == [b"north"]
    assert bench.files("out", "id", "amount") == [(1, 1.5)]
    letters = queues.records("rejects")
    said = [
        (body_of(each), each["attributes"]["penstock.reason"], each["attributes"]["penstock.offset"])
        for each in letters
    ]
    assert said == [
        ('{"id": 2, "amount": -2}', "check failed: amount is positive", "1"),
        ("no json", "the body is not JSON", "2"),
        ('{"id": "x", "amount": 1}', "the body does not fit the schema: id bigint, amount double", "3"),
    ]
    assert letters[0]["attributes"]["penstock.queue"] == queues.name()
    assert letters[0]["attributes"]["penstock.step"] == "parsed"

    assert bench.run().state == "done"
    assert bench.rows() == {}, "nothing is read twice"
    send(queues, '{"id": 5, "amount": 5}')
    assert bench.run().state == "done"
    assert bench.rows() == {"to_queue": 1, "to_files": 1, "parsed_rejects": 1}
    assert bench.files("out", "id") == [(1,), (5,)]
    assert len(queues.records("rejects")) == 3
    assert set(queues.channels()) >= {"pipeline.orders.to_queue.source", "pipeline.orders.parsed_rejects.source"}

    found = status_of(bench.pipeline, bench.state, Where(url=queues.url))
    assert found["state"] == "done"
    assert [(each["query"], each["last_batch"], each["lag"]) for each in found["queries"]] == [
        ("to_queue", 1, 0),
        ("to_files", 1, 0),
        ("parsed_rejects", 1, 0),
    ]

    bench.write(ORDERS.replace('queue: "{q}-q"', 'queue: "{q}-other"'))
    with pytest.raises(IncompatibleCheckpoint):
        bench.run()
    bench.write(ORDERS)
    assert bench.run(reset=True).state == "done"
    assert bench.rows()["to_files"] == 5
    assert bench.files("out", "id") == [(1,), (5,)], "what was there before was moved aside"


PYTHON = """\
from pyspark import pipelines as dp
from pyspark.sql.functions import col, udf
from penstock.pipelines import checked, messages, queue, queue_sink

@udf("string")
def shouted(text):
    return loud(text)

def loud(text):
    return text.upper()

@checked(parse="text", dead_letters="{q}-rejects", keep_message=True)
def lines():
    return queue("{q}-q")

@checked(checks={"not too long": "length(text) < 10"}, dead_letters="{q}-rejects")
def short():
    return spark.readStream.table("lines")

@dp.table
def stored():
    return spark.readStream.table("short").withColumn("loud", shouted("text"))

@dp.materialized_view
def counted():
    return spark.table("stored").groupBy().count()

dp.create_sink("out", "penstock", queue_sink("{q}-out"))

@dp.append_flow(target="out")
def loud_ones():
    return spark.readStream.table("stored").select(col("loud").alias("value"))
"""


def test_a_run_that_was_killed_before_its_first_batch_began_can_start_again(queues: Queues) -> None:
    """Spark leaves a file that it had begun, and then refuses the directory, unless it is told otherwise."""
    bench = Bench(queues, ORDERS)
    send(queues, '{"id": 1, "amount": 1.5}')
    for query in ("to_queue", "to_files"):
        begun = Path(bench.state.checkpoint(query), "offsets", ".0.5d7c3a0e-9f43-4f6e-8a53-0d8f2f1a7c11.tmp")
        begun.parent.mkdir(parents=True)
        begun.write_text("v1\n")
    assert bench.run().state == "done"
    assert bodies(queues, "doubled") == [{"id": 1, "amount": 3.0}] and bench.files("out", "id") == [(1,)]


def test_decorated_functions_run_in_order_with_tables_between_them(queues: Queues) -> None:
    bench = Bench(queues, PYTHON, "python.py")
    send(queues, "tea", "this is much too long", "milk")
    assert bench.run().state == "done"
    assert sorted(body_of(each) for each in queues.records("out")) == ["MILK", "TEA"]
    (letter,) = queues.records("rejects")
    assert body_of(letter) == "this is much too long"
    assert letter["attributes"]["penstock.step"] == "short"
    assert letter["attributes"]["penstock.offset"] == "1"
    assert {name: query["rejects"] for name, query in queries(bench).items()} == {
        "lines_rejects": {},
        "short_rejects": {"short: check failed: not too long": 1},
        **{name: {} for name in ("stored", "counted", "loud_ones")},
    }
    assert bench.files(".penstock/python/tables/counted", "count") == [(2,)]
    send(queues, "juice")
    assert bench.run().state == "done"
    assert sorted(body_of(each) for each in queues.records("out")) == ["JUICE", "MILK", "TEA"]
    assert bench.files(".penstock/python/tables/counted", "count") == [(3,)]
    bench.write(PYTHON.replace('queue("{q}-q")', 'queue("{q}-other")'))
    with pytest.raises(IncompatibleCheckpoint, match="queues was"):
        bench.run()


def queries(bench: Bench) -> dict[str, Any]:
    """What the status file says of each query."""
    return {each["query"]: each for each in (bench.state.read_status() or {})["queries"]}


FUNCTION = """\
import os
from pyspark.sql.functions import udf

def checked(frame, customers, spark):
    flag = os.environ["PENSTOCK_TEST_FLAG"]

    @udf("string")
    def fail_once(text):
        if not os.path.exists(flag):
            raise ValueError("there is no flag yet")
        return text

    joined = frame.selectExpr("cast(value as string) as id").join(customers, "id")
    return joined.select(fail_once("name").alias("name"))
"""
RESTARTING = """\
name: restarting
restart: {times: 2, pause_s: 0.1}
sources:
  ids: {queue: "{q}-q"}
  customers: {files: customers, format: json, schema: "id string, name string", static: true}
steps:
  - {name: named, from: [ids, customers], python: "FUNCTION:checked"}
sinks:
  - {delta: lake}
  - {iceberg: berg}
  - {console: true}
"""


def test_a_query_that_fails_is_started_again_and_gives_up_in_the_end(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    import deltalake
    from pyiceberg.catalog.sql import SqlCatalog

    module = f"functions_of_{queues.prefix}"
    (queues.directory / f"{module}.py").write_text(FUNCTION)
    (queues.directory / "customers").mkdir()
    (queues.directory / "customers" / "1.json").write_text('{"id": "0", "name": "Ann"}\n{"id": "2", "name": "Bob"}\n')
    flag = queues.directory / "flag"
    monkeypatch.setenv("PENSTOCK_TEST_FLAG", str(flag))
    queues.send(3)
    bench = Bench(queues, RESTARTING.replace("FUNCTION", module))
    outcome = bench.run()
    assert outcome.state == "failed"
    assert "ValueError: there is no flag yet (tried 3 times)" in outcome.reason
    status = bench.state.read_status() or {}
    assert (status["state"], status["reason"]) == ("failed", outcome.reason)

    bench.display.on_note = flag.touch
    assert bench.run().state == "done"
    assert bench.display.notes, "it failed, and was started again"
    lake = deltalake.DeltaTable(str(bench.path("lake"))).to_pyarrow_table()
    assert sorted(lake["name"].to_pylist()) == ["Ann", "Bob"]
    catalog = SqlCatalog(
        "penstock", uri=f"sqlite:///{bench.path('berg')}/catalog.db", warehouse=f"file://{bench.path('berg')}"
    )
    assert sorted(catalog.load_table("default.sink_2").scan().to_arrow()["name"].to_pylist()) == ["Ann", "Bob"]
    catalog.close()
    assert [(each["query"], each["rows"]) for each in (bench.state.read_status() or {})["queries"]][-1] == ("sink_3", 3)


def test_a_failure_that_cannot_heal_is_not_tried_again(queues: Queues) -> None:
    bench = Bench(queues, 'source: {queue: "{q}-nothing"}\nsink: {queue: "{q}-out"}\n')
    outcome = bench.run()
    assert outcome.state == "failed"
    assert outcome.reason == f"sink_1: InvalidOption: there is no queue '{queues.prefix}-nothing': check the name"
    assert bench.display.notes == []


WINDOWS = """\
dead_letters: "{q}-rejects"
source: {queue: "{q}-q"}
steps:
  - name: parsed
    parse: json
    schema: at timestamp, n bigint
    watermark: {column: at, delay: 0 seconds}
  - name: totals
    sql: select window.start as minute, sum(n) as total from parsed group by window(at, '1 minute')
    checks: [total < 100]
sink: {queue: "{q}-totals"}
"""


def test_windows_come_out_when_the_watermark_has_passed_them(queues: Queues) -> None:
    bench = Bench(queues, WINDOWS)
    send(
        queues, *[json.dumps({"at": f"2026-01-01T00:0{m}:30Z", "n": n}) for m, n in ((0, 1), (0, 2), (1, 100), (5, 1))]
    )
    assert bench.run().state == "done"
    assert bodies(queues, "totals") == [{"minute": "2026-01-01T00:00:00.000Z", "total": 3}]
    (letter,) = queues.records("rejects")
    assert json.loads(body_of(letter)) == {"minute": "2026-01-01T00:01:00.000Z", "total": 100}
    assert "penstock.offset" not in letter["attributes"]


def test_continuous_runs_until_it_is_told_to_stop_and_finishes_its_batch(queues: Queues) -> None:
    text = 'trigger: 100 ms\nsource: {queue: "{q}-q", options: {maxOffsetsPerTrigger: 10}}\nsink: {queue: "{q}-out"}\n'
    bench = Bench(queues, text)
    queues.send(25)
    stop = threading.Event()
    bench.display.on_batch = lambda: stop.set() if sum(bench.rows().values()) >= 25 else None
    outcome = bench.run(once=False, stop=stop)
    assert outcome.state == "stopped"
    assert [batch.rows for _, batch in bench.display.batches] == [10, 10, 5]
    assert sorted(int(body_of(each)) for each in queues.records("out")) == list(range(25))


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("{sql: select nothing from source}", "orders.yaml:3: steps[0]: AnalysisException: [UNRESOLVED_COLUMN"),
        ("{parse: json, schema: nonsense}", "orders.yaml:3: steps[0]: AnalysisException: [PARSE_SYNTAX_ERROR]"),
        ("{sql: selec 1 from source}", "orders.yaml:3: steps[0]: ParseException"),
        ("{sql: select value as body from source}\nsink: {parquet: x, partition_by: day}", "partition_by names day"),
    ],
)
def test_what_only_spark_can_know_has_its_place_too(queues: Queues, step: str, expected: str) -> None:
    sink = "" if "sink" in step else "sink: {queue: out}\n"
    bench = Bench(queues, f'source: {{queue: "{{q}}-q"}}\nsteps:\n  - {step}\n{sink}dead_letters: d\n')
    for look in (bench.check, bench.run):
        with pytest.raises(InvalidDefinition) as caught:
            look()
        assert expected in str(caught.value)


@pytest.mark.parametrize("name", ["parsed", "source"])
def test_a_table_of_the_catalogue_is_not_read_in_place_of_a_view(queues: Queues, name: str) -> None:
    queues.create()
    send(queues, '{"id": 1}')
    queues.spark.sql(f"create table {name} using parquet as select 7L as id, 'foreign' as body")
    bench = Bench(
        queues,
        """
        source: {queue: "{q}-q"}
        steps:
          - {name: parsed, parse: json, schema: "id bigint"}
          - {sql: select id from parsed}
        sink: {queue: "{q}-out"}
        dead_letters: d
        """,
    )
    for look in (bench.check, bench.run):
        with pytest.raises(InvalidDefinition) as caught:
            look()
        assert str(caught.value).endswith(
            f"the catalogue has a table '{name}', which would be read instead: "
            "give this view another name, or drop that table"
        )
    queues.spark.sql(f"drop table {name}")
    assert bench.run().state == "done"
    assert [json.loads(body_of(each)) for each in queues.records("out")] == [{"id": 1}]


def test_looking_with_spark_reads_nothing_and_leaves_nothing(queues: Queues) -> None:
    bench = Bench(queues, ORDERS)
    queues.create()
    bench.check()
    assert set(queues.channels()) == {"main"}
    assert not bench.path(".penstock").exists()


FILES = """\
source: {files: incoming, format: json, schema: "id bigint, name string"}
sink: {queue: "{q}-out"}
"""


def test_files_that_come_are_sent_once_each(queues: Queues) -> None:
    bench = Bench(queues, FILES)
    incoming = bench.path("incoming")
    incoming.mkdir()
    for number in range(2):
        (incoming / f"{number}.json").write_text(f'{{"id": {number}, "name": "n{number}"}}\n')
        assert bench.run().state == "done"
    assert bodies(queues, "out") == [{"id": 0, "name": "n0"}, {"id": 1, "name": "n1"}]


def test_a_pipeline_reads_a_data_directory_without_a_server(queues: Queues) -> None:
    queues.send(20)
    step = "sql: select cast(value as string) as n from source"
    bench = Bench(queues, f'source: {{queue: "{{q}}-q"}}\nsteps:\n  - {step}\nsink: {{parquet: out}}\n')
    for _ in range(2):
        assert bench.run(where=Where(data=queues.data)).state == "done"
    assert len(bench.files("out", "n")) == 20
    assert set(queues.channels()) == {"main"}


def test_rows_that_fail_are_dead_letters_of_their_queue_and_go_back_by_redrive(queues: Queues) -> None:
    queues.create("q")
    with penstock.connect(queues.url) as ps:
        ps.queue(queues.name()).send_many([b'{"id": 1}', b"no json", b'{"id": -1}'])
        ids = {message.sequence: message.id for message in ps.queue(queues.name()).browse(limit=10)}
        bench = Bench(
            queues,
            """
            dead_letters: "{q}-q.dead"
            source: {queue: "{q}-q"}
            steps:
              - {name: read, parse: json, schema: "id bigint"}
              - {name: checked, checks: {positive: id > 0}}
            sink: {parquet: out}
            """,
        )
        assert bench.run().state == "done"
        dead = ps.queue(queues.name("q.dead"))
        letters = sorted(dead.browse(limit=10), key=lambda letter: letter.origin.sequence)
        assert [(letter.origin.queue, letter.origin.sequence) for letter in letters] == [
            (queues.name(), 1),
            (queues.name(), 2),
        ]
        told = [letter.history[-1].error for letter in letters]
        assert told == ["read: the body is not JSON", "checked: check failed: positive"]
        frame = queues.reader("q.dead", includeDeadLetters="true")
        rows = frame.selectExpr("deadOrigin.offset", "deadOrigin.id", "attempts").collect()
        assert sorted(map(tuple, rows)) == [(1, ids[1], 1), (2, ids[2], 1)]
        task = ps.redrive(queues.name("q.dead"), error="not JSON").wait(timeout=10)
        assert (task.moved, task.skipped) == (1, 1)
        assert [message.body for message in dead.browse(limit=10)] == [b'{"id": -1}']
        assert [record["body"] for record in queues.records()][-1] == "no json"


TABLE = """\
from pyspark import pipelines as dp
from penstock.pipelines import queue

@dp.table
def bills():
    return queue("{q}-q").selectExpr("cast(value as string) as body")

@dp.materialized_view
def total():
    return spark.table("bills").groupBy().count()
"""


def test_a_table_that_the_pipeline_did_not_make_is_never_dropped(queues: Queues) -> None:
    queues.send(2)
    bench = Bench(queues, TABLE, "bills.py")
    queues.spark.sql("create table bills using parquet as select 7L as id")
    with pytest.raises(InvalidDefinition) as caught:
        bench.run()
    assert str(caught.value).endswith(
        "the catalogue has a table 'bills' that this pipeline did not make: give this table another name, "
        "or drop that one"
    )
    assert [row.id for row in queues.spark.table("bills").collect()] == [7]
    queues.spark.sql("drop table bills")
    for rows in (2, 3):  # the second run finds the table that the first one made
        assert bench.run().state == "done"
        assert queues.spark.table("bills").count() == rows
        queues.send(1, start=9)
