"""SUB, RDY, FIN, REQ, TOUCH, CLS: who gets which message, how often, and when."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from tests.protocols.nsq.clients.servers import Broker, until
from tests.protocols.nsq.clients.wire import Connection, Message, fin, req, touch
from tests.shards import not_for_clusters


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_nothing_comes_before_rdy(server: Broker, topic: str) -> None:
    server.publish(topic, b"x")
    with server.subscriber(topic) as reader:
        assert reader.is_silent()
        reader.send(b"RDY 1\n")
        assert reader.message().body == b"x"


def test_rdy_without_a_count_is_one(server: Broker, topic: str) -> None:
    server.publish(topic, b"a", b"b")
    with server.subscriber(topic) as reader:
        reader.send(b"RDY\n")
        reader.message()
        assert reader.is_silent()


def test_never_more_in_flight_than_rdy(server: Broker, topic: str) -> None:
    server.publish(topic, *numbers(50))
    with server.subscriber(topic, ready=5) as reader:
        held = reader.messages(5)
        assert reader.is_silent()
        reader.send(fin(held[0]), fin(held[3]))
        reader.messages(2)
        assert reader.is_silent()


def test_a_lower_rdy_counts_what_is_in_flight(server: Broker, topic: str) -> None:
    server.publish(topic, *numbers(20))
    with server.subscriber(topic, ready=5) as reader:
        held = reader.messages(5)
        reader.send(b"RDY 2\n", *map(fin, held[:3]))
        assert reader.is_silent()
        reader.send(fin(held[3]))
        held.append(reader.message())
        assert reader.is_silent()


def test_a_higher_rdy_lets_the_difference_through(server: Broker, topic: str) -> None:
    server.publish(topic, *numbers(20))
    with server.subscriber(topic, ready=2) as reader:
        reader.messages(2)
        reader.send(b"RDY 6\n")
        reader.messages(4)
        assert reader.is_silent()


def test_the_same_rdy_again_is_not_added(server: Broker, topic: str) -> None:
    server.publish(topic, *numbers(20))
    with server.subscriber(topic, ready=3) as reader:
        reader.messages(3)
        reader.send(b"RDY 3\n" * 5)
        assert reader.is_silent()


def test_rdy_0_stops_the_flow(server: Broker, topic: str) -> None:
    server.publish(topic, *numbers(20))
    with server.subscriber(topic, ready=3) as reader:
        held = reader.messages(3)
        reader.send(b"RDY 0\n", *map(fin, held))
        assert reader.is_silent()
        reader.send(b"RDY 1\n")
        reader.message()


def test_requeueing_makes_room_too(server: Broker, topic: str) -> None:
    server.publish(topic, *numbers(4))
    with server.subscriber(topic, ready=1) as reader:
        for _ in range(8):
            reader.send(req(reader.message()))
        reader.message()


@pytest.mark.parametrize("seed", range(3))
def test_in_flight_stays_within_rdy_whatever_is_settled_how(server: Broker, topic: str, seed: int) -> None:
    """FIN, REQ and TOUCH in any mixture, while others publish; nothing is lost, and nothing comes twice for a FIN."""
    rng, ready, count = random.Random(seed), 7, 400
    held: list[Message] = []
    finished: set[bytes] = set()
    with server.subscriber(topic, ready=ready) as reader, server.connect() as writer:
        published = 0
        while len(finished) < count:
            if published < count and rng.random() < 0.3:
                writer.publish(topic, *numbers(count)[published : published + 20])
                published += 20
            if len(held) < ready and (published - len(finished) - len(held)) > 0:
                held.append(reader.message())
                assert held[-1].body not in finished
            rng.shuffle(held)
            chosen = [held.pop() for _ in range(rng.randrange(len(held) + 1))]
            commands = [rng.choice([fin, fin, req]) for _ in chosen]
            finished.update(message.body for message, verb in zip(chosen, commands, strict=True) if verb is fin)
            lines = [verb(message) for message, verb in zip(chosen, commands, strict=True)]
            reader.send(*lines, *(touch(message) for message in held if rng.random() < 0.1))
            assert len(held) <= ready
        assert reader.is_silent()
    assert finished == set(numbers(count))


def test_messages_published_later_are_pushed(server: Broker, topic: str) -> None:
    with server.subscriber(topic, ready=100) as reader:
        for body in numbers(20):
            server.publish(topic, body)
            message = reader.message()
            assert message.body == body
            reader.send(fin(message))


def test_a_finished_message_does_not_come_back(server: Broker, topic: str) -> None:
    server.publish(topic, b"a", b"b")
    with server.subscriber(topic, ready=10, msg_timeout=3000) as reader:
        reader.send(*map(fin, reader.messages(2)))
        assert reader.is_silent(3.5)
    assert server.channel(topic)["depth"] == 0


def test_every_channel_gets_every_message(server: Broker, topic: str) -> None:
    with server.subscriber(topic, "one", ready=100) as one, server.subscriber(topic, "two", ready=100) as two:
        server.publish(topic, *numbers(30))
        for reader in (one, two):
            assert sorted(message.body for message in reader.messages(30)) == sorted(numbers(30))


def test_the_first_channel_gets_what_waited_and_later_ones_what_comes(server: Broker, topic: str) -> None:
    server.publish(topic, b"early")
    with server.subscriber(topic, "first", ready=10) as first:
        assert first.message().body == b"early"
        with server.subscriber(topic, "second", ready=10) as second:
            server.publish(topic, b"late")
            assert first.message().body == b"late"
            assert second.message().body == b"late"
            assert second.is_silent()


def test_a_message_of_a_channel_goes_to_one_client(server: Broker, topic: str) -> None:
    with server.subscriber(topic, ready=50) as one, server.subscriber(topic, ready=50) as other:
        server.publish(topic, *numbers(60))
        until(lambda: server.channel(topic)["in_flight_count"] == 60)
        ones, others = collect(60, one, other)
    assert Counter(ones + others) == Counter(numbers(60))


def collect(count: int, *readers: Connection) -> list[list[bytes]]:
    """What each reader gets of so many messages that are on their way to them; nothing comes after that."""
    found: list[list[bytes]] = [[] for _ in readers]

    def has_come() -> bool:
        for bodies, reader in zip(found, readers, strict=True):
            bodies += [message.body for message in reader.arriving(0.1)]
        return sum(map(len, found)) >= count

    until(has_come)
    assert all(reader.is_silent() for reader in readers)
    assert sum(map(len, found)) == count
    return found


def test_messages_are_shared_out_fairly(server: Broker, topic: str) -> None:
    """Every client with room gets its part, whoever came first."""
    readers = [server.subscriber(topic, ready=5) for _ in range(4)]
    counts = [0] * 4
    with server.connect() as writer:
        for _ in range(20):
            writer.publish(topic, *numbers(20))
            until(lambda: server.channel(topic)["in_flight_count"] == 20)
            for index, reader in enumerate(readers):
                held = reader.messages(5)
                counts[index] += 5
                reader.send(*map(fin, held))
            until(lambda: server.channel(topic)["in_flight_count"] == 0)
    for reader in readers:
        reader.close()
    assert counts == [100] * 4


def test_a_trickle_reaches_every_client(server: Broker, topic: str) -> None:
    """One message at a time, and everybody has room: none is left out."""
    readers = [server.subscriber(topic, ready=1000) for _ in range(3)]
    with server.connect() as writer:
        for body in numbers(120):
            writer.publish(topic, body)
    until(lambda: server.channel(topic)["in_flight_count"] == 120)
    counts = list(map(len, collect(120, *readers)))
    for reader in readers:
        reader.close()
    assert min(counts) >= 15


def test_a_client_without_room_is_passed_over(server: Broker, topic: str) -> None:
    with server.subscriber(topic, ready=1) as small, server.subscriber(topic, ready=1000) as large:
        server.publish(topic, *numbers(100))
        until(lambda: server.channel(topic)["in_flight_count"] == 100)
        few, many = collect(100, small, large)
        assert len(few) <= 1
        assert len(many) >= 99


# -- failing -----------------------------------------------------------------------------------------------------------


def test_a_requeued_message_keeps_its_id_and_time_and_counts_its_attempts(server: Broker, topic: str) -> None:
    server.publish(topic, b"again")
    with server.subscriber(topic, ready=1) as reader:
        first = reader.message()
        for attempt in range(2, 30):
            reader.send(req(first))
            message = reader.message()
            assert message == first._replace(attempts=attempt)


@not_for_clusters("a node counts the requeues of its own connections")
def test_a_message_is_requeued_after_the_delay_that_was_asked_for(server: Broker, topic: str) -> None:
    server.publish(topic, b"later")
    with server.subscriber(topic, ready=1) as reader:
        for delay_ms in (300, 700):
            message = reader.message()
            started_s = time.monotonic()
            reader.send(req(message, delay_ms))
            again = reader.message()
            assert time.monotonic() - started_s > delay_ms / 1000 - 0.02
            reader.send(req(again))
        reader.send(req(reader.message(), 60_000))
        until(lambda: server.channel(topic)["deferred_count"] == 1)
        until(lambda: server.channel(topic)["requeue_count"] == 5)


def test_a_delay_above_the_limit_is_cut(server: Broker, topic: str) -> None:
    server.publish(topic, b"later")
    with server.subscriber(topic, ready=1) as reader:
        reader.send(req(reader.message(), 999_999_999))
        assert reader.is_open()
        assert server.channel(topic)["deferred_count"] == 1


def test_a_requeued_message_can_no_longer_be_settled(server: Broker, topic: str) -> None:
    server.publish(topic, b"x")
    with server.subscriber(topic, ready=1) as reader:
        message = reader.message()
        reader.send(b"RDY 0\n", req(message), fin(message))
        assert reader.error() == f"E_FIN_FAILED FIN {message.id.decode()} failed ID not in flight"


def test_a_message_in_flight_for_too_long_comes_again(server: Broker, topic: str) -> None:
    server.publish(topic, b"slow")
    started_s = time.monotonic()
    with server.subscriber(topic, ready=1, msg_timeout=3000) as reader:
        first = reader.message()
        again = reader.message()
        assert time.monotonic() - started_s > 2.9
        assert again == first._replace(attempts=2)
        reader.send(fin(again))
        assert reader.is_open()
    assert server.channel(topic)["timeout_count"] == 1


def test_what_timed_out_can_no_longer_be_finished_by_who_had_it(server: Broker, topic: str) -> None:
    server.publish(topic, b"slow")
    with server.subscriber(topic, ready=1, msg_timeout=1000) as reader:
        message = reader.message()
        reader.send(b"RDY 0\n")
        until(lambda: server.channel(topic)["timeout_count"] == 1)
        reader.send(fin(message))
        assert reader.error() == f"E_FIN_FAILED FIN {message.id.decode()} failed ID not in flight"


def test_touch_gives_more_time(server: Broker, topic: str) -> None:
    server.publish(topic, b"long work")
    with server.subscriber(topic, ready=1, msg_timeout=4000) as reader:
        message = reader.message()
        for _ in range(6):
            time.sleep(0.8)
            reader.send(touch(message))
        assert reader.is_open()
        reader.send(fin(message))
        assert reader.is_open()
    assert server.channel(topic)["timeout_count"] == 0


def test_a_message_may_be_touched_twice_in_one_write(server: Broker, topic: str) -> None:
    server.publish(topic, *numbers(3))
    with server.subscriber(topic, ready=3) as reader:
        held = reader.messages(3)
        reader.send(touch(held[0]), touch(held[1]), touch(held[0]), touch(held[0]))
        assert reader.is_open()
        reader.send(touch(held[2]) * 5)
        assert reader.is_open()


def test_each_client_has_its_own_time(server: Broker, topic: str) -> None:
    server.publish(topic, b"a", b"b")
    with server.subscriber(topic, ready=1) as long, server.subscriber(topic, ready=1, msg_timeout=1000) as short:
        _, mine = long.message(), short.message()
        assert short.message().body == mine.body
        assert long.is_silent()


def test_what_a_closed_connection_held_comes_again(server: Broker, topic: str) -> None:
    """At once here; nsqd waits for the messages' timeouts."""
    server.publish(topic, *numbers(3))
    reader = server.subscriber(topic, ready=3, msg_timeout=1000 if server.is_nsqd else 60_000)
    held = {message.id for message in reader.messages(3)}
    reader.close()
    with server.subscriber(topic, ready=3) as other:
        again = other.messages(3)
    assert {message.id for message in again} == held
    assert {message.attempts for message in again} == {2}


