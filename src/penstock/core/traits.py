"""What every command says of itself, where it is declared: everything that depends on a command's kind comes from here.

Which right it needs, where it goes in a cluster, what its reply is, what a second time would do: `commands.py` has one
line of `Traits` for each command, and nobody else keeps a table of commands.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Literal, NamedTuple

Right = Literal["read", "write", "admin"]
RIGHTS: tuple[Right, ...] = ("read", "write", "admin")


class Repeat(Enum):
    """What a second time does, when the reply to the first was lost, and others have done things in between."""

    READ = auto()
    """Nothing: the command changes nothing. It is also what can be done on a store that is open read-only."""
    HARMLESS = auto()
    """It takes back nothing that others did and were told of, and its reply is still true."""
    NAMED = auto()
    """Something else than the first. It is repeated only under a name (`Once`), which makes it one command."""


class Home(Enum):
    """What says which shard a command is for."""

    QUEUE = auto()
    """The name of its queue."""
    ALL = auto()
    """Nothing: it is for all of them."""
    SESSION = auto()
    """The router knows in which shards a session is open."""
    SUBSCRIPTION = auto()
    """The router knows in which shards a subscription stands."""
    TASK = auto()
    """The number of a redrive says its shard."""
    MARK = auto()
    """The name of a mark."""
    WORK = auto()
    """All that a unit of work names."""
    SHARD = auto()
    """Only whoever sends it: it is for one shard, by number, and never comes through a router."""


class Split(Enum):
    """What becomes of a command for a queue with several partitions.

    A queue's first partition lives in the shard that follows from its name; partition i in the i-th shard after that.
    With one partition, and most queues have one, a command about a queue goes to one shard as it is.
    """

    FIRST = auto()
    """It goes to the first partition only, which is the one that counts."""
    EVERY = auto()
    """To all of them; what they say is merged."""
    CREATE = auto()
    """It makes all of them."""
    DELETE = auto()
    """To the first; the others follow."""
    SEND = auto()
    """By the hash of the group; without groups, to a partition of this node or the next one."""
    RECEIVE = auto()
    """To the first that has messages; a wait stands in all of them."""
    SPANS = auto()
    """A sequence number says its partition (`PARTITION_SHIFT`); so do spans and receipts."""
    SEQUENCES = auto()
    """Likewise."""
    OFFSET = auto()
    """An offset says its partition."""
    RECORDS = auto()
    """To that of the offset; without one, to the next in which the consumer has something to read."""
    BROWSE = auto()
    """One after the other, in the order of the sequence numbers."""
    NUMBERS = auto()
    """Each partition gets the sequence numbers that are its own; what they say is put together."""
    SUBSCRIBE = auto()
    """A subscription in each; the credit is shared out."""


class Turn(Enum):
    """When it is a command's turn within a step: see `penstock.server.tasks.in_order`."""

    CREDIT = auto()
    SEND = auto()
    SETTLE = auto()
    RECEIVE = auto()


class Traits(NamedTuple):
    """What is known of a command by its kind. What says nothing is for nodes only, and is not repeated."""

    reply: Any = None
    """The type of the reply."""
    queue: str = ""
    """The field that names the queue which the command is about."""
    right: Right | Literal["any"] | None = None
    """The right on that queue that a caller from outside needs, whichever front end it comes through; 'any': none, or
    it is checked by something else than a queue. None: the command is not for callers from outside."""
    public: bool = False
    """Whether clients may send it as it is, over a websocket; others are made by a front end, or by nodes."""
    repeat: Repeat = Repeat.NAMED
    home: Home = Home.QUEUE
    split: Split = Split.FIRST
    turn: Turn | None = None
    """None: a step with it does its commands in the order in which they came."""
    inside: tuple[str, ...] = ()
    """Fields that callers from outside cannot set."""
    is_noted: bool = False
    """Nodes learn from it, and from its reply, which queues and channels there are."""
    has_messages: bool = False
    """Whether the reply holds messages: it may be large, and travels in a form of its own."""
    since: int = 0
    """The version of links between nodes that brought it; 0: the first build's."""

    @property
    def administers(self) -> bool:
        """Whether it changes a queue as a whole, all partitions: such commands are rare."""
        return self.split in _OF_ALL_PARTITIONS and self.repeat is not Repeat.READ

    @property
    def may_be_named(self) -> bool:
        """Whether callers from outside may give it a name, so that it is done once."""
        return self.public and self.repeat is not Repeat.READ and not self.has_messages

    @property
    def is_named_by_nodes(self) -> bool:
        """Whether a node names it before it goes to another one: all but what is done to messages, which comes often,
        and units of work, which say themselves what can be repeated."""
        return (
            self.repeat is Repeat.NAMED
            and self.may_be_named
            and self.split not in _OF_MESSAGES
            and self.home is not Home.WORK
        )


_OF_MESSAGES = frozenset({Split.SEND, Split.SPANS})
_OF_ALL_PARTITIONS = frozenset({Split.EVERY, Split.CREATE, Split.DELETE})
