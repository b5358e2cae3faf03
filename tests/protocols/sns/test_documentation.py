"""docs/sns.md says what there is: its lists are those of the code, and what it promises has a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.protocols.sns import delivery, filters, publish_actions, requests, topics
from penstock.protocols.sns.service import ACTIONS
from penstock.server.settings import SnsSettings

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "sns.md").read_text()
ROWS = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", TEXT, re.MULTILINE))


def test_the_actions_are_those_of_the_service() -> None:
    assert set(re.findall(r"\w+", ROWS["actions"].replace("(ByTopic)", ""))) == set(ACTIONS)


def test_the_protocols_are_those_that_can_be_subscribed() -> None:
    assert set(re.findall(r"`([a-z-]+)`", ROWS["not delivered"])) == topics.NOT_SENT
    delivered = set(re.findall(r"`(sqs|https?|penstock)`", ROWS["delivery"]))
    assert delivered == topics.PROTOCOLS - topics.NOT_SENT


def test_the_numbers_are_those_of_the_code() -> None:
    assert f"`http_timeout_s` ({SnsSettings().http_timeout_s:g})" in TEXT
    assert f"within {delivery._GATHER_S_MIN * 1_000:.0f} ms, or up to {delivery._GATHER_S_MAX * 1_000:.0f} ms" in TEXT
    assert "at most 119 characters" in TEXT
    assert requests.NAME.match("a" * 119)
    assert not requests.NAME.match("a" * 120)
    assert topics.PENDING_MS_MAX == 2 * 24 * 3_600 * 1_000
    assert "two days" in TEXT
    assert (filters._KEYS_MAX, filters._COMBINATIONS_MAX, publish_actions.MESSAGE_BYTES_MAX) == (5, 150, 256 * 1024)


PROOFS = {
    "`MessageStructure=json`": "test_raw_delivery_maps_attributes_and_json_structure_chooses_the_text",
    "filter policies": "test_a_compiled_policy_is_the_naive_reading",
    "FIFO topics": "test_a_fifo_topic_keeps_order_and_drops_duplicates",
    "fair queues": "test_a_group_is_passed_on_from_a_standard_topic_for_fair_queues",
    "dead letters": "test_what_a_missing_queue_would_get_goes_to_the_dead_letter_queue",
    "wire protocol": "test_an_unsigned_form_without_a_version_reaches_sns",
    "actions": "test_actions_and_errors_are_those_of_the_model",
    "delivery": "test_a_publish_reaches_every_subscribed_queue_in_an_envelope",
    "not delivered": "test_what_is_not_served_can_be_subscribed_and_is_counted",
    "Retries": "test_a_message_is_tried_again_by_the_policy_and_then_goes_to_the_dead_letter_queue",
    "Signatures": "test_an_endpoint_confirms_its_subscription_and_gets_signed_notifications",
    "Archive and replay": "test_a_fifo_topic_gets_and_loses_its_archive",
    "Celery": "test_remote_control_and_broadcasts_reach_every_worker_through_sns",
    "Accounts and regions": "test_accounts_and_regions_have_topics_of_their_own",
}


@pytest.mark.parametrize("row", PROOFS)
def test_what_the_page_promises_has_a_test(row: str) -> None:
    assert row in TEXT
    files = [*(ROOT / "tests" / "protocols" / "sns").glob("test_*.py"), *(ROOT / "tests" / "compat").glob("test_*.py")]
    assert any(f"def {PROOFS[row]}(" in file.read_text() for file in files)


def test_every_row_of_what_is_served_has_a_proof() -> None:
    served = TEXT.partition("## What is served")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| ([^|]+?) \|", served, re.MULTILINE)) - {"", "---"} <= set(PROOFS)
