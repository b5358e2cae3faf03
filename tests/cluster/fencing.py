"""A model of a shard and its owners, small enough to be searched completely.

One shard with one message; some nodes; Kafka as far as it matters: for each of the shard's two producers a number that
the last `init_transactions` drew (who has a lower one cannot commit with it), and what was committed (the claim,
whether the message is acknowledged). Commits take turns between the two producers. Every action of a node is a step of
its own, and any number of other steps may lie between two of them. So a node that stands still (SIGSTOP, garbage
collection, a slow network) needs no action: it is a node whose turn does not come. Time passes in ticks; nodes measure
lengths of time only, so ages are kept, and not beyond `PROOF` where nothing changes any more.

Not in the model: between the last look at the proof and the bytes' leaving the process there is nothing. In a real
process there are some microseconds of code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

PROOF = 2
"""Ticks."""

Phase = Literal["out", "told", "half", "fenced", "marked", "read", "claimed", "serving", "releasing"]
Sent = Literal["", "claim", "lease", "ack", "release"]
Fate = Literal["", "open", "kept", "refused"]


class Node(NamedTuple):
    """What one node has in mind."""

    phase: Phase = "out"
    epoch: int = 0
    """Given by the controller."""
    producers: tuple[int, int] = (0, 0)
    """Drawn by its `init_transactions`, one after the other."""
    turn: int = 0
    """Which producer has the next commit."""
    found_epoch: int = 0
    """Of the claim that it read."""
    told_clean: bool = False
    """What a note outside the log said when it was told to open."""
    clean: bool = False
    """The claim that it read was a release."""
    fence_age: int = PROOF
    proof_age: int = PROOF
    sent: Sent = ""
    """The commit on its way."""
    fate: Fate = ""
    """What Kafka did with it; the node does not know yet."""
    sent_age: int = PROOF
    message: Literal["ready", "leased", "done"] = "ready"
    held: bool = False
    """A client has the message from this node, and may acknowledge it there."""


class State(NamedTuple):
    """Everything."""

    nodes: tuple[Node, ...]
    fences: tuple[int, int] = (0, 0)
    """The last numbers drawn."""
    claim_epoch: int = 0
    claim_released: bool = True
    acked: bool = False
    last_epoch: int = 0
    """Of the controller's assignments."""
    note_clean: bool = True
    """The note outside the log: the last owner has released."""
    handed_by: int = 0
    """The highest number of a first producer whose owner has handed out the message."""
    violation: str = ""


@dataclass(frozen=True)
class Rules:
    """What the protocol asks for. Without one of them, the search has to find what goes wrong."""

    proof: bool = True
    """No message leaves unless the last commit is younger than PROOF."""
    look_again: bool = True
    """The proof is looked at again after a commit, right before the message leaves."""
    wait: bool = True
    """A new owner waits for PROOF after its fencing, unless the former has released."""
    from_begin: bool = True
    """A commit proves from when it began, and not from when its success was heard of."""
    claim_in_log: bool = True
    """Whether the former owner has released is read in the log, after fencing; and not in a note."""
    quiet_release: bool = True
    """Who releases hands nothing out from then on."""
    fenced: bool = True
    """Kafka refuses the commits of who has a lower number."""
    fence_both: bool = True
    """A new owner fences both producers."""
    wait_from_last: bool = True
    """The wait begins when the second producer is fenced, and not with the first."""


def steps(state: State, rules: Rules, assignments_max: int) -> Iterator[tuple[str, State]]:
    """Every step that can be made next, with a word for it."""
    yield "time passes", state._replace(nodes=tuple(_older(node) for node in state.nodes))
    for index, node in enumerate(state.nodes):
        if state.last_epoch < assignments_max and node.phase == "out":
            told = Node("told", state.last_epoch + 1, told_clean=state.note_clean, held=node.held)
            yield f"{index} is told", _with(state, index, told, last_epoch=state.last_epoch + 1, note_clean=False)
        for word, after in _of_node(state, index, node, rules):
            yield f"{index} {word}", after


def _of_node(state: State, index: int, node: Node, rules: Rules) -> Iterator[tuple[str, State]]:
    if node.phase != "out":
        yield "dies", _with(state, index, Node(held=node.held))
    if node.sent:
        yield from _commit(state, index, node, rules)
    elif node.phase == "told":
        after = node._replace(phase="half", fence_age=0)
        yield "fences the first producer", _fence(state, index, after, 0)
    elif node.phase == "half":
        after = node._replace(phase="fenced", fence_age=0 if rules.wait_from_last else node.fence_age)
        yield (
            "fences the second producer",
            _fence(state, index, after, 1)
            if rules.fence_both
            else _with(state, index, after._replace(producers=(node.producers[0], state.fences[1]))),
        )
    elif node.phase in ("fenced", "marked"):
        yield from _mark(state, index, node, rules)
    elif node.phase == "read" and rules.claim_in_log and node.found_epoch > node.epoch:
        yield "finds a later claim", _with(state, index, Node(held=node.held))
    elif node.phase == "read":
        yield "claims", _with(state, index, _sends(node, "claim"))
    elif node.phase == "claimed":
        clean = node.clean if rules.claim_in_log else node.told_clean
        if clean or not rules.wait or node.fence_age >= PROOF:
            yield "serves", _with(state, index, node._replace(phase="serving"))
    elif node.phase == "serving":
        yield from _serve(state, index, node, rules)
        yield "begins to release", _with(state, index, _sends(node._replace(phase="releasing"), "release"))
    if node.phase == "releasing" and not rules.quiet_release and node.message == "ready":
        yield "hands out while it releases", _hand_out(state, index, node)


