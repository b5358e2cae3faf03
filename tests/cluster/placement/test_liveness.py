"""Who is alive, by what is heard in the topic and by links; and who becomes the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from penstock.cluster.base import ShardMoved
from penstock.cluster.links.link import Link
from penstock.cluster.links.server import LinkServer
from penstock.cluster.links.settings import LinkIdentity, limits_within
from penstock.cluster.membership.kafka import kafka_controller
from penstock.cluster.membership.ledger import ControllerRecord, Ledger, NodeRecord, Record, encode
from penstock.cluster.placement import controller as placement
from penstock.cluster.placement.controller import MISSED_S, SILENCE_S, Controller, Liveness
from penstock.store.journal.kafka_options import KafkaOptions
from tests.client.lossy import LossyProxy

SESSION_S = 10.0
BEAT_S = 1.0


def heard(liveness: Liveness, names: str, until_s: float) -> None:
    """Every second up to a time."""
    for second in range(int(until_s) + 1):
        for name in names:
            liveness.heard(name, float(second))


def test_after_a_silence_of_all_nobody_is_taken_for_dead() -> None:
    liveness = Liveness(5.0)
    for name in "abc":
        liveness.heard(name, 0.0)
    liveness.dead_links = frozenset("bc")
    assert liveness.alive(100.0) == {"a", "b", "c"}, "the topic stands still"
    liveness.heard("a", 100.0)
    assert liveness.alive(100.0) == {"a", "b", "c"}
    for beat in range(1, 10):
        liveness.heard("a", 100.0 + beat * 2 * SILENCE_S)
        assert liveness.alive(100.0 + beat * 2 * SILENCE_S) == {"a", "b", "c"}, "each was a silence of all, too"
    for beat in range(10):
        liveness.heard("a", 155.0 + beat)
    assert liveness.alive(164.0) == {"a"}


def test_a_node_whose_link_is_dead_is_dead_when_it_misses_its_turn() -> None:
    liveness = Liveness(SESSION_S)
    heard(liveness, "ab", 5)
    liveness.dead_links = frozenset("b")
    assert liveness.alive(5.0 + MISSED_S) == {"a", "b"}, "it may be the link alone"
    liveness.heard("a", 6.0)
    assert liveness.alive(5.1 + MISSED_S) == {"a"}
    liveness.heard("b", 7.0)
    assert liveness.alive(7.5) == {"a", "b"}, "it writes: it is the link alone"


def test_a_node_that_cannot_write_is_dead_after_the_session_timeout_whatever_its_link_says() -> None:
    liveness = Liveness(SESSION_S)
    heard(liveness, "ab", 2)
    for second in range(3, 13):
        liveness.heard("a", float(second))
        assert "b" in liveness.alive(float(second))
    liveness.heard("a", 13.0)
    assert liveness.alive(13.0) == {"a"}


def test_nodes_that_were_there_before_have_time_to_be_heard() -> None:
    liveness = Liveness(SESSION_S)
    liveness.presume(["a", "b"], 50.0)
    assert liveness.alive(51.0) == {"a", "b"}
    liveness.dead_links = frozenset("b")
    liveness.heard("a", 51.0)
    liveness.heard("a", 52.0)
    assert liveness.alive(52.0) == {"a"}


# -- links -------------------------------------------------------------------------------------------------------------


class Nowhere:
    """A place without shards."""

    def submit(self, shard: int, *_: object) -> Any:
        raise ShardMoved(shard)


async def watched(link: Link, seconds: float, silence_s: float) -> list[bool]:
    """What the link says, looked at all the time."""
    said = []
    for _ in range(int(seconds / 0.05)):
        said.append(link.watch(silence_s))
        await asyncio.sleep(0.05)
    return said


def test_a_link_knows_soon_that_nobody_listens_and_that_a_peer_is_silent() -> None:
    async def main() -> None:
        identity, silence_s = LinkIdentity("shop", "a"), 1.2
        server = LinkServer(Nowhere(), LinkIdentity("shop", "b"), limits_within(silence_s))  # type: ignore[arg-type]
        address = await server.start("127.0.0.1:0")
        way = LossyProxy(int(address.rpartition(":")[2]))
        await way.start()
        link = Link(f"127.0.0.1:{way.port}", identity, limits_within(silence_s))
        assert all(await watched(link, 3 * silence_s, silence_s)), "one that is idle lives"
        way.answers_lost = True
        said = await watched(link, 2 * silence_s, silence_s)
        assert all(said[: int(0.5 * silence_s / 0.05)]) and not said[-1], "silent"
        way.answers_lost = False
        await way.cut()
        await watched(link, silence_s, silence_s)
        assert link.watch(silence_s), "it speaks again"
        await way.stop()
        await server.close()
        refused = Link(address, identity, limits_within(60.0))
        assert not all(await watched(refused, 1.0, 60.0)), "nobody is there: that is known at once"
        again = LinkServer(Nowhere(), LinkIdentity("shop", "b"), limits_within(silence_s))  # type: ignore[arg-type]
        await again.start(address)
        for _ in range(60):
            if refused.watch(60.0):
                break
            await asyncio.sleep(0.1)
        assert refused.is_connected and refused.watch(60.0), "it is back"
        for each in (link, refused):
            await each.close()
        await again.close()

    asyncio.run(main())


# -- who becomes the controller ----------------------------------------------------------------------------------------


def controller_of(
    node: str, records: Mapping[str, Record], monkeypatch: pytest.MonkeyPatch
) -> tuple[Controller, list[float]]:
    """A controller that has caught up with a ledger at 0, and its clock. None of Kafka is needed to come forward."""
    ledger, clock = Ledger(), [0.0]
    for offset, (key, record) in enumerate(records.items()):
        ledger.apply(offset, key, encode(record))
    monkeypatch.setattr(placement, "_now_s", lambda: clock[0])
    made = kafka_controller(KafkaOptions("127.0.0.1:9", "nobody", "nobody"), node, ledger, SESSION_S, 5.0)
    made.caught_up()
    return made, clock


def nodes_named(*names: str, controller: str) -> dict[str, Record]:
    nodes: dict[str, Record] = {f"node/{name}": NodeRecord(incarnation="1", link="127.0.0.1:9") for name in names}
    return nodes | {"controller": ControllerRecord(node=controller, nonce="n")}


def comes_forward_s(made: Controller, clock: list[float], alive: str, seconds: float = 20.0) -> float | None:
    """When it comes forward, while these nodes are heard."""
    while clock[0] < seconds:
        if clock[0] % BEAT_S == 0:
            for name in alive:
                made.heard(name)
        if made._comes_forward(clock[0]):
            return clock[0]
        clock[0] += 0.25
    return None


def test_nobody_comes_forward_while_the_controller_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    made, clock = controller_of("a", nodes_named("a", "b", "c", controller="c"), monkeypatch)
    assert comes_forward_s(made, clock, "abc") is None


@pytest.mark.parametrize(("node", "after_s"), [("a", 0.0), ("b", 1.0)])
def test_when_the_controllers_process_has_ended_the_others_come_forward_in_their_order(
    node: str, after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, clock = controller_of(node, nodes_named("a", "b", "c", controller="c"), monkeypatch)
    made.liveness.dead_links = frozenset("c")
    found_s = comes_forward_s(made, clock, "ab")
    assert found_s is not None and MISSED_S + after_s <= found_s <= MISSED_S + after_s + 0.5


def test_when_the_controller_only_cannot_write_it_has_the_session_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    made, clock = controller_of("a", nodes_named("a", "b", "c", controller="c"), monkeypatch)
    found_s = comes_forward_s(made, clock, "ab")
    assert found_s is not None and SESSION_S < found_s <= SESSION_S + 0.5


def test_a_controller_that_has_left_is_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    records = nodes_named("a", "b", "c", controller="c")
    records["node/c"] = NodeRecord(incarnation="1", link="127.0.0.1:9", state="gone")
    made, clock = controller_of("a", records, monkeypatch)
    assert comes_forward_s(made, clock, "ab") == 0.0


def test_a_node_that_drains_comes_forward_last(monkeypatch: pytest.MonkeyPatch) -> None:
    records = nodes_named("a", "b", "c", controller="c")
    records["node/a"] = NodeRecord(incarnation="1", link="127.0.0.1:9", state="draining")
    made, clock = controller_of("a", records, monkeypatch)
    made.liveness.dead_links = frozenset("c")
    found_s = comes_forward_s(made, clock, "ab")
    assert found_s is not None and found_s >= MISSED_S + 1.0


def test_a_node_that_hears_nobody_does_not_come_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reader stands still, or the topic does: then nobody could be told of a decision."""
    made, clock = controller_of("a", nodes_named("a", "b", "c", controller="c"), monkeypatch)
    made.liveness.dead_links = frozenset("c")
    assert comes_forward_s(made, clock, "") is None


def test_who_was_the_controller_and_was_started_again_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    made, clock = controller_of("c", nodes_named("a", "b", "c", controller="c"), monkeypatch)
    assert comes_forward_s(made, clock, "abc") == 0.0
