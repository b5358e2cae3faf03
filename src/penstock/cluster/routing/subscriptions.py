"""Subscriptions of a router: one for the client, and one in each shard that has a partition of the queue.

A subscription whose shard moves is made again at the new owner, with the credit that it has left; the client does not
hear of it.

Several partitions share the credit. Where it is used up by deliveries, the shares never add up to more than was given.
When there is less than one for each, the shares go round: a share is taken back, and given to the next partition.

Where credit is what may be in flight, a client may hold what it has and wait for more, up to its credit; and the
messages may all be in one partition. So shares follow what is held. They begin even. When a partition has used up its
share, and there is room left, every partition gets room for an even part of that, or for one message: then they add up
to more than was given. The moment that the client has all that it may have, what is left of the shares is taken back; a
message that is on its way nevertheless goes back from here, as if it had never been handed out. When there is no room
at all, and the client goes on settling, even shares go round, so that no partition is left out.

What the client holds is counted here, and never too low, for then it would get more than it allows: a message counts
from its arrival until its settling is answered. What it holds no longer because a lease ran out, or the channel was
emptied, only its shard knows: while the client settles nothing, partitions at other nodes are asked. Their answer is
taken if nothing was delivered meanwhile, and no settling is on its way, which would be counted twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from penstock.cluster.base import LinkBroken, ShardMoved
from penstock.cluster.catalog import LOOKS_MAX
from penstock.cluster.routing.placement import home_of
from penstock.cluster.routing.routed import Routed
from penstock.core.commands import (
    AddCredit,
    CancelWait,
    Delivery,
    SetCredit,
    Subscribe,
    Subscribed,
)
from penstock.core.errors import InvalidRequest, PenstockError, QueueReplaced, SessionNotFound
from penstock.server.shard import ShardClosed, Ticket, give_back

if TYPE_CHECKING:
    from penstock.cluster.partitions.queues import SplitQueue
    from penstock.cluster.routing.router import Router

ROUND_S = 0.1
"""How often shares go round while there are fewer than partitions."""
_MOVED = (ShardMoved, ShardClosed, LinkBroken)


def shares(credit: int, parts: int, start: int = 0) -> list[int]:
    """Credit in as even shares as possible; what is left over goes to those from `start` on.

    >>> shares(8, 3), shares(2, 3, start=2)
    ([3, 3, 2], [1, 0, 1])
    """
    even, rest = divmod(credit, parts)
    return [even + ((index - start) % parts < rest) for index in range(parts)]


def _capped(held: list[int], credit: int) -> list[int]:
    """Shares by which nothing more comes to one who holds so much, and no more than `credit` together.

    >>> _capped([3, 0, 2], 4), _capped([3, 0, 2], 9)
    ([3, 0, 1], [3, 0, 2])
    """
    left, capped = credit, []
    for each in held:
        capped.append(min(each, left))
        left -= capped[-1]
    return capped


class Part:
    """A subscription in one shard: its ticket there."""

    __slots__ = (
        "acknowledging",
        "changes",
        "credit",
        "delivered_s",
        "deliveries",
        "held",
        "in_doubt",
        "number",
        "pushed",
        "shard",
        "subscription",
        "told",
    )

    def __init__(self, subscription: Subscription, shard: int, credit: int) -> None:
        self.subscription = subscription
        self.shard = shard
        self.credit = credit
        """How many more it may push, or how many it may hold."""
        self.told: int | None = None
        """The credit that the shard was told last; None if it may not have heard of it."""
        self.number = 0
        """0 while there is none."""
        self.pushed = 0
        """Credit that is used up by deliveries: how much was, since it was last subscribed to."""
        self.held = 0
        """Several partitions, credit by what is in flight: how many it has handed out that are not settled."""
        self.changes = 0
        """How often that has changed."""
        self.in_doubt = False
        """It has handed out more than there was room for. Perhaps leases have run out: the shard has to say what is
        held before it hands out more; else the same would come again and again."""
        self.acknowledging = 0
        """How many commands are on their way that settle some of it, or give back what was not passed on."""
        self.delivered_s = 0.0
        self.deliveries: list[Delivery] = []

    def count(self, change: int) -> None:
        """The client holds so many messages more, or fewer."""
        self.held = max(0, self.held + change)
        self.changes += 1

    def take(self, delivery: Delivery) -> None:
        """Keep a delivery until it may leave."""
        self.deliveries.append(delivery)

    def settle(self) -> None:
        """Everything taken may leave."""
        deliveries, self.deliveries = self.deliveries, []
        self.subscription.pass_on(self, deliveries)


class Subscription:
    """What a client has subscribed to."""

    def __init__(self, owner: Subscriptions, number: int, command: Subscribe) -> None:
        self._owner = owner
        self.number = number
        self.queue = command.queue
        self.channel = command.channel
        self.lease_ms = command.lease_ms
        self.session = command.session
        self.ticket: Ticket = command.ticket
        self.in_flight = command.in_flight
        self.credit = command.credit
        self.room_bytes = command.room_bytes
        self.channel_id: int | None = None
        """Of a queue with several partitions: the channel's number in the first one."""
        self.queue_id = 0
        """Which queue it stands in, of all that ever had the name; 0 if that is not known."""
        self.parts: list[Part] = []
        self.is_over = False
        self.can_give_back = False
        """Several partitions, and messages can be given back (not if being handed out counts): shares follow need."""
        self.has_settled = False
        """Whether the client has settled anything since shares were last looked at."""
        self.turn = 0
        self.rotation: asyncio.TimerHandle | None = None

    def command(self, part: Part) -> Subscribe:
        """What subscribes in one shard."""
        return Subscribe(
            queue=self.queue,
            channel=self.channel,
            credit=part.credit,
            lease_ms=self.lease_ms,
            session=self.session,
            ticket=part,
            in_flight=self.in_flight,
            room_bytes=self.room_bytes,
            of_queue=self.queue_id,
        )

    def credit_of(self, part: Part) -> SetCredit:
        """What tells one shard its credit. What is on its way from there is of that, if deliveries use it up."""
        arrived = None if self.in_flight else part.pushed
        credit = max(0, part.credit)
        return SetCredit(subscription=part.number, credit=credit, room_bytes=self.room_bytes, arrived=arrived)

    def pass_on(self, part: Part, deliveries: list[Delivery]) -> None:
        """Deliveries of one part, to the client."""
        for delivery in deliveries:
            error = delivery.error
            if self.is_over:
                if error is None:
                    self._owner.give_back(delivery)
            elif isinstance(error, _MOVED):
                self._owner.lost(self, part)
            elif error is not None:
                self._owner.end(self)
                self.ticket.take(delivery)
            else:
                self._count(part, delivery)
                if not self.can_give_back or self._owner.has_room(self, part, delivery):
                    self.ticket.take(delivery)
        self.ticket.settle()

    def _count(self, part: Part, delivery: Delivery) -> None:
        count = delivery.count
        if not self.in_flight:
            part.credit -= count
            part.pushed += count
            self.credit -= count
        if self.channel_id is not None:
            delivery.channel_id = self.channel_id
            part.count(count)
            part.delivered_s = self._owner.time_s()


