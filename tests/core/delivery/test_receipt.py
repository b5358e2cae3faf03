"""Receipts: what was sealed is read, what was touched is refused."""

from __future__ import annotations

import string
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.delivery.receipt import MessageIds, Receipt, Recent, Seal, message_id, open_message_id
from penstock.core.errors import ForgedReceipt

receipts = st.builds(
    Receipt,
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 32) - 1),
)
secrets = st.binary(min_size=1, max_size=40)
ALPHABET = string.ascii_letters + string.digits + "-_=+/ é"


@given(receipts, secrets)
def test_sealed_receipt_is_read_with_the_same_secret(receipt: Receipt, secret: bytes) -> None:
    assert Receipt.open(receipt.seal(secret), lambda _: secret) == receipt


@given(receipts, secrets, secrets)
def test_receipt_of_another_store_is_refused(receipt: Receipt, secret: bytes, other: bytes) -> None:
    if secret.rstrip(b"\0") != other.rstrip(b"\0"):
        with pytest.raises(ForgedReceipt):
            Receipt.open(receipt.seal(secret), lambda _: other)


def test_every_changed_character_is_refused() -> None:
    text = Receipt(3, 1, 123_456, 2).seal(b"secret")
    for index, original in enumerate(text):
        for character in ALPHABET:
            if character != original:
                with pytest.raises(ForgedReceipt):
                    Receipt.open(text[:index] + character + text[index + 1 :], lambda _: b"secret")


def test_every_shortened_or_lengthened_receipt_is_refused() -> None:
    text = Receipt(3, 1, 123_456, 2).seal(b"secret")
    for length in range(len(text)):
        with pytest.raises(ForgedReceipt):
            Receipt.open(text[:length], lambda _: b"secret")
    for tail in ("=", "A", "AAAA", "\n", " "):
        with pytest.raises(ForgedReceipt):
            Receipt.open(text + tail, lambda _: b"secret")


@given(st.text(max_size=80))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ForgedReceipt):
        Receipt.open(text, lambda _: b"secret")


def test_receipt_fits_into_an_address() -> None:
    text = Receipt((1 << 64) - 1, (1 << 32) - 1, (1 << 64) - 1, (1 << 32) - 1).seal(b"secret")
    assert len(text) <= 64
    assert set(text) <= set(string.ascii_letters + string.digits + "-_=")


# -- many at a time ----------------------------------------------------------------------------------------------------

queue_ids = st.integers(0, (1 << 64) - 1)
channel_ids = st.integers(0, (1 << 32) - 1)
attempts = st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=12)
firsts = st.integers(0, (1 << 64) - 100)


@given(queue_ids, channel_ids, firsts, attempts, secrets)
def test_receipts_made_together_are_those_made_one_by_one(
    queue_id: int, channel_id: int, first: int, attempts: list[int], secret: bytes
) -> None:
    one_by_one = [
        Receipt(queue_id, channel_id, first + index, attempt).seal(secret) for index, attempt in enumerate(attempts)
    ]
    assert Seal(secret, queue_id).make(channel_id, first, attempts) == one_by_one


@given(queue_ids, st.lists(receipts, min_size=1, max_size=6), st.data())
def test_receipts_read_together_say_what_they_say_one_by_one(
    queue_id: int, some: list[Receipt], data: st.DataObject
) -> None:
    """Some of which may be of another queue, or changed on their way."""
    texts = []
    for receipt in some:
        of_queue = receipt._replace(queue_id=queue_id) if data.draw(st.integers(0, 9)) else receipt
        text = of_queue.seal(b"secret")
        if not data.draw(st.integers(0, 9)):
            at = data.draw(st.integers(0, len(text) - 1))
            text = text[:at] + data.draw(st.sampled_from(["", "A", "=", "==", "+", "é"])) + text[at + 1 :]
        texts.append(text)
    expected: list[tuple[int, int, int]] | None = []
    for text in texts:
        try:
            found = Receipt.open(text, lambda _: b"secret")
        except ForgedReceipt:
            found = None
        if expected is not None and found is not None and found.queue_id == queue_id:
            expected.append((found.channel_id, found.sequence, found.attempt))
        else:
            expected = None
    seal = Seal(b"secret", queue_id)
    assert seal.read(texts) == expected
    singly = [seal.read_one(text) for text in texts]
    assert (None if None in singly else singly) == expected


def test_a_receipt_that_was_moved_across_the_border_of_two_is_refused() -> None:
    seal = Seal(b"secret", 3)
    joined = "".join(seal.make(1, 5, [1, 1]))
    assert seal.read([joined[:51], joined[51:]]) is None
    assert seal.read([joined]) is None
    assert seal.read([joined[:50] + "==", joined[52:]]) is None
    assert seal.read([joined[:52], joined[52:102] + "=="]) is None


def test_the_seals_of_neighbours_are_not_each_others() -> None:
    """They come of one MAC, and none of them fits another message, channel or attempt."""
    texts = [Receipt(3, 1, sequence, 2).seal(b"secret") for sequence in range(8, 12)]
    seals = [text[32:] for text in texts]
    assert len(set(seals)) == 4
    for text in texts:
        for seal in set(seals) - {text[32:]}:
            assert Seal(b"secret", 3).read_one(text[:32] + seal) is None
    others = [Receipt(3, 1, 12, 2), Receipt(3, 1, 8, 3), Receipt(3, 2, 8, 2), Receipt(4, 1, 8, 2)]
    assert not {each.seal(b"secret")[32:] for each in others} & set(seals)


