"""Errors that travel, or are remembered: what comes back is what was raised, or what that is a kind of."""

from __future__ import annotations

from penstock.core.errors import NotFound, PenstockError, QueueNotFound
from penstock.core.packed_error import PackedError, is_made_of_more, pack_error, unpack_error
from penstock.server.partition_map import PartitionMoved


def test_an_error_comes_back_as_itself() -> None:
    again = unpack_error(pack_error(QueueNotFound("there is no queue 'x'")))
    assert type(again) is QueueNotFound and str(again) == "there is no queue 'x'"


def test_a_bug_says_only_that_it_is_one() -> None:
    packed = pack_error(ZeroDivisionError("a secret"))
    assert packed.names == ["PenstockError"]
    assert "secret" not in packed.text


def test_an_error_made_of_more_than_its_text_needs_its_arguments() -> None:
    made_of = ("orders", 7, "b", "http://b:9325")
    error = PartitionMoved(*made_of)
    assert is_made_of_more(PartitionMoved)
    whole = unpack_error(pack_error(error), made_of)
    assert isinstance(whole, PartitionMoved)
    assert (whole.map_version, whole.owner, str(whole)) == (7, "b", str(error))
    without = unpack_error(pack_error(error))
    assert (type(without), str(without)) == (PenstockError, str(error))


def test_an_unknown_kind_becomes_what_it_is_a_kind_of() -> None:
    assert type(unpack_error(PackedError(["BrandNew", "NotFound", "PenstockError"], "gone"))) is NotFound
    assert type(unpack_error(PackedError(["BrandNew"], "gone"))) is PenstockError