# -- sampling and closing ----------------------------------------------------------------------------------------------


def test_a_sample_is_delivered_and_the_rest_counts_as_done(server: Broker, topic: str) -> None:
    with server.subscriber(topic, ready=2500, sample_rate=30) as reader:
        server.publish(topic, *numbers(1000))
        until(lambda: server.channel(topic)["depth"] == 0)
        bodies: list[bytes] = []

        def has_come() -> bool:
            bodies.extend(message.body for message in reader.arriving())
            return bool(server.channel(topic)["in_flight_count"] == len(bodies))

        until(has_come)
        assert 200 < len(bodies) < 420
        assert len(set(bodies)) == len(bodies)


def test_cls_stops_the_flow_and_lets_the_client_finish(server: Broker, topic: str) -> None:
    server.publish(topic, *numbers(10))
    with server.subscriber(topic, ready=3) as reader:
        held = reader.messages(3)
        assert reader.ask(b"CLS\n") == b"CLOSE_WAIT"
        reader.send(*map(fin, held[:2]), touch(held[2]), req(held[2]), b"RDY 10\n", b"NOP\n")
        assert reader.is_silent()
        until(lambda: server.channel(topic)["depth"] == 8)
        reader.send(b"CLS\n")
        assert reader.error() == "E_INVALID cannot CLS in current state"
        assert reader.is_closed()


