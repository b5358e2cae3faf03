"""Transactions that Kafka has left without an end: whoever opens the shard ends them, as wholes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from penstock.core.storage.changes import Changes
from penstock.store.errors import CommitAborted, CommitFailed, LogUnavailable, LogUnsafe
from penstock.store.journal.kafka import KafkaJournal, LogPosition, _Reading
from penstock.store.journal.kafka_hanging import Ends, Hanging, must_abort
from penstock.store.journal.kafka_options import KafkaOptions
from penstock.store.journal.kafka_records import MARKER_KEY, Marker, Splits
from penstock.store.journal.kafka_topics import LogTopics
from penstock.store.kafka import open_kafka
from tests.kafka import needed_cluster
from tests.store.conformance import Model, changes_of, content
from tests.store.kafka_engine import options_for
from tests.store.raw_kafka import RawProducer
from tests.store.test_kafka import is_refused, set_config, until
from tools.kafka import KafkaCluster

NONCE = b"n" * 16
OLDER, LAST = Marker(6, NONCE, has_data=True), Marker(7, NONCE, has_data=True)
RECORDS_ONLY = Marker(7, NONCE)
BEFORE = Model({b"c/1": b"one"}, {b"r/1": b"1"})
AFTER = Model({b"c/1": b"one", b"c/2": b"two"}, {b"r/1": b"1", b"r/2": b"2"})


@pytest.mark.parametrize(
    ("data", "offset", "committed", "is_to_abort"),
    [
        (Hanging([LAST]), Hanging([LAST]), (OLDER, OLDER), False),
        (Hanging([LAST]), None, (OLDER, LAST), False),
        (None, Hanging([LAST]), (LAST, OLDER), False),
        (None, Hanging([RECORDS_ONLY]), (OLDER, OLDER), False),
        (Hanging([OLDER, LAST]), Hanging([OLDER, LAST]), (None, None), False),
        (Hanging([OLDER]), None, (None, RECORDS_ONLY), False),  # the owner would not have gone on after a refusal
        (Hanging([OLDER]), None, (None, Marker(7, b"m" * 16)), True),
        (Hanging([LAST]), None, (OLDER, OLDER), True),
        (None, Hanging([LAST]), (OLDER, OLDER), True),
        (Hanging([LAST]), Hanging([], has_tail=True), (OLDER, OLDER), True),
        (Hanging([], has_tail=True), Hanging([LAST]), (OLDER, OLDER), True),
        (Hanging([], has_tail=True), None, (None, None), True),
        (None, Hanging([Marker(7, b"m" * 16, has_data=True)]), (LAST, OLDER), True),
    ],
)
def test_what_is_whole_may_be_committed_and_the_rest_is_aborted(
    data: Hanging | None, offset: Hanging | None, committed: tuple[Marker | None, Marker | None], is_to_abort: bool
) -> None:
    assert must_abort([data, offset], committed) == is_to_abort


def test_what_can_only_be_ended_together_and_must_not_be_is_left_to_people() -> None:
    with pytest.raises(LogUnsafe, match="commit 6 is complete, another one is not"):
        must_abort([Hanging([OLDER, LAST]), Hanging([OLDER])], [None, None])


def test_what_aborts_a_transaction_does_not_complete_it_if_it_hangs_as_well() -> None:
    """The half that has to be aborted is still to be aborted by the next who opens the shard."""
    journal = KafkaJournal(KafkaOptions("127.0.0.1:1", "demo", "demo"), LogTopics("", "", "", 1 << 20, 0), 0)
    producer = journal._producer = Mock()
    producer.flush.return_value = 0
    journal._abort_with(["demo.offset"])
    hanging = Hanging()
    hanging.note(Mock(**{"key.return_value": b"\1r/2"}))
    for call in producer.produce.call_args_list:
        topic, value, key, _ = call.args
        message = {"topic.return_value": topic, "value.return_value": value, "key.return_value": key}
        hanging.note(Mock(**message))
    assert producer.produce.called
    assert must_abort([None, hanging], [OLDER, OLDER])


# -- on a real broker --


@pytest.fixture(scope="module")
def believing() -> Iterator[KafkaCluster]:
    """A broker that does not ask whether a transaction has begun."""
    with needed_cluster(properties={"transaction.partition.verification.enable": "false"}) as cluster:
        yield cluster


def messages(values: dict[bytes, bytes], marker: Marker | None) -> list[tuple[bytes, bytes]]:
    """As the journal writes them."""
    made = [(key, value or b"") for key, value in Splits().messages(values, 2, 1 << 20)]
    return [*made, (MARKER_KEY, marker.encode())] if marker is not None else made


@pytest.mark.parametrize(
    ("data_marker", "offset_marker", "expected"),
    [
        (LAST, LAST, AFTER),
        (LAST, None, BEFORE),
        (None, LAST, BEFORE),
        (None, None, BEFORE),
    ],
)
def test_who_opens_a_shard_ends_what_hangs_in_its_log(
    believing: KafkaCluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    data_marker: Marker | None,
    offset_marker: Marker | None,
    expected: Model,
) -> None:
    options = options_for(believing)
    with closing(open_kafka(options, 0, tmp_path / "first")) as store:
        store.commit(changes_of(BEFORE.chunks, BEFORE.records))
    _leave(options, data_marker, offset_marker)
    with caplog.at_level(logging.ERROR, "penstock.kafka"), closing(open_kafka(options, 0, tmp_path / "first")) as store:
        assert "a transaction hangs in the log" in caplog.text
        assert content(store) == expected
        store.commit(changes_of({b"c/3": b"three"}))
    with closing(open_kafka(options, 0, tmp_path / "elsewhere")) as store:
        assert content(store) == expected.after(changes_of({b"c/3": b"three"}))


def _leave(options: KafkaOptions, data_marker: Marker | None, offset_marker: Marker | None) -> None:
    """A transaction of which Kafka believes that it is complete."""
    with closing(RawProducer(options.bootstrap, options.transactional_id(0))) as producer:
        producer.write(options.data_topic, messages({b"c/2": b"two"}, data_marker))
        producer.write(options.offset_topic, messages({b"r/2": b"2"}, offset_marker))
    with closing(Ends(options, 0, 60.0)) as ends:
        assert all(ends.hanging())


def test_one_half_that_hangs_is_committed_if_the_other_was(believing: KafkaCluster, tmp_path: Path) -> None:
    options = options_for(believing)
    with closing(open_kafka(options, 0, tmp_path / "first")) as store:
        store.commit(changes_of(BEFORE.chunks, BEFORE.records))
    with closing(Ends(options, 0, 60.0)) as ends:
        data, offset = ends.last_markers()
    assert data == offset and data is not None and data.has_data
    with closing(RawProducer(options.bootstrap, options.transactional_id(0))) as producer:
        producer.write(options.data_topic, messages({b"c/1": b"one once more"}, data))
    with closing(open_kafka(options, 0, tmp_path / "elsewhere")) as store:
        assert content(store) == Model({b"c/1": b"one once more"}, {b"r/1": b"1"})


def test_a_half_that_hangs_is_committed_although_its_owner_has_gone_on(believing: KafkaCluster, tmp_path: Path) -> None:
    """Leases and acks have nothing for the data partition, so nothing ends there what hangs."""
    options = options_for(believing)
    with closing(open_kafka(options, 0, tmp_path / "first")) as store:
        store.commit(changes_of(BEFORE.chunks, BEFORE.records))
        with closing(Ends(options, 0, 60.0)) as ends:
            data, _ = ends.last_markers()
        store.commit(changes_of({}, {b"r/2": b"2"}))
    assert data is not None
    with closing(RawProducer(options.bootstrap, options.transactional_id(0))) as producer:
        producer.write(options.data_topic, messages({b"c/2": b"two"}, data))
    with closing(open_kafka(options, 0, tmp_path / "elsewhere")) as store:
        assert content(store) == AFTER


def test_an_opening_that_fails_does_not_count_as_read_what_it_has_committed(
    believing: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its marker is behind what hung. The cache has got neither, and must not say that it has."""

    def silent(_reading: _Reading, _nonce: bytes) -> Iterator[Changes]:
        raise LogUnavailable("Kafka is silent")

    options = options_for(believing)
    with closing(open_kafka(options, 0, tmp_path)) as store:
        store.commit(changes_of(BEFORE.chunks, BEFORE.records))
    _leave(options, LAST, LAST)
    with monkeypatch.context() as patch:
        patch.setattr(_Reading, "until", silent)
        with pytest.raises(LogUnavailable, match="Kafka is silent"):
            open_kafka(options, 0, tmp_path)
    with closing(open_kafka(options, 0, tmp_path)) as store:
        assert content(store) == AFTER


