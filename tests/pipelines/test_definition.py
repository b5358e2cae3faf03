"""Definitions are checked without Spark: what is wrong is said with its place and what to do."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from penstock.pipelines.definition import Check, Parse, load
from penstock.pipelines.errors import InvalidDefinition

WHOLE = """\
name: orders
url: http://localhost:9325
dead_letters: orders.rejects
trigger: 5 seconds
restart: {times: 2, pause_s: 0.5, pause_s_max: 10}
sources:
  orders: {queue: orders, options: {maxOffsetsPerTrigger: 10}}
  customers: {files: customers, format: json, schema: "id bigint, name string", static: true}
steps:
  - name: parsed
    from: orders
    parse: json
    schema: id bigint, amount double
    checks:
      amount is positive: amount > 0
  - name: named
    sql: |
      with big as (select * from parsed where amount > 10)
      select customers.name, extract(year from big._message.timestamp) as year
      from big join customers on big.id = customers.id -- from nowhere
sinks:
  - {name: to_queue, queue: named}
  - {name: to_files, from: parsed, parquet: out/parsed, partition_by: id}
"""


def written(directory: Path, text: str, name: str = "orders.yaml") -> Path:
    file = directory / name
    file.write_text(textwrap.dedent(text))
    return file


def problems(file: Path) -> list[str]:
    with pytest.raises(InvalidDefinition) as caught:
        load(file)
    return [str(each).replace(str(file.parent) + "/", "") for each in caught.value.problems]


def test_a_definition_in_yaml_becomes_a_graph(tmp_path: Path) -> None:
    pipeline = load(written(tmp_path, WHOLE))
    assert pipeline.name == "orders"
    assert pipeline.sources["orders"].options == {"maxOffsetsPerTrigger": "10", "subscribe": "orders"}
    assert pipeline.sources["customers"].is_static
    parsed = pipeline.views["parsed"]
    assert (parsed.parse, parsed.checks) == (
        Parse("json", "id bigint, amount double"),
        (Check("amount is positive", "amount > 0"),),
    )
    assert pipeline.views["named"].inputs == ("parsed", "customers")
    assert pipeline.outputs["to_queue"].input == "named", "the last step, unless told otherwise"
    assert pipeline.outputs["to_files"].partition_by == ("id",)
    assert pipeline.queries == ["to_queue", "to_files", "parsed_rejects"]
    assert pipeline.settings.restarts == 2


def test_the_short_form_needs_a_source_and_a_sink(tmp_path: Path) -> None:
    pipeline = load(written(tmp_path, "source: {queue: a}\nsink: {queue: b}\n", "copy it.yaml"))
    assert pipeline.name == "copy-it"
    assert pipeline.outputs["sink_1"].input == "source"
    assert pipeline.queries == ["sink_1"]


CASES = {
    "unknown key": ("sorce: {queue: a}\nsink: {queue: b}\n", "orders.yaml:1: sorce: there is no key 'sorce' (did you"),
    "unknown key of a step": (
        "source: {queue: a}\nsteps:\n  - sqll: select 1\nsink: {queue: b}\n",
        "orders.yaml:3: steps[0].sqll: there is no key 'sqll' (did you mean sql?); there are: name, from, sql",
    ),
    "no source": ("sink: {queue: b}\n", "orders.yaml: nothing is read: add source"),
    "no sink": ("source: {queue: a}\n", "orders.yaml: nothing is written: add sink"),
    "two kinds of sink": (
        "source: {queue: a}\nsink: {queue: b, parquet: c}\n",
        "orders.yaml:2: sink: give one of queue, parquet, delta, iceberg, console (given: queue, parquet)",
    ),
    "missing table": (
        "source: {queue: a}\nsteps:\n  - sql: select * from sauce\nsink: {queue: b}\n",
        "orders.yaml:3: steps[0]: 'step_1' reads 'sauce', which is neither a source nor a step (did you mean source?)",
    ),
    "circle": (
        "source: {queue: a}\nsteps:\n  - {name: x, sql: select * from y}\n  - {name: y, sql: select * from x}\n"
        "sink: {queue: b}\n",
        "orders.yaml:3: steps[0]: goes in a circle: x reads y reads x. Break it at one of them",
    ),
    "option of the connector": (
        "source: {queue: a, options: {startingOffset: earliest}}\nsink: {queue: b}\n",
        "orders.yaml:1: source: there is no option 'startingoffset' (did you mean startingOffsets?)",
    ),
    "name of a queue": (
        "source: {queue: a b}\nsink: {queue: b}\n",
        "orders.yaml:1: source: subscribe: 'a b' cannot name",
    ),
    "secret": ("token: abc\nsource: {queue: a}\nsink: {queue: b}\n", "orders.yaml:1: token: keep secrets out"),
    "trigger": (
        "trigger: often\nsource: {queue: a}\nsink: {queue: b}\n",
        "trigger: 'often' is not an interval: write it like",
    ),
    "checks without dead letters": (
        "source: {queue: a}\nsteps:\n  - checks: [offset > 1]\nsink: {queue: b}\n",
        "orders.yaml:3: steps[0]: rows may fail here, and nothing says where they go: set dead_letters",
    ),
    "schema missing": (
        "dead_letters: d\nsource: {queue: a}\nsteps:\n  - parse: json\nsink: {queue: b}\n",
        "orders.yaml:4: steps[0]: parse: json needs a schema",
    ),
    "no such function": (
        "source: {queue: a}\nsteps:\n  - python: json:lods\nsink: {queue: b}\n",
        "orders.yaml:3: steps[0].python: there is no function 'lods' in the module 'json'",
    ),
    "function that takes no frame": (
        "source: {queue: a}\nsteps:\n  - python: os:getpid\nsink: {queue: b}\n",
        "orders.yaml:3: steps[0].python: os:getpid cannot be called with 1 frame(s): too many positional arguments",
    ),
    "key twice": (
        "source: {queue: a}\nsource: {queue: a}\n",
        "orders.yaml:2: source: is given a second time (first on",
    ),
    "no YAML": ("source: {queue: a\n", "orders.yaml:2: is not YAML"),
    "sink in a directory": (
        "data: d\nsource: {queue: a}\nsink: {queue: b}\n",
        "orders.yaml:3: sink: a sink that is a queue needs a server",
    ),
    "stream of files without a schema": (
        "source: {files: a, format: json}\nsink: {parquet: b}\n",
        "orders.yaml:1: source: a stream of files needs a schema",
    ),
    "reserved name": (
        "dead_letters: d\nsource: {queue: a}\nsteps: [{name: read, parse: text}]\n"
        "sink: {name: read_rejects, queue: b}\n",
        "'read_rejects' is the name of the query that sends the dead letters of 'read': rename it",
    ),
    "empty": ("", "orders.yaml: is empty"),
    "list": ("- a\n", "orders.yaml:1: must hold keys: name"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_said_with_its_place(case: str, tmp_path: Path) -> None:
    text, expected = CASES[case]
    found = problems(written(tmp_path, text))
    assert any(expected in each for each in found), found


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    found = problems(written(tmp_path, "nme: x\nsource: {quue: a}\nsink: {queue: b, form: c}\n"))
    assert len([each for each in found if "there is no key" in each]) == 3


def test_a_bomb_of_aliases_is_refused(tmp_path: Path) -> None:
    levels = ["a0: &a0 [1,1,1,1,1,1,1,1,1,1]"]
    levels += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "too large" in problems(written(tmp_path, "\n".join(levels)))[0]


@pytest.mark.parametrize("text", ["[" * 50_000, "{a: " * 50_000, "- " * 50_000])
def test_what_is_nested_too_deeply_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    assert problems(written(tmp_path, text)) == ["orders.yaml: is not YAML: it is nested too deeply"]


def test_a_file_of_another_kind_or_none_is_refused(tmp_path: Path) -> None:
    assert "ends in .yaml, .yml or .py" in problems(written(tmp_path, "x", "orders.toml"))[0]
    assert "there is no such file" in problems(tmp_path / "nothing.yaml")[0]


# -- Python ------------------------------------------------------------------------------------------------------------

DECLARED = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from penstock.pipelines import checked, lake_sink, queue, queue_sink

spark = SparkSession.active()
dp.create_sink("totals", "penstock", queue_sink("totals"))
dp.create_sink("lake", "penstock_lake", lake_sink("delta", "lake", partition_by="id"))
dp.create_streaming_table("both")

@checked(parse="json", schema="id bigint", checks={"positive": "id > 0"}, dead_letters="rejects")
def parsed():
    return queue("orders")

@dp.table(partition_cols=["id"])
def stored():
    return spark.readStream.table("parsed")

@dp.append_flow(target="totals")
def to_totals():
    return spark.readStream.table("stored")

@dp.append_flow(target="lake")
def to_lake():
    return spark.readStream.table("stored")

@dp.append_flow(target="both")
def one():
    return spark.readStream.table("stored")

@dp.append_flow(target="both")
def other():
    return spark.readStream.table("stored")

@dp.materialized_view
def count():
    return spark.sql("select count(*) from stored")
"""


