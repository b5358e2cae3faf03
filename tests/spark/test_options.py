"""Options: the Kafka connector's names; what is unknown or wrong is an error that says what is right."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.spark.errors import InvalidOption
from penstock.spark.options import EARLIEST, LATEST, SinkOptions, SourceOptions

HERE = {"url": "http://localhost:9325", "subscribe": "orders"}


def parse(streaming: bool = False, **options: Any) -> SourceOptions:
    given = {name: value for name, value in (HERE | options).items() if value is not None}
    return SourceOptions.parse(given, streaming=streaming)


@pytest.mark.parametrize(
    ("options", "streaming", "says"),
    [
        ({"subscribed": "x"}, False, "did you mean subscribe"),
        ({"kafka.bootstrap.servers": "x"}, False, r"did you mean url\?\); a source takes: url, token"),
        ({"kafka.group.id": "x"}, True, r"did you mean channel\?"),
        ({"subscribe": None}, False, "exactly one of subscribe, subscribePattern and assign"),
        ({"subscribePattern": "x"}, False, "exactly one of"),
        ({"subscribe": " , "}, False, "at least one queue"),
        ({"subscribe": "no/slash"}, False, "no/slash"),
        ({"subscribe": None, "subscribePattern": "("}, False, "not a regular expression"),
        ({"subscribe": None, "assign": "orders"}, False, r'\{"orders": \[0\]\}'),
        ({"subscribe": None, "assign": '{"orders": []}'}, False, r"a list such as \[0\]"),
        ({"subscribe": None, "assign": '{"orders": [0, -1]}'}, False, r"a list such as \[0\]"),
        ({"url": None}, False, "say where the queues are"),
        ({"path": "/data"}, False, "say where the queues are"),
        ({"url": "localhost"}, False, "write penstock://host:9325 or http://host:9325"),
        ({"url": "http://a:1,b:x"}, False, "'http://a:1,b:x' is not the address of a server"),
        ({"url": None, "path": "/data", "token": "x"}, False, "token is for a server"),
        ({"url": None, "path": "s3a://bucket/data"}, False, "'s3a://bucket/data': it must be a data directory"),
        ({"startingOffsets": "newest"}, False, "earliest, latest, latest-10 or"),
        ({"startingOffsets": '{"orders": 7}'}, False, "-2 is earliest"),
        ({"startingOffsets": '{"orders": {}}'}, False, "-2 is earliest"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, False, "-2 is earliest"),
        ({"startingOffsets": '{"orders": {"id": 7}}'}, False, "-2 is earliest"),
        ({"startingOffsets": '{"orders": {"0": 7, "1": 7}}'}, False, "times 2\\^48"),
        ({"endingOffsets": '{"orders": {"0": 7, "1": -2}}'}, False, "cannot be earliest"),
        ({"startingOffsets": '{"billing": {"0": 7}}'}, False, "name the same ones"),
        ({"startingOffsets": "latest"}, False, "cannot be latest"),
        ({"startingOffsets": '{"orders": {"0": 7, "1": -1}}'}, False, "cannot be latest"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, False, "give one of them"),
        ({"endingOffsets": "earliest"}, False, "cannot be earliest"),
        ({"endingOffsets": "latest"}, True, "endingOffsets is for a batch"),
        ({"consume": "true"}, True, "consume is for a batch"),
        ({"maxOffsetsPerTrigger": "5"}, False, "is for a stream"),
        ({"minOffsetsPerTrigger": "5"}, False, "is for a stream"),
        ({"maxTriggerDelay": "5m"}, True, "give that, too"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, True, "30s, 15m or 1h"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, True, "no batch could"),
        ({"maxRecordsPerPartition": "0"}, False, "at least 1"),
        ({"startingOffsetsByTimestamp": '{"orders": 5}'}, False, "milliseconds since 1970"),
        ({"startingOffsetsByTimestamp": '{"other": {"0": 5}}'}, False, "name the same ones"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": 5}}', "startingTimestamp": "5"}, False, "give one of them"),
        ({"endingOffsetsByTimestamp": '{"orders": {"0": 5}}'}, True, "is for a batch"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, False, "error or latest"),
        ({"includeDeadLetters": "some"}, False, "true or false"),
        ({"maxOffsetsPerTrigger": "0"}, True, "at least 1"),
        ({"maxBytesPerTrigger": "1 MB"}, True, "whole number"),
        ({"minPartitions": "0"}, False, "at least 1"),
        ({"failOnDataLoss": "maybe"}, False, "true or false"),
        ({"groupIdPrefix": "a b"}, False, "groupIdPrefix"),
        ({"channel": ""}, True, "channel"),
        ({"consume": "true", "url": None, "path": "/data"}, False, "only read"),
        ({"consume": "true", "startingTimestamp": "1"}, False, "give no offsets"),
        ({"consume": "true", "readFrom": "kafka"}, False, "cannot read from Kafka"),
        ({"readFrom": "disk"}, False, "it must be auto, kafka or server"),
        ({"url": None, "path": "/data", "readFrom": "kafka"}, False, "are for a server"),
        ({"url": None, "path": "/data", "kafka.bootstrap": "x:1"}, False, "are for a server"),
        ({"kafka.isolation.level": "read_uncommitted"}, False, "there is no option 'kafka.isolation.level'"),
    ],
)
def test_a_wrong_option_is_an_error_that_says_what_is_right(
    options: dict[str, Any], streaming: bool, says: str
) -> None:
    with pytest.raises(InvalidOption, match=says):
        parse(streaming, **options)


def test_names_of_options_are_the_same_in_any_case() -> None:
    assert parse(MAXOFFSETSPERTRIGGER="7", streaming=True).max_offsets == 7


@pytest.mark.parametrize("url", ["localhost:9325", "penstock://a,b:9325", "http://a:9325,b:9325/", "https://a"])
def test_a_url_is_what_connect_takes(url: str) -> None:
    assert parse(url=url).where.url == url


@pytest.mark.parametrize("path", ["/data", "file:/data", "file:///data"])
def test_a_path_may_be_written_as_spark_writes_it(path: str) -> None:
    assert parse(url=None, path=path).where.path == "/data"


def test_offsets_are_words_or_numbers() -> None:
    assert parse(startingOffsets="EARLIEST").starting == EARLIEST
    assert parse(streaming=True, startingOffsets="latest").starting == LATEST
    assert parse(startingOffsets='{"orders": {"0": 23}}').starting == {"orders": {0: 23}}
    several = parse(startingOffsets='{"orders": {"0": -2, "1": 281474976710657}}').starting
    assert several == {"orders": {0: EARLIEST, 1: (1 << PARTITION_SHIFT) + 1}}


def test_a_token_shows_in_no_error_and_no_repr() -> None:
    assert "s3cret" not in repr(parse(token="s3cret"))
    assert "s3cret" not in repr(parse(**{"kafka.sasl.password": "s3cret"}))


def test_options_for_kafka_go_to_its_client_without_their_prefix() -> None:
    where = parse(**{"readFrom": "Kafka", "kafka.bootstrap": "k1:9092", "kafka.sasl.username": "tea"}).where
    assert (where.read_from, where.kafka_bootstrap) == ("kafka", "k1:9092")
    assert where.kafka_properties == (("sasl.username", "tea"),)
    assert parse().where.read_from == "auto"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topics": "x"}, "did you mean topic"),
        ({"path": "/data"}, "a sink needs a server"),
        ({"delivery": "maybe"}, "exactly-once or at-least-once"),
        ({"topic": "a b"}, "topic"),
        ({"kafka.bootstrap": "x"}, "there is no option 'kafka.bootstrap'"),
        ({"readFrom": "kafka"}, "there is no option 'readfrom'"),
    ],
)
def test_a_wrong_option_of_a_sink_is_an_error(options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        SinkOptions.parse({"url": "http://localhost:9325"} | options)


def test_without_any_option_the_error_tells_of_tables_that_lose_theirs() -> None:
    with pytest.raises(InvalidOption, match=r"CREATE TABLE .* has lost them.*CREATE TEMPORARY VIEW"):
        SourceOptions.parse({}, streaming=False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"txnAppId": "a"}, "give both"),
        ({"txnVersion": "1"}, "give both"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "at least 0"),
        ({"txnAppId": "a", "txnVersion": "1", "delivery": "at-least-once"}, "need delivery exactly-once"),
    ],
)
def test_a_transaction_is_a_name_and_a_number(options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        SinkOptions.parse({"url": "http://localhost:9325", "topic": "orders", **options})