def _fence(state: State, index: int, node: Node, producer: int) -> State:
    """`init_transactions` of one producer."""
    number = state.fences[producer] + 1
    fences = (number, state.fences[1]) if producer == 0 else (state.fences[0], number)
    producers = (number, node.producers[1]) if producer == 0 else (node.producers[0], number)
    return _with(state, index, node._replace(producers=producers), fences=fences)


def _is_fenced(state: State, node: Node, rules: Rules) -> bool:
    return rules.fenced and node.producers[node.turn] < state.fences[node.turn]


def _mark(state: State, index: int, node: Node, rules: Rules) -> Iterator[tuple[str, State]]:
    """A marker with each producer; then the log is read, up to the second marker and no further."""
    if _is_fenced(state, node, rules):
        yield "has its marker refused", _with(state, index, Node(held=node.held))
    elif node.phase == "fenced":
        yield "commits a marker", _with(state, index, node._replace(phase="marked", turn=1))
    else:
        message: Literal["ready", "done"] = "done" if state.acked else "ready"
        after = node._replace(phase="read", turn=0, clean=state.claim_released, message=message)
        yield "reads the log", _with(state, index, after._replace(found_epoch=state.claim_epoch))


def _serve(state: State, index: int, node: Node, rules: Rules) -> Iterator[tuple[str, State]]:
    if node.message == "leased":
        yield "sees the lease run out", _with(state, index, node._replace(message="ready"))
    if node.held and node.message != "done":
        yield "takes an ack", _with(state, index, _sends(node, "ack"))
    if node.message == "ready":
        if not rules.proof or node.proof_age < PROOF:
            yield "hands out", _hand_out(state, index, node)
        else:
            yield "commits before handing out", _with(state, index, _sends(node, "lease"))


def _commit(state: State, index: int, node: Node, rules: Rules) -> Iterator[tuple[str, State]]:
    """A commit is on its way: Kafka gets it, and later the node hears of it."""
    if node.fate == "open":
        if _is_fenced(state, node, rules):
            yield "has its commit refused", _with(state, index, node._replace(fate="refused"))
            return
        kept = _with(state, index, node._replace(fate="kept"))
        if node.sent == "claim":
            kept = kept._replace(claim_epoch=node.epoch, claim_released=False)
        elif node.sent == "release":
            kept = kept._replace(claim_epoch=node.epoch, claim_released=True)
        elif node.sent == "ack":
            kept = kept._replace(acked=True)
        yield f"commits ({node.sent})", kept
    elif node.fate == "refused":
        yield "hears that it is fenced", _with(state, index, Node(held=node.held))
    else:
        yield from _heard(state, index, node, rules)


def _heard(state: State, index: int, node: Node, rules: Rules) -> Iterator[tuple[str, State]]:
    """The node hears that its commit was kept."""
    proof_age = node.sent_age if rules.from_begin else 0
    after = node._replace(sent="", fate="", proof_age=proof_age, turn=1 - node.turn)
    if node.sent == "claim":
        yield "has claimed", _with(state, index, after._replace(phase="claimed"))
    elif node.sent == "ack":
        yield "answers the ack", _with(state, index, after._replace(message="done", held=False))
    elif node.sent == "release":
        note_clean = state.note_clean or node.epoch == state.last_epoch
        yield "has released", _with(state, index, Node(held=node.held), note_clean=note_clean)
    elif rules.look_again and rules.proof and proof_age >= PROOF:
        yield "withholds", _with(state, index, after)
    else:
        yield "hands out after a commit", _hand_out(state, index, after)


def _hand_out(state: State, index: int, node: Node) -> State:
    violation = ""
    if state.acked:
        violation = AFTER_ACK
    elif node.producers[0] < state.handed_by:
        violation = OUT_OF_TURN
    after = _with(state, index, node._replace(message="leased", held=True), violation=violation)
    return after._replace(handed_by=max(state.handed_by, node.producers[0]))


def _sends(node: Node, what: Sent) -> Node:
    return node._replace(sent=what, fate="open", sent_age=0)


def _older(node: Node) -> Node:
    return node._replace(
        fence_age=min(node.fence_age + 1, PROOF),
        proof_age=min(node.proof_age + 1, PROOF),
        sent_age=min(node.sent_age + 1, PROOF),
    )


def _with(state: State, index: int, node: Node, **changes: object) -> State:
    nodes = (*state.nodes[:index], node, *state.nodes[index + 1 :])
    return state._replace(nodes=nodes, **changes)  # type: ignore[arg-type]


class Found(NamedTuple):
    """What a search has found."""

    states: int
    violation: str
    path: list[str]
    words: frozenset[str]
    """Every kind of step that was made."""


OUT_OF_TURN = "a former owner handed out after a later one"
AFTER_ACK = "handed out after its ack was committed"


def search(
    rules: Rules,
    *,
    nodes: int = 2,
    assignments_max: int = 2,
    sought: frozenset[str] = frozenset({OUT_OF_TURN, AFTER_ACK}),
) -> Found:
    """Look at every state that can be reached; stop at the first violation of those sought, on a shortest path."""
    first = State(nodes=(Node(),) * nodes)
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    frontier = [first]
    words: set[str] = set()
    while frontier:
        following = []
        for state in frontier:
            for word, after in steps(state, rules, assignments_max):
                words.add(word.partition(" ")[2])
                if after in came_from:
                    continue
                came_from[after] = (state, word)
                if after.violation in sought:
                    return Found(len(came_from), after.violation, _path(came_from, after), frozenset(words))
                following.append(after)
        frontier = following
    return Found(len(came_from), "", [], frozenset(words))


def _path(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    path = []
    while (before := came_from[state]) is not None:
        state, word = before
        path.append(word)
    return path[::-1]