def test_receipts_of_the_older_kind_are_refused() -> None:
    older = "AAAAAAAAAAEAAAABAAAAAAAAACoAAAAC" + "A" * 24
    assert len(older) == 56
    with pytest.raises(ForgedReceipt):
        Receipt.open(older, lambda _: b"secret")
    assert Seal(b"secret", 1).read_one(older) is None
    assert Seal(b"secret", 1).read([older]) is None


def test_every_changed_character_is_refused_among_many() -> None:
    seal = Seal(b"secret", 3)
    first, text, last = seal.make(1, 5, [1, 2, 3])
    for index, original in enumerate(text):
        for character in ALPHABET:
            if character != original:
                assert seal.read([first, text[:index] + character + text[index + 1 :], last]) is None


def test_no_two_texts_are_the_same_receipt() -> None:
    text = next(each for n in range(100) if set("-_") <= set(each := Receipt(3, 1, n, 2).seal(b"secret")))
    for twin in (text.replace("-", "+"), text.replace("_", "/")):
        with pytest.raises(ForgedReceipt):
            Receipt.open(twin, lambda _: b"secret")
        assert Seal(b"secret", 3).read([twin]) is None


# -- remembered --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.data())
def test_a_seal_that_remembers_reads_what_one_that_does_not_reads(count_max: int, data: st.DataObject) -> None:
    """Whatever is made, read, read again or changed, and however little is remembered."""
    recent = Recent(count_max)
    seals = {queue: (Seal(b"key %d" % queue, queue, recent), Seal(b"key %d" % queue, queue)) for queue in (1, 2)}
    made: list[list[str]] = [["forged"]]
    for _ in range(data.draw(st.integers(1, 10))):
        remembering, forgetful = seals[data.draw(st.sampled_from((1, 2)))]
        if data.draw(st.booleans()):
            first = data.draw(st.integers(0, 20))
            attempts = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=4))
            made.append(remembering.make(1, first, attempts))
            assert made[-1] == forgetful.make(1, first, attempts)
        chosen = data.draw(st.sampled_from(made))
        if data.draw(st.booleans()):
            chosen = data.draw(st.lists(st.sampled_from([text for texts in made for text in texts]), min_size=1))
        known = forgetful.read(chosen)
        assert remembering.read(chosen) == known
        assert remembering.read_one(chosen[0]) == forgetful.read_one(chosen[0])
        assert forgetful.read_run(chosen) is None
        run = remembering.read_run(chosen)
        if run is not None:
            channel, first, last, attempt = run
            assert known == [(channel, sequence, attempt) for sequence in range(first, last + 1)]


def test_receipts_of_a_run_come_back_as_one() -> None:
    seal = Seal(b"key", 1, Recent())
    texts = seal.make(1, 5, [2, 2, 2])
    assert seal.read_run(texts) == (1, 5, 7, 2)
    assert seal.read_run(texts[:2]) is None
    joined = "".join(texts)
    assert seal.read_run([joined]) is None
    assert seal.read_run([joined[:51], joined[51:104], joined[104:]]) is None
    assert Seal(b"key", 2, seal._recent).read_run(texts) is None


def test_what_is_remembered_is_bounded() -> None:
    recent = Recent(10)
    for queue in range(1, 100):
        Seal(b"key", queue, recent).make(1, 1, [1] * 5)
        assert len(recent.known) <= 2


numbers = st.integers(0, (1 << 64) - 1)


@given(numbers, numbers, st.integers(0, (1 << 63) - 1))
def test_a_message_id_is_opened_to_what_it_was_made_of(realm: int, queue_id: int, sequence: int) -> None:
    assert open_message_id(realm, message_id(realm, queue_id, sequence)) == (queue_id, sequence)


@given(numbers, numbers, st.integers(0, (1 << 58) - 1))
def test_a_message_id_is_a_uuid_of_version_4(realm: int, queue_id: int, sequence: int) -> None:
    text = message_id(realm, queue_id, sequence)
    found = uuid.UUID(text)
    assert (found.version, found.variant, str(found)) == (4, uuid.RFC_4122, text)


def test_nothing_in_message_ids_counts() -> None:
    ids = MessageIds(7, 3).texts(0, 1_000)
    assert len(set(ids)) == 1_000
    for at in range(36):
        if at not in (8, 13, 14, 18, 19, 23):
            assert len({text[at] for text in ids}) == 16, at


def test_ids_of_earlier_builds_are_still_opened() -> None:
    assert open_message_id(99, "53845412-7b09-64f0-0000-0000000004d2") == (7, 1_234)


@given(numbers, numbers, st.integers(0, (1 << 58) - 1), st.integers(0, 600))
def test_ids_made_together_are_those_made_one_by_one(realm: int, queue_id: int, first: int, count: int) -> None:
    alone = [MessageIds(realm, queue_id).text(sequence) for sequence in range(first, first + count)]
    ids = MessageIds(realm, queue_id)
    assert ids.texts(first, count) == alone
    assert [ids.text(sequence) for sequence in range(first, first + count)] == alone


def test_the_ids_that_are_kept_are_bounded() -> None:
    queues = [MessageIds(7, queue_id) for queue_id in range(1_000)]
    for queue in queues:
        queue.texts(0, 2)
    assert sum(len(queue._blocks) for queue in queues) <= 500
    assert queues[-1]._blocks and not queues[0]._blocks
