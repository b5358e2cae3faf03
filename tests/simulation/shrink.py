"""Make a failing seed small: `python -m tests.simulation.shrink SEED`.

The simulator writes down what it did as a script of steps, commits and crashes. Here the script is played again,
without the generator, while parts of it are left out; what still fails for the same reason is kept.
"""

from __future__ import annotations

import copy
import pickle
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.core import commands as c
from penstock.store.memory import MemoryStore
from tests.simulation.model import Violation
from tests.simulation.world import World, describe_command

ENTROPY = bytes(range(64))


@dataclass(frozen=True, slots=True)
class Did:
    """One thing that the simulator did."""

    what: str
    """`step`, `commit` or `crash`."""
    now_ms: int
    commands: tuple[c.Command, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.now_ms} {self.what}", *(describe_command(command) for command in self.commands)]
        return "\n      ".join(lines)


def reason(failure: str) -> str:
    """The first line of a failure without its numbers, so that alike ones can be compared."""
    line = re.sub(r"^seed \d+: ", "", failure.splitlines()[0])
    line = re.sub(r"Copy\(.*|Delivery\(.*|Chunk object.*|Failure\(.*", "…", line)
    return re.sub(r"[\d\[][\d, \]]*", "#", line)[:160]


def play(script: list[Did], *, in_process: bool = False) -> str | None:
    """Do all of it again; the reason of the failure, or None."""
    script = copy.deepcopy(script)
    world = World(MemoryStore(), script[0].now_ms, ENTROPY, in_process=in_process)
    saved = pickle.dumps(world.model)
    try:
        for did in script:
            if did.what != "commit" and world.model.is_ambiguous(did.now_ms):
                return None
            if did.what == "step":
                world.step(did.commands, did.now_ms)
            elif did.what == "commit":
                world.commit()
                saved = pickle.dumps(world.model)
            else:
                world.reopen(world.store, pickle.loads(saved), did.now_ms)
                saved = pickle.dumps(world.model)
    except Violation as violation:
        return str(violation)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _smaller(script: list[Did]) -> Iterator[list[Did]]:
    """Scripts with something left out: first halves, then single things, then single commands."""
    size = len(script) // 2
    while size >= 1:
        for start in range(0, len(script), size):
            yield script[:start] + script[start + size :]
        size //= 2
    for index, did in enumerate(script):
        for which in range(len(did.commands)):
            rest = did.commands[:which] + did.commands[which + 1 :]
            yield [*script[:index], Did(did.what, did.now_ms, rest), *script[index + 1 :]]
    for index, did in enumerate(script):
        for which, command in enumerate(did.commands):
            if isinstance(command, c.Send) and len(command.bodies) > 1:
                half = copy.copy(command)
                for name in ("bodies", "groups", "dedup_ids", "attributes"):
                    values = getattr(half, name)
                    setattr(half, name, values and values[: len(values) // 2])
                changed = (*did.commands[:which], half, *did.commands[which + 1 :])
                yield [*script[:index], Did(did.what, did.now_ms, changed), *script[index + 1 :]]


def shrink(script: list[Did], wanted: str, *, in_process: bool = False) -> list[Did]:
    """The smallest script found that fails for the reason that was given."""
    while True:
        for candidate in _smaller(script):
            failure = play(candidate, in_process=in_process) if candidate else None
            if failure is not None and reason(failure) == wanted:
                script = candidate
                break
        else:
            return script


def main() -> int:
    """The command line."""
    from tests.simulation.simulator import Simulator

    simulator = Simulator(int(sys.argv[1]))
    try:
        simulator.run()
    except Violation:
        pass
    else:
        print("this seed does not fail")
        return 1
    in_process = simulator.world.in_process
    failure = play(simulator.script, in_process=in_process)
    if failure is None:
        print("the script does not fail without the engine of the simulator")
        return 1
    small = shrink(simulator.script, reason(failure), in_process=in_process)
    print(f"{play(small, in_process=in_process)}\n")
    print("\n".join(f"  {did}" for did in small))
    return 0


if __name__ == "__main__":
    sys.exit(main())