def test_a_run_of_fins_in_one_write(server: Broker, topic: str) -> None:
    server.publish(topic, *numbers(2000))
    with server.subscriber(topic, ready=2000) as reader:
        held = reader.messages(2000)
        reader.send(*map(fin, held))
        until(lambda: server.channel(topic)["in_flight_count"] == 0)
        assert reader.is_open()


def test_a_run_of_fins_with_strangers_among_them(server: Broker, topic: str) -> None:
    server.publish(topic, *numbers(100))
    with server.subscriber(topic, ready=200) as reader:
        held = reader.messages(100)
        lines = [fin(message) for message in held]
        lines[50:50] = [b"FIN 0123456789abcdef\n"]
        lines.append(fin(held[0]))
        reader.send(*lines)
        assert reader.error() == "E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"
        assert reader.error() == f"E_FIN_FAILED FIN {held[0].id.decode()} failed ID not in flight"
        assert reader.is_open()
        until(lambda: server.channel(topic)["in_flight_count"] == 0)
        assert server.channel(topic)["depth"] == 0


def test_mixed_settling_in_one_write(server: Broker, topic: str) -> None:
    server.publish(topic, *numbers(90))
    with server.subscriber(topic, ready=90) as reader:
        held = reader.messages(90)
        reader.send(b"RDY 0\n", *(verb(message) for verb, message in zip([fin, req, touch] * 30, held, strict=True)))
        until(lambda: server.channel(topic)["in_flight_count"] == 30)
        assert server.channel(topic)["depth"] == 30
        assert reader.is_open()
        reader.send(*map(fin, held[2::3]), b"RDY 90\n")
        again = reader.messages(30)
        assert sorted(message.id for message in again) == sorted(message.id for message in held[1::3])
        assert {message.attempts for message in again} == {2}
