"""Receipts: what was sealed is read, what was touched is refused."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ForgedReceipt
from penstock.core.receipt import Receipt

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
