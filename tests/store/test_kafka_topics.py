"""Topics that were just made, at brokers that have not all heard of them."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.store.journal.kafka_topics import when_known


class Asked:
    """Answers after some errors."""

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)

    def __call__(self) -> str:
        if self._codes:
            raise KafkaException(KafkaError(self._codes.pop(0)))
        return "known"


def test_a_topic_that_a_broker_does_not_know_yet_is_asked_for_again() -> None:
    assert when_known(Asked(KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE)) == "known"


def test_a_topic_that_nobody_ever_knows_is_an_error() -> None:
    with pytest.raises(KafkaException):
        when_known(Asked(*[KafkaError.UNKNOWN_TOPIC_OR_PART] * 2), timeout_s=0.0)


def test_any_other_error_is_not_waited_out() -> None:
    with pytest.raises(KafkaException):
        when_known(Asked(KafkaError.TOPIC_AUTHORIZATION_FAILED))
