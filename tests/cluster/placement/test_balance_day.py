"""A day of loads, simulated: nodes come, go and die, shards burst, and dead letters pile up where nobody reads them.

The planner sees what a real controller sees: loads that are smoothed, and a shard that is on its way for two seconds.
"""

from __future__ import annotations

import argparse
import math
import random

import pytest

from penstock.cluster.node import SMOOTH_S
from penstock.cluster.placement.plan import Member, ShardLoad, plan

MOVE_PAUSE_S = 5.0
"""`[cluster] move_pause_s`."""
STEP_S = 5.0
ON_ITS_WAY_S = 2.0
OVER = 1.5
"""No node has more than so many times the mean..."""
NO_BETTER = 0.95
"""A move that only turns two nodes round is none."""
PATIENCE_S = 60.0
"""... for longer than this after something has changed. Loads are smoothed, so that is known 20 s later."""
QUIET_S = 180.0
"""When nothing has changed for so long, the state is steady."""


class Day:
    """Nodes and shards over time."""

    def __init__(self, seed: int, nodes: int, shards: int, hours: float) -> None:
        self.chance = random.Random(seed)
        self.nodes = [f"n{number}" for number in range(nodes)]
        self.alive = list(self.nodes)
        self.owners: dict[int, str] = {}
        self.moved_s: dict[int, float] = {}
        self.base = [self.chance.lognormvariate(6.0, 0.7) for _ in range(shards)]
        self.phase = [self.chance.random() * 0.2 for _ in range(shards)]
        self.burst = [1.0] * shards
        self.wobble = [1.0] * shards
        self.seen = list(self.base)
        self.end_s = hours * 3600
        self.changed_s = 0.0
        self.steady_s: list[float] = []
        """When shards moved although nothing had happened."""
        self.over_s: dict[str, float] = {}
        self.complaints: list[str] = []

    def run(self) -> Day:
        now_s = 0.0
        while now_s < self.end_s:
            now_s += STEP_S
            self.happen(now_s)
            moves = self.plan(now_s)
            if now_s - self.changed_s > QUIET_S:
                self.steady_s += [now_s] * len(moves)
            for shard, owner in moves.items():
                self.owners[shard], self.moved_s[shard] = owner, now_s
            self.check(now_s)
        return self

    def happen(self, now_s: float) -> None:
        """Something new every half an hour; the rest is the time of day, and noise."""
        if self.chance.random() < STEP_S / 1800:
            self.changed_s = now_s
            shard = self.chance.randrange(len(self.base))
            match self.chance.choice(["burst", "calm", "node"]):
                case "burst":
                    self.burst[shard] = self.chance.uniform(2.0, 4.0)
                case "calm":
                    self.burst = [1.0] * len(self.base)
                case _ if len(self.alive) < len(self.nodes):
                    self.alive = list(self.nodes)
                case _:
                    self.alive.remove(self.chance.choice(self.alive))
        for shard in range(len(self.base)):
            self.wobble[shard] += 0.1 * (1.0 - self.wobble[shard]) + self.chance.gauss(0.0, 0.03)
            self.seen[shard] += min(1.0, STEP_S / SMOOTH_S) * (self.rate(shard, now_s) - self.seen[shard])

    def rate(self, shard: int, now_s: float) -> float:
        of_day = 1.0 + 0.6 * math.sin(2 * math.pi * (now_s / 86_400 + self.phase[shard]))
        return max(0.0, self.base[shard] * of_day * self.burst[shard] * self.wobble[shard])

    def plan(self, now_s: float) -> dict[int, str]:
        shards = [
            ShardLoad(
                shard,
                self.owners.get(shard, ""),
                rate=self.seen[shard],
                is_settled=now_s - self.moved_s.get(shard, -math.inf) >= ON_ITS_WAY_S,
                moved_s=self.moved_s.get(shard, -math.inf),
            )
            for shard in range(len(self.base))
        ]
        return plan([Member(name) for name in self.alive], shards, {}, now_s, MOVE_PAUSE_S)

    def check(self, now_s: float) -> None:
        """A node that has one or two large shards, and little besides, is as good as it gets: no move helps."""
        loads = {shard: 100.0 + self.rate(shard, now_s) for shard in range(len(self.base))}
        mean = sum(loads.values()) / len(self.alive)
        of_node = {name: [loads[shard] for shard, owner in self.owners.items() if owner == name] for name in self.alive}
        least = min(map(sum, of_node.values()))
        for name, own in of_node.items():
            if sum(own) > OVER * mean and any(least + load < NO_BETTER * sum(own) for load in own):
                self.over_s.setdefault(name, now_s)
                since_s = max(self.over_s[name], self.changed_s)
                if now_s - since_s > PATIENCE_S:
                    self.complaints.append(f"{name} at {now_s:.0f}: {sum(own) / mean:.2f} times the mean")
            else:
                self.over_s.pop(name, None)

    def moves_in_a_minute(self) -> int:
        """The most, in the steady state."""
        return max((sum(0 <= other - at < 60.0 for other in self.steady_s) for at in self.steady_s), default=0)


@pytest.mark.parametrize("seed", range(3))
def test_over_a_day_no_node_is_overloaded_for_long_and_little_moves(seed: int) -> None:
    day = Day(seed, nodes=4, shards=32, hours=24.0).run()
    assert not day.complaints
    assert day.moves_in_a_minute() <= 1


def main() -> None:
    """Many seeds: `python -m tests.cluster.placement.test_balance_day --seeds 200`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=100)
    failed = 0
    for seed in range(parser.parse_args().seeds):
        day = Day(seed, nodes=3 + seed % 5, shards=16 + 8 * (seed % 4), hours=24.0).run()
        if day.complaints or day.moves_in_a_minute() > 1:
            failed += 1
            print(f"seed {seed}: {day.complaints[:1]}, {day.moves_in_a_minute()} moves in a minute", flush=True)
    print(f"{failed} seeds failed")
    raise SystemExit(bool(failed))


def test_a_hundred_nodes_settle() -> None:
    day = Day(7, nodes=100, shards=800, hours=0.5).run()
    assert not day.complaints
    assert day.moves_in_a_minute() <= 1


if __name__ == "__main__":
    main()
