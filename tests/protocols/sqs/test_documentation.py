"""docs/sqs.md has a row for everything there is, with the values that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.protocols.sqs import attributes, errors
from penstock.protocols.sqs.actions import REQUESTS
from penstock.protocols.sqs.limits import AWS, RELAXED
from penstock.protocols.sqs.received import SYSTEM_ATTRIBUTES

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "sqs.md").read_text()
ROWS: list[tuple[str, str]] = re.findall(r"^\| (`[^|]+`) \| (.+) \|$", TEXT, re.MULTILINE)
JUDGED = ("same", "different", "not there")


@pytest.mark.parametrize("name", sorted(REQUESTS) + sorted(attributes.NAMES - {"All"}))
def test_every_action_and_attribute_is_judged(name: str) -> None:
    assert any(names == f"`{name}`" and rest.startswith(JUDGED) for names, rest in ROWS)


@pytest.mark.parametrize("name", sorted(SYSTEM_ATTRIBUTES - {"All"}))
def test_every_system_attribute_is_judged(name: str) -> None:
    assert any(f"`{name}`" in names and rest.startswith(JUDGED) for names, rest in ROWS)


def test_the_table_of_errors_is_the_codes() -> None:
    documented = {(names.strip("`"), int(rest[:3])) for names, rest in ROWS if re.match(r"[45]\d\d \|", rest)}
    assert documented == {(kind.code, kind.status) for kind in errors.KINDS}


# -- what is the same as on AWS has a test --

PROOFS = {
    "AWS JSON 1.0": "test_an_answer_has_the_protocols_headers",
    "Query": "test_set_attributes_numbered_or_not",
    "Queue URLs": "test_queue_urls_follow_the_host_that_the_client_used",
    "Addressing": "test_a_queue_is_found_by_every_form_of_its_url",
    "Requests without an action": "test_a_request_without_an_action_is_an_unknown_operation",
    "Empty results": "test_an_empty_result_is_an_empty_element",
    "Signatures": "test_whatever_botocore_signs_is_let_in",
    "Unknown parameters": "test_parameters_that_nobody_knows_are_passed_over",
    "CancelMessageMoveTask": "test_a_slow_move_shows_its_progress_and_can_be_cancelled",
    "ChangeMessageVisibility": "test_a_visibility_that_ran_out_can_still_be_changed",
    "ChangeMessageVisibilityBatch": "test_a_late_change_in_a_batch_counts_as_well",
    "CreateQueue": "test_creating_a_queue_again_with_another_attribute_names_the_attribute",
    "DeleteMessage": "test_a_late_receipt_of_a_fifo_queue_has_expired",
    "DeleteMessageBatch": "test_a_batch_is_sent_received_and_deleted",
    "GetQueueAttributes": "test_only_what_was_asked_for_comes_back",
    "ListDeadLetterSourceQueues": "test_sources_of_a_dead_letter_queue_are_listed",
    "ListQueueTags": "test_tags_are_set_at_creation_added_changed_and_taken_away",
    "ListQueues": "test_lists_are_complete_and_in_order_and_come_in_pages",
    "RemovePermission": "test_labels_are_distinct_and_known",
    "SendMessage": "test_what_is_sent_is_received",
    "SendMessageBatch": "test_messages_of_a_batch_may_have_delays_and_attributes_of_their_own",
    "SetQueueAttributes": "test_numbers_are_taken_within_their_range_and_not_beyond",
    "TagQueue": "test_tags_are_set_at_creation_added_changed_and_taken_away",
    "UntagQueue": "test_tags_are_set_at_creation_added_changed_and_taken_away",
    "ContentBasedDeduplication": "test_content_is_a_dedup_id_if_the_queue_says_so",
    "CreatedTimestamp": "test_a_standard_queue_has_these_attributes",
    "DeduplicationScope": "test_dedup_by_group_lets_other_groups_have_the_same_id",
    "FifoQueue": "test_a_queue_keeps_its_kind",
    "MaximumMessageSize": "test_a_message_may_be_as_large_as_its_queue_says",
    "QueueArn": "test_accounts_and_regions_have_queues_of_their_own",
    "ReceiveMessageWaitTimeSeconds": "test_the_queue_may_say_how_long_a_receive_waits",
    "RedriveAllowPolicy": "test_a_dead_letter_queue_chooses_its_sources",
    "VisibilityTimeout": "test_the_queues_visibility_timeout_is_the_default",
    "Body": "test_characters_that_xml_cannot_have_are_refused",
    "Message attributes": "test_every_type_comes_back_as_it_was_sent",
    "AWSTraceHeader": "test_a_trace_header_goes_with_a_message_through_every_hop",
    "MD5 of body, attributes, system attributes": "test_system_attributes_have_a_checksum_of_their_own",
    "MessageAttributeNames": "test_a_receiver_gets_the_attributes_it_names",
    "SentTimestamp, ApproximateFirstReceiveTimestamp": "test_system_attributes_come_when_asked_for",
    "MessageGroupId, MessageDeduplicationId": "test_system_attributes_tell_of_order",
    "DeadLetterQueueSourceArn": "test_a_message_that_failed_often_enough_goes_to_the_dead_letter_queue",
    "MessageId": "test_ids_are_uuids_and_differ",
    "Receipt handle": "test_a_restart_forgets_neither_messages_nor_receipts",
    "Delivery": "test_a_received_message_is_not_seen_again_until_its_time_is_up",
    "Order within groups, blocking while in flight": "test_a_group_is_visible_as_soon_as_one_of_its_messages_is",
    "Deduplication": "test_the_same_dedup_id_within_five_minutes_is_the_same_message",
    "Dead-lettering": "test_dead_lettering_unblocks_the_group",
    "MessageGroupId on standard queues (fair queues)": "test_a_noisy_group_does_not_starve_the_others",
    "Long polls": "test_a_long_poll_answers_as_soon_as_a_message_is_there",
    "A client that hangs up while it waits": "test_a_client_that_hangs_up_takes_no_message_with_it",
}
"""What a row of the page says is the same as on AWS -> a test that sees it."""


def test_every_row_that_says_same_has_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert not [name for name in PROOFS.values() if f"def {name}(" not in tests]
    rows = re.findall(r"^\| ([^|]+) \| same \|", TEXT, re.MULTILINE)
    assert {row.replace("`", "") for row in rows} == set(PROOFS)


def test_ranges_of_attributes_are_those_of_the_code() -> None:
    for name, (_, sqs) in attributes._DECLARED.items():
        rows = [rest for names, rest in ROWS if names == f"`{name}`" and rest.startswith(JUDGED)]
        if sqs.low is not None and rows:
            assert f"{sqs.low:,} to {sqs.high:,}" in rows[0], name


@pytest.mark.parametrize(
    ("row", "strict", "relaxed"),
    [
        ("entries of a batch", "batch_entries_max", "batch_entries_max"),
        ("messages of a receive", "receive_max", "receive_max"),
        ("message attributes", "message_attributes_max", "message_attributes_max"),
    ],
)
def test_limits_are_those_of_the_code(row: str, strict: str, relaxed: str) -> None:
    assert f"| {row} | {getattr(AWS, strict):,} | {getattr(RELAXED, relaxed):,} |" in TEXT