def test_a_refused_commit_that_hangs_may_have_been_written(
    believing: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever says that nothing was written has looked."""

    def hangs(_self: KafkaJournal) -> None:
        raise LogUnavailable("it hangs")

    options = options_for(believing)
    with closing(open_kafka(options, 0, tmp_path)) as store:
        set_config(options, options.data_topic, "max.message.bytes", 1000)
        until(lambda: is_refused(store), 60)
        monkeypatch.setattr(KafkaJournal, "_check_that_nothing_hangs", hangs)
        with pytest.raises(CommitFailed) as failed:
            is_refused(store)
        assert not isinstance(failed.value, CommitAborted)
        with pytest.raises(CommitFailed):
            store.commit(changes_of({b"c/2": b"two"}))


def test_a_piece_that_ends_in_the_middle_of_a_value_is_not_taken_to_be_in_the_table() -> None:
    """The rest of that value may come to nothing: the parts are deleted in the next piece."""
    journal = KafkaJournal(KafkaOptions("127.0.0.1:1", "demo", "demo"), LogTopics("", "", "", 1 << 20, 0), 0)
    saved: list[LogPosition] = []
    journal.saves(saved.append)
    reading: Any = Mock()
    reading.position.side_effect = [None, LogPosition(2, 2, 0.0)]
    changes = Changes()
    changes.put_record(b"key", b"value")
    assert [number for number, _ in journal._steps_of(reading, iter([changes, Changes()]))] == [1]
    journal.trim(0)
    assert saved == [], "the record is in memory alone"
    journal.trim(1)
    journal.close()
    assert saved == [LogPosition(2, 2, 0.0)]