class Subscriptions:
    """All subscriptions of a router."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._loop = asyncio.get_running_loop()
        self._next = 1
        self._subscriptions: dict[int, Subscription] = {}
        self._split: dict[int, list[Subscription]] = {}
        """Session -> its subscriptions to queues with several partitions."""
        self._by_ticket: dict[Any, Subscription] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def time_s(self) -> float:
        """The loop's time."""
        return self._loop.time()

    def held(self, number: int) -> int:
        """How many messages the session of a subscription holds, if that limits what it is pushed; else 0."""
        subscription = self._subscriptions.get(number)
        if subscription is None:
            return 0
        held = 0
        for part in subscription.parts:
            by_shard = self._held_by_shard(part)
            held += part.held if by_shard is None else by_shard
        return held

    def _held_by_shard(self, part: Part) -> int | None:
        """What is in flight, as the shard says; None if it is not here, or was not subscribed to since it came."""
        served = self._router.served.get(part.shard)
        return served.identity.held(part.number) if served is not None and part.number else None

    # -- commands --

    def subscribe(self, call: Routed, *, is_split: bool) -> None:
        """Take a `Subscribe` to where its queue is."""
        assert isinstance(call.command, Subscribe)
        self._router.run(call, self._subscribe(call.command, is_split))

    async def _subscribe(self, command: Subscribe, is_split: bool) -> Subscribed:
        if command.credit < 0:
            raise InvalidRequest(f"credit is {command.credit}: it must not be negative")
        looks = 0
        while True:
            try:
                return await self._subscribe_to(command, is_split)
            except QueueReplaced:
                self._router.catalog.forget(command.queue)
                looks += 1
                if looks == LOOKS_MAX:
                    raise
            is_split = len((await self._router.scatter_gather.queues.split_of(command.queue)).shards) > 1

    async def _subscribe_to(self, command: Subscribe, is_split: bool) -> Subscribed:
        """Subscribe to a queue as it is known; `QueueReplaced` if it is another one by now."""
        subscription = Subscription(self, self._next, command)
        self._next += 1
        shards = [home_of(command.queue, self._router.shards)]
        split: SplitQueue | None = None
        if is_split:
            split = await self._router.scatter_gather.queues.channel_of(command.queue, command.channel)
            shards, subscription.channel_id = split.shards, split.channels.get(command.channel, 0)
            subscription.queue_id = split.queue_id
            subscription.can_give_back = command.in_flight and len(shards) > 1 and not split.config.leases_are_durable
        elif (known := self._router.catalog.known(command.queue)) is not None:
            subscription.queue_id = known.id
        given = shares(command.credit, len(shards))
        subscription.parts = [Part(subscription, shard, share) for shard, share in zip(shards, given, strict=True)]
        self._by_ticket[command.ticket] = self._subscriptions[subscription.number] = subscription
        if is_split:
            self._split.setdefault(subscription.session, []).append(subscription)
        try:
            await asyncio.gather(*(self._subscribe_part(subscription, part, split) for part in subscription.parts))
        except BaseException:
            self.end(subscription)
            raise
        self._schedule_rotation(subscription)
        return Subscribed(subscription.number)

    async def _subscribe_part(self, subscription: Subscription, part: Part, split: SplitQueue | None = None) -> None:
        """With `split`, a partition that is missing is made."""
        given = part.credit = max(0, part.credit)  # more may have come than there was credit for
        part.pushed = 0
        command = subscription.command(part)
        reply: Subscribed
        if split is None:
            reply = await self._router.ask(part.shard, command)
        else:
            reply = await self._router.scatter_gather.queues.ask(split, split.shards.index(part.shard), command)
        part.number, part.told = reply.subscription, given
        if subscription.is_over:
            await self._router.ask(part.shard, CancelWait(ticket=part))
            return
        more = part.credit + part.pushed - given  # it was set meanwhile
        if more > 0 and not subscription.in_flight:  # what is on its way stays counted there
            await self._router.ask(part.shard, AddCredit(subscription=part.number, credit=more))
        elif more or subscription.room_bytes != command.room_bytes:
            await self._router.ask(part.shard, subscription.credit_of(part))

    def start(self, call: Routed) -> None:
        """Take `SetCredit`, `AddCredit` or `CancelWait` to where the subscription is."""
        command = call.command
        if isinstance(command, CancelWait):
            self._router.run(call, self._cancel(command))
            return
        assert isinstance(command, SetCredit | AddCredit)
        subscription = self._subscriptions.get(command.subscription)
        if subscription is None:
            gone = SessionNotFound(f"subscription {command.subscription} has ended, or never existed: subscribe again")
            self._router.fail_soon(call, gone)
        elif len(subscription.parts) == 1 and subscription.parts[0].number:
            self._credit_one(call, command, subscription)
        else:
            self._router.run(call, self._credit(command, subscription))

    def _credit_one(self, call: Routed, command: SetCredit | AddCredit, subscription: Subscription) -> None:
        part = subscription.parts[0]
        self._count_credit(command, subscription)
        part.credit = subscription.credit
        call.session = subscription.number
        command.subscription = part.number
        self._router.dispatch(call, part.shard)

    @staticmethod
    def _count_credit(command: SetCredit | AddCredit, subscription: Subscription) -> None:
        credit = command.credit
        if credit is not None and credit >= 0:
            subscription.credit = credit if isinstance(command, SetCredit) else subscription.credit + credit
        if isinstance(command, SetCredit) and command.room_bytes is not None:
            subscription.room_bytes = command.room_bytes

    def is_moving(self, call: Routed) -> bool:
        """Whether credit was refused because the subscription is on its way to another shard's owner: it goes along."""
        return isinstance(call.command, SetCredit | AddCredit) and call.session in self._subscriptions

    async def _credit(self, command: SetCredit | AddCredit, subscription: Subscription) -> None:
        """Credit for several partitions, or for one that is not subscribed to yet."""
        if command.credit is not None and command.credit < 0:
            raise InvalidRequest(f"credit is {command.credit}: it must not be negative")
        self._count_credit(command, subscription)
        if isinstance(command, SetCredit) and command.room_bytes is not None:
            for part in subscription.parts:  # every one has to hear of it
                part.told = None
        await self._share_out(subscription)
        self._schedule_rotation(subscription)

    async def _share_out(self, subscription: Subscription) -> None:
        """Take back first, then give: so that it is never more than there is."""
        parts = subscription.parts
        if subscription.can_give_back:
            await self._share_by_need(subscription)
            return
        wanted = shares(max(0, subscription.credit), len(parts), subscription.turn)
        less = [(part, share) for part, share in zip(parts, wanted, strict=True) if share < part.credit]
        more = [(part, share) for part, share in zip(parts, wanted, strict=True) if share >= part.credit]
        for part, share in less:
            part.credit = share
        await asyncio.gather(*(self._set(subscription, part) for part, _ in less))
        free = self._free(subscription)
        for part, share in more:
            part.credit = max(0, part.credit)
            add = max(0, min(share - part.credit, free))
            part.credit += add
            free -= add
        await asyncio.gather(*(self._set(subscription, part) for part, _ in more))

    async def _share_by_need(self, subscription: Subscription) -> None:
        parts, credit = subscription.parts, max(0, subscription.credit)
        held = [self._held(subscription, part) for part in parts]
        room = credit - sum(held)
        even = shares(credit, len(parts), subscription.turn)
        if not credit or all(each < share for each, share in zip(held, even, strict=True)):
            wanted = even
        elif room > 0:
            wanted = [each + max(1, room // len(parts)) for each in held]
        elif subscription.has_settled:
            subscription.turn = (subscription.turn + 1) % len(parts)
            wanted = shares(credit, len(parts), subscription.turn)
        else:
            wanted = _capped(held, credit)
        idle = room <= 0 and not subscription.has_settled
        subscription.has_settled = False
        changed = self._allot(subscription, wanted)
        for part in parts:
            is_in_doubt = part.in_doubt or (idle and part.held and part.shard not in self._router.served)
            if is_in_doubt and part not in changed:
                changed.append(part)
        await asyncio.gather(*(self._set(subscription, part) for part in changed))

    def has_room(self, subscription: Subscription, part: Part, delivery: Delivery) -> bool:
        """Whether a delivery may be passed on; if not, it goes back."""
        parts = subscription.parts
        held = [self._held(subscription, each) for each in parts]
        is_fitting = sum(held) <= subscription.credit
        if not is_fitting:
            place = parts.index(part)
            held[place] -= delivery.count
            part.in_doubt = True
            part.acknowledging += 1
            part.count(-delivery.count)
            self._spawn(self._return(subscription, part, delivery))
        if not is_fitting or sum(held) == subscription.credit:
            self._take_back(subscription, held)
        self._schedule_rotation(subscription)
        return is_fitting

    async def _return(self, subscription: Subscription, part: Part, delivery: Delivery) -> None:
        """Give back what there is no room for; the shard has it as held until then."""
        try:
            await self._router.ask(part.shard, give_back(delivery))
        except PenstockError:
            pass  # the shard moves: nobody holds it there
        finally:
            part.acknowledging -= 1
            part.changes += 1
        was_in_doubt = part.in_doubt
        if was_in_doubt and not part.acknowledging:
            await self._set_quietly(subscription, part)
            if not part.in_doubt:
                self._take_back(subscription, [self._held(subscription, each) for each in subscription.parts])

    def _take_back(self, subscription: Subscription, held: list[int]) -> None:
        """The client has all that it may have: no partition has credit for more."""
        for part in self._allot(subscription, _capped(held, subscription.credit)):
            self._spawn(self._set_quietly(subscription, part))

    @staticmethod
    def _allot(subscription: Subscription, wanted: list[int]) -> list[Part]:
        """Divide the credit. Returns the parts that have to be told."""
        changed = []
        for part, share in zip(subscription.parts, wanted, strict=True):
            part.credit = 0 if part.in_doubt else share
            if part.credit != part.told:
                changed.append(part)
        return changed

    async def _set_quietly(self, subscription: Subscription, part: Part) -> bool:
        try:
            return await self._set(subscription, part)
        except PenstockError:
            return False  # the part is on its way elsewhere

    def _free(self, subscription: Subscription) -> int:
        """How much credit is neither given to a part, nor in flight beyond what its part may hold."""
        parts, counts = subscription.parts, subscription.in_flight
        used = sum(max(part.credit, self._held(subscription, part) if counts else 0) for part in parts)
        return max(0, subscription.credit - used)

    def _held(self, subscription: Subscription, part: Part) -> int:
        """What is in flight: by the shard, if it is here; else as counted, until all leases have run out."""
        by_shard = self._held_by_shard(part)
        if by_shard is not None:
            return by_shard
        lease_s = 43_200.0 if subscription.lease_ms is None else subscription.lease_ms / 1_000 + 1
        if part.held and self.time_s() > part.delivered_s + lease_s:
            part.held = 0
        return part.held

    async def _set(self, subscription: Subscription, part: Part) -> bool:
        """Tell a shard its part's credit. Returns whether it is certain now what is held there."""
        if not part.number or subscription.is_over:
            return False
        part.told = part.credit
        changes = part.changes
        command = subscription.credit_of(part)
        try:
            held = await self._router.ask(part.shard, command)
        except PenstockError as error:
            part.told = None
            if isinstance(error, SessionNotFound) and (subscription.is_over or part.number != command.subscription):
                return False  # whoever subscribes anew says what the credit is
            raise
        is_certain = part.changes == changes and not part.acknowledging
        if is_certain:
            part.held = min(part.held, held)
            part.in_doubt = False
        return is_certain

    def acknowledging(self, session: int, shard: int) -> list[Part]:
        """Messages that a session may hold in a shard are about to be settled: the parts to tell `settled` of."""
        found = [part for each in self._split.get(session, ()) for part in each.parts if part.shard == shard]
        for part in found:
            part.acknowledging += 1
        return found

    @staticmethod
    def settled(parts: list[Part], count: int) -> None:
        """So many messages were settled."""
        for part in parts:
            part.acknowledging -= 1
            part.count(-count)
            part.subscription.has_settled = part.subscription.has_settled or count > 0

    def _schedule_rotation(self, subscription: Subscription) -> None:
        """Look at the shares again, soon, while a partition has no credit left, or none at all."""
        if subscription.rotation is not None or subscription.is_over or len(subscription.parts) == 1:
            return
        parts = subscription.parts
        if subscription.can_give_back:
            is_short = any(part.credit <= self._held(subscription, part) or part.told is None for part in parts)
        else:
            is_short = any(part.credit <= 0 for part in parts)
        if subscription.credit > 0 and is_short:
            subscription.rotation = self._loop.call_later(ROUND_S, self._rotate, subscription)

    def _rotate(self, subscription: Subscription) -> None:
        subscription.rotation = None
        if not subscription.is_over:
            if not subscription.can_give_back:
                subscription.turn = (subscription.turn + 1) % len(subscription.parts)
            self._spawn(self._rotated(subscription))

    async def _rotated(self, subscription: Subscription) -> None:
        try:
            await self._share_out(subscription)
        except PenstockError:
            pass  # a part is on its way elsewhere
        finally:
            self._schedule_rotation(subscription)

    async def _cancel(self, command: CancelWait) -> None:
        subscription = self._by_ticket.get(command.ticket)
        if subscription is None:
            return
        parts = [part for part in subscription.parts if part.number]
        self._forget(subscription)
        await asyncio.gather(*(self._router.ask(part.shard, CancelWait(ticket=part)) for part in parts))

    # -- what happens to them --

    def lost(self, subscription: Subscription, part: Part) -> None:
        """A part's shard has moved: subscribe at its new owner, who knows what is still held."""
        part.number, part.told, part.in_doubt = 0, None, False
        part.changes += 1
        self._spawn(self._again(subscription, part))

    async def _again(self, subscription: Subscription, part: Part) -> None:
        try:
            await self._subscribe_part(subscription, part)
            if part.held:
                await self._set_quietly(subscription, part)
        except PenstockError as error:
            if isinstance(error, LinkBroken):
                return  # whoever was to push over that link is lost as well, and is subscribed to again for that
            if not subscription.is_over:
                self.end(subscription)
                delivery = Delivery(subscription.queue, 0, subscription.channel, 0, 0, 0, error=error)
                subscription.ticket.take(delivery)
                subscription.ticket.settle()

    def end(self, subscription: Subscription) -> None:
        """It is over, everywhere."""
        if subscription.is_over:
            return
        self._forget(subscription)
        for part in subscription.parts:
            if part.number:
                self._spawn(self._cancel_part(part))

    async def _cancel_part(self, part: Part) -> None:
        with contextlib.suppress(PenstockError):  # it is gone with its shard
            await self._router.ask(part.shard, CancelWait(ticket=part))

    def _forget(self, subscription: Subscription) -> None:
        subscription.is_over = True
        self._subscriptions.pop(subscription.number, None)
        if subscription in self._split.get(subscription.session, ()):
            self._split[subscription.session].remove(subscription)
            if not self._split[subscription.session]:
                del self._split[subscription.session]
        if self._by_ticket.get(subscription.ticket) is subscription:
            del self._by_ticket[subscription.ticket]
        if subscription.rotation is not None:
            subscription.rotation.cancel()

    def give_back(self, delivery: Delivery) -> None:
        """A delivery that nobody takes any more."""
        self._router.give_back(delivery)

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
