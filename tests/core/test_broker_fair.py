"""Fairness between the groups of a standard queue."""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import mean

from penstock.core import commands as c
from tests.core.driver import BrokerDriver, bodies_of

GROUPS = 100
ROUNDS = 30
WORKERS = 12
WORK_MS = 10


def test_groups_take_turns() -> None:
    driver = BrokerDriver()
    driver.send(b"noisy 1", b"noisy 2", b"noisy 3", group="noisy")
    driver.send(b"quiet", group="quiet")
    assert bodies_of(driver.receive(2)) == [b"noisy 1", b"quiet"]
    assert bodies_of(driver.receive(2)) == [b"noisy 2", b"noisy 3"]


def test_order_holds_within_a_group() -> None:
    driver = BrokerDriver()
    for number in range(20):
        driver.send(b"%d" % number, group="odd" if number % 2 else "even")
    found: list[bytes] = []
    while delivery := bodies_of(driver.receive(3)):
        found += delivery
    for parity in (0, 1):
        assert [int(body) for body in found if int(body) % 2 == parity] == list(range(parity, 20, 2))


def test_messages_without_a_group_take_a_turn_of_their_own() -> None:
    driver = BrokerDriver()
    driver.send(b"none 1", b"none 2", b"a 1", b"a 2", groups=[None, None, "a", "a"])
    assert bodies_of(driver.receive(2)) == [b"none 1", b"a 1"]


def test_groups_take_turns_after_a_restart() -> None:
    driver = BrokerDriver()
    driver.send(*(b"noisy %d" % number for number in range(50)), group="noisy")
    driver.send(b"quiet", group="quiet")
    driver.receive(1)
    driver.reopen()
    assert b"quiet" in bodies_of(driver.receive(2))


def _mean_wait_of_quiet_groups(*, noisy: int) -> float:
    """Mean waiting time of 99 quiet groups, each sending a message a round, while one more sends `noisy` a round."""
    driver = BrokerDriver(checks=False)
    driver.create(retention_ms=None)
    sent_ms: dict[bytes, int] = {}
    waits: dict[str, list[int]] = defaultdict(list)
    busy: deque[tuple[int, list[c.Span]]] = deque()
    round_ms = 90  # 12 workers can do 108 messages in it, 99 quiet ones and the noisy one's first few
    start_ms = driver.now_ms
    for tick in range(ROUNDS * round_ms // 5):
        at_ms = start_ms + tick * 5
        driver.now_ms = at_ms
        if tick % (round_ms // 5) == 0:
            for group in range(GROUPS):
                count = noisy if group == 0 else 1
                bodies = [b"%d %d %d" % (group, tick, index) for index in range(count)]
                if bodies:
                    driver.send(*bodies, group=str(group))
                    sent_ms.update(dict.fromkeys(bodies, at_ms))
        while busy and busy[0][0] <= at_ms:
            driver.do(c.Ack(queue="q", spans=busy.popleft()[1]))
        while len(busy) < WORKERS:
            delivery = driver.receive(1, lease_ms=3_600_000)
            if not delivery.count:
                break
            busy.append((at_ms + WORK_MS, delivery.spans()))
            (body,) = bodies_of(delivery)
            waits["noisy" if body.startswith(b"0 ") else "quiet"].append(at_ms - sent_ms[body])
    return mean(waits["quiet"])


def test_one_noisy_group_among_a_hundred_does_not_double_the_others_waiting_time() -> None:
    alone = _mean_wait_of_quiet_groups(noisy=1)
    beside = _mean_wait_of_quiet_groups(noisy=60)
    print(f"mean wait of a quiet group: {alone:.1f} ms, beside a noisy one {beside:.1f} ms")
    assert alone > 0
    assert beside <= 2 * alone
