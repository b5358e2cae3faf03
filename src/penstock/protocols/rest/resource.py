"""What all resources share: the shard, the broker to be read from, the settings, and what receipts and sessions say."""

from __future__ import annotations

from penstock.core.commands import Delivery, Run
from penstock.core.errors import QueueNotFound, SessionNotFound
from penstock.protocols.rest.caller import Caller
from penstock.protocols.websocket.admission import session_handle, session_number
from penstock.server.node import Services
from penstock.server.shard import give_back
from penstock.server.shards import Names, QueueFace


class Resource:
    """The ground that operations stand on."""

    tag = ""
    """Under which heading the operations are documented."""
    protocol = ""
    """What calls of them are counted as, if not as REST's."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.shard = services.shard
        self.settings = services.settings.rest

    @property
    def broker(self) -> Names:
        """The broker as it is now, to be read from: ids, names, receipts. Changes go through the shard."""
        return self.shard.identity

    def queue(self, name: str) -> QueueFace:
        """A queue that is there."""
        queue = self.broker.queues.get(name)
        if queue is None:
            self.broker.refuse_damaged(name)
            raise QueueNotFound(f"there is no queue {name!r}: create it, or send to it, first")
        return queue

    # -- sessions --

    def handle(self, caller: Caller, number: int) -> str:
        """How a caller names a session of its own."""
        return str(session_handle(self.broker.meta.secret, caller.principal, number))

    def session(self, caller: Caller, handle: str | None) -> int:
        """The number of a session that the caller has opened; 0 for none."""
        if handle is None:
            return 0
        if not (handle.isascii() and handle.isdigit() and len(handle) < 20):
            raise SessionNotFound(f"session {handle[:50]!r} has ended, or never was: open another one")
        return session_number(self.broker.meta.secret, caller.principal, int(handle))

    # -- what fits into a response --

    def fit(self, caller: Caller, delivery: Delivery) -> Delivery:
        """The delivery, as far as a response holds it; the rest is given back."""
        kept, rest = split_runs(delivery.runs, self.settings.response_bytes_max)
        if not rest:
            return delivery
        surplus = Delivery(delivery.queue, delivery.queue_id, delivery.channel, delivery.channel_id, 0, 0, rest)
        self.shard.submit(give_back(surplus), lambda _: None)
        delivery.runs = kept
        caller.delivery = delivery
        return delivery


def split_runs(runs: list[Run], bytes_max: int) -> tuple[list[Run], list[Run]]:
    """Runs whose bodies have so many bytes together (one message in any case), and the rest."""
    kept: list[Run] = []
    for number, run in enumerate(runs):
        offsets = run.chunk.offsets
        size = int(offsets[run.stop] - offsets[run.start])
        if size <= bytes_max:
            kept.append(run)
            bytes_max -= size
            continue
        fitting = int((offsets[run.start + 1 : run.stop + 1] - offsets[run.start] <= bytes_max).sum())
        if not kept:
            fitting = max(1, fitting)
        if fitting:
            kept.append(run.part(0, fitting))
        rest = [] if run.start + fitting == run.stop else [run.part(fitting, run.count)]
        return kept, rest + runs[number + 1 :]
    return kept, []