def test_a_file_in_sparks_language_becomes_the_same_kind_of_graph(tmp_path: Path) -> None:
    pipeline = load(written(tmp_path, DECLARED, "orders.py"))
    assert pipeline.name == "orders"
    assert pipeline.queries == ["parsed_rejects", "stored", "to_totals", "to_lake", "both", "count"]
    assert set(pipeline.views) >= {"parsed", "stored.flow"}
    lake = pipeline.outputs["to_lake"]
    assert (lake.kind, lake.target, lake.partition_by) == ("delta", "lake", ("id",))
    assert (pipeline.outputs["to_totals"].kind, pipeline.outputs["to_totals"].target) == ("queue", "totals")
    assert pipeline.views[pipeline.outputs["both"].input].inputs == ("one.flow", "other.flow")
    assert pipeline.outputs["count"].kind == "materialized"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (('target="lake"', 'target="lakes"'), "there is no table or sink 'lakes' (did you mean lake?)"),
        (('queue_sink("totals")', 'queue_sink("a b")'), "orders.py:18: to_totals: topic: 'a b' cannot name"),
        (("def other", "def one"), "two flows have the name 'one': rename one"),
        (('"delta", "lake"', '"delta", ""'), "say where: delta: a directory"),
        (("@dp.table(", "@dp.tabel("), "orders.py:14: AttributeError"),
        (('parse="json"', 'parse="yaml"'), "orders.py:10: ValueError: parse is 'yaml'"),
        (("spark = SparkSession.active()", "spark = SparkSession.active("), "SyntaxError"),
        (('@dp.append_flow(target="both")', "#"), "no flow writes to 'both': add one"),
        (('partition_cols=["id"]', 'format="csv"'), "a table can be stored as parquet or delta, but not as csv"),
    ],
)
def test_faults_in_python_have_their_line_too(change: tuple[str, str], expected: str, tmp_path: Path) -> None:
    found = problems(written(tmp_path, DECLARED.replace(*change), "orders.py"))
    assert any(expected in each for each in found), found


