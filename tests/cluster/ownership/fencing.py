"""A model of a shard and its owners, small enough to be searched completely.

One shard with one message; some nodes; Kafka as far as it matters: a number that the last `init_transactions` drew (who
has a lower one cannot commit), and what was committed (the claim, whether the message is acknowledged). Every action of
a node is a step of its own, and any number of other steps may lie between two of them. So a node that stands still
(SIGSTOP, garbage collection, a slow network) needs no action: it is a node whose turn does not come. Time passes in
ticks; nodes measure lengths of time only, so ages are kept, and not beyond `PROOF` where nothing changes any more.

Not in the model: between the last look at the proof and the bytes' leaving the process there is nothing. In a real
process there are some microseconds of code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

PROOF = 2
"""Ticks."""

Phase = Literal["out", "told", "fenced", "read", "claimed", "serving", "releasing"]
Sent = Literal["", "claim", "lease", "ack", "release"]
Fate = Literal["", "open", "kept", "refused"]


class Node(NamedTuple):
    """What one node has in mind."""

    phase: Phase = "out"
    epoch: int = 0
    """Given by the controller."""
    producer: int = 0
    """Drawn by its `init_transactions`."""
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
    fence: int = 0
    """The last number drawn."""
    claim_epoch: int = 0
    claim_released: bool = True
    acked: bool = False
    last_epoch: int = 0
    """Of the controller's assignments."""
    note_clean: bool = True
    """The note outside the log: the last owner has released."""
    handed_by: int = 0
    """The highest producer number that has handed out the message."""
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
    release_after_wait: bool = True
    """Who is told to let go while it still waits says nothing: a release would say that there is nobody to wait for."""
    fenced: bool = True
    """Kafka refuses the commits of who has a lower number."""


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
        number = state.fence + 1
        yield "fences", _with(state, index, node._replace(phase="fenced", producer=number, fence_age=0), fence=number)
    elif node.phase == "fenced":
        yield from _read(state, index, node, rules)
    elif node.phase == "read" and rules.claim_in_log and node.found_epoch > node.epoch:
        yield "finds a later claim", _with(state, index, Node(held=node.held))
    elif node.phase == "read":
        yield "claims", _with(state, index, _sends(node, "claim"))
    elif node.phase == "claimed":
        clean = node.clean if rules.claim_in_log else node.told_clean
        may_serve = clean or not rules.wait or node.fence_age >= PROOF
        if may_serve:
            yield "serves", _with(state, index, node._replace(phase="serving"))
        if may_serve or not rules.release_after_wait:
            yield "lets go unserved", _with(state, index, _sends(node._replace(phase="releasing"), "release"))
    elif node.phase == "serving":
        yield from _serve(state, index, node, rules)
        yield "begins to release", _with(state, index, _sends(node._replace(phase="releasing"), "release"))
    if node.phase == "releasing" and not rules.quiet_release and node.message == "ready":
        yield "hands out while it releases", _hand_out(state, index, node)


def _is_fenced(state: State, node: Node, rules: Rules) -> bool:
    return rules.fenced and node.producer < state.fence


def _read(state: State, index: int, node: Node, rules: Rules) -> Iterator[tuple[str, State]]:
    """A marker is committed; the log is read up to it, and no further."""
    if _is_fenced(state, node, rules):
        yield "has its marker refused", _with(state, index, Node(held=node.held))
        return
    message: Literal["ready", "done"] = "done" if state.acked else "ready"
    after = node._replace(phase="read", clean=state.claim_released, message=message, found_epoch=state.claim_epoch)
    yield "reads the log", _with(state, index, after)


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
    after = node._replace(sent="", fate="", proof_age=proof_age)
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
    elif node.producer < state.handed_by:
        violation = OUT_OF_TURN
    after = _with(state, index, node._replace(message="leased", held=True), violation=violation)
    return after._replace(handed_by=max(state.handed_by, node.producer))


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


SERVED = State((Node("serving", epoch=1, producer=1, proof_age=0), Node()), 1, 1, False, last_epoch=1, note_clean=False)
"""A beginning in which the first node has the shard already."""


def search(
    rules: Rules,
    *,
    nodes: int = 2,
    assignments_max: int = 2,
    sought: frozenset[str] = frozenset({OUT_OF_TURN, AFTER_ACK}),
    first: State | None = None,
) -> Found:
    """Look at every state that can be reached; stop at the first violation of those sought, on a shortest path."""
    first = first or State(nodes=(Node(),) * nodes)
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
