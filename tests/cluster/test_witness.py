"""The second opinion itself: every kind of client works, and what is lost is seen to be."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster import witness
from tests.cluster.witness import KINDS, Witness, murmur2
from tests.server.test_stood_still import started


@pytest.mark.parametrize(
    ("data", "hashed"), [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)]
)
def test_its_hash_is_kafkas(data: bytes, hashed: int) -> None:
    """The values are those of Kafka's own test (`UtilsTest.testMurmur2`)."""
    assert murmur2(data) == hashed & 0xFFFFFFFF


def test_every_kind_of_client_sends_and_receives_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witness, "PACE_S", 0.1)
    ports = [f"--{name}-port=0" for name in ("sqs", "http", "nsq-tcp", "nsq-http")]
    with started(tmp_path, "serve", "--data", str(tmp_path / "data"), *ports) as (_, listening):
        node = {"sqs": listening["sqs"]["port"], "http": listening["http"]["port"], "nsq": listening["nsq"]["port"]}
        found = Witness([node])
        found.start()
        deadline_s = time.monotonic() + 60.0
        while any(len(pair.confirmed_s) < 5 for pair in found.pairs) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        found.stop()
        errors = {pair.kind: dict(pair.errors) for pair in found.pairs if pair.errors}
    assert not errors
    assert not found.problems and len(found.pairs) == len(KINDS)
    for pair in found.pairs:
        assert len(pair.confirmed_s) >= 5, pair.kind
    pair = found.pairs[0]
    del pair.received[next(iter(pair.confirmed_s))]
    pair.received["something else"] += 1
    assert [problem.split(":")[0] for problem in found.problems] == ["lost", "never sent"]
    assert "lost 1" in found.lines()[0]
    first, until_s = next(iter(pair.confirmed_s.values())), time.monotonic()
    pair.confirmed_s = {"one": first}
    assert pair.gap_s(first, until_s) == until_s - first, "a client that never gets through again has the longest gap"