def test_sparks_own_spec_names_the_files_and_the_settings(tmp_path: Path) -> None:
    written(tmp_path, DECLARED, "orders.py")
    spec = "name: shop\nstorage: file:///tmp/shop\nlibraries: [{glob: {include: orders.py}}]\nconfiguration:\n"
    file = written(tmp_path, spec + "  {penstock.restarts: '2', spark.x: y}\n", "spark-pipeline.yml")
    pipeline = load(file)
    assert (pipeline.name, pipeline.settings.restarts) == ("shop", 2)
    assert (pipeline.settings.state, pipeline.settings.conf) == ("file:///tmp/shop", {"spark.x": "y"})
    assert "stored" in pipeline.outputs
    written(tmp_path, spec + "  {penstock.restart: '2', penstock.restarts: x}\n", file.name)
    assert [each.partition("configuration.")[2] for each in problems(file)] == [
        "penstock.restart: there is no setting 'restart' (did you mean restarts?); there are: url, ca_file, trigger, "
        "restarts, restart_pause_s, restart_pause_s_max",
        "penstock.restarts: 'x' is not a number",
    ]
    written(tmp_path, spec.replace("orders.py", "none.py") + "  {}\n", file.name)
    assert "does not match any file" in problems(file)[0]
    written(tmp_path, "name: shop\n", file.name)
    assert any("storage" in each for each in problems(file))


def test_the_command_line_starts_without_spark() -> None:
    program = "import sys, penstock.cli; assert not {'pyspark', 'yaml', 'pyarrow', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
