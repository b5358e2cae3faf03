"""What can go wrong in a way that a caller has to know about.

    PenstockError
    ├── InvalidRequest            the caller's fault: a value out of range, a wrong combination
    │   ├── InvalidName
    │   ├── InvalidConfig
    │   ├── MessageTooLarge
    │   ├── BatchTooLarge
    │   └── NoCommonVersion       client and server speak different versions of the conversation
    ├── NotFound
    │   ├── QueueNotFound
    │   │   └── QueueReplaced     the queue that was meant is gone; another one may have its name
    │   ├── ChannelNotFound
    │   ├── ConsumerNotFound
    │   ├── SessionNotFound
    │   ├── TaskNotFound
    │   └── MessageNotFound
    ├── QueueExists               the name is taken, with another configuration
    ├── QueueChanged              a change of settings was made from others than there are now
    ├── ReceiptRefused
    │   ├── StaleReceipt          the lease is over: the message was settled, or handed out again
    │   ├── ForeignReceipt        a receipt of another queue or channel
    │   └── ForgedReceipt         not made by this store
    ├── LeaseTooLong              a heartbeat past twelve hours from the receive
    ├── OverLimit                 too many messages in flight
    ├── Throttled                 above the queue's configured rate
    │   └── RateLimited           above the server's rate of requests for each caller
    ├── RewindRefused             a consumer's acknowledgement would go back
    ├── WorkRefused               a unit of work holds something that can no longer be settled
    ├── MarkMoved                 marked work does not follow on what was done last
    ├── ChunkDamaged              stored bytes do not match their checksum
    ├── QueueDamaged              what is stored of the queue is damaged: it is not served, the others are
    ├── AccessDenied              the server does not know the caller, or does not let it do that
    │   └── TooManyFailedLogins   from this address; even right credentials are not looked at for a while
    ├── ConnectionLost            the server cannot be reached, or does not answer
    │   ├── NotSent               the command has not been done, and will not be
    │   └── OutcomeUnknown        the command left, and no answer came: it was done once, or not at all
    └── StoreError                the store's side: see `penstock.store.errors`
        └── StoreDamaged          damage that concerns everything: nothing was skipped, and opening is refused

Bugs are assertions and are not in this tree. Every message says what was wrong, where, and what to do.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of every error that Penstock raises on purpose.

    >>> issubclass(QueueNotFound, PenstockError)
    True
    """


class InvalidRequest(PenstockError, ValueError):
    """A value is out of range, or two values do not go together."""


class InvalidName(InvalidRequest):
    """A queue, channel, consumer or group name that is not allowed."""


class InvalidConfig(InvalidRequest):
    """A queue setting that is unknown, out of range, or contradicts another."""


class MessageTooLarge(InvalidRequest):
    """A message is larger than its queue accepts."""


class BatchTooLarge(InvalidRequest):
    """A batch or a unit of work is larger than one commit may be."""


class NoCommonVersion(InvalidRequest):
    """There is no version of the conversation that both the client and the server speak."""


class NotFound(PenstockError, LookupError):
    """The thing that the command names is not there."""


class QueueNotFound(NotFound):
    """No queue of that name.

    >>> str(QueueNotFound.of("orders"))
    "there is no queue 'orders': check the name. Creating a queue, or sending to it, makes it"
    """

    @classmethod
    def of(cls, queue: str) -> QueueNotFound:
        """The error for a queue that is not there."""
        return cls(f"there is no queue {queue!r}: check the name. Creating a queue, or sending to it, makes it")


class QueueReplaced(QueueNotFound):
    """The queue that was meant is not here: it is gone, and another one may have its name. Nothing was done."""


class ChannelNotFound(NotFound):
    """The queue has no channel of that name."""


class ConsumerNotFound(NotFound):
    """The queue has no consumer of that name."""


class SessionNotFound(NotFound):
    """The session has ended, or never existed."""


class TaskNotFound(NotFound):
    """No redrive task with that number."""


class MessageNotFound(NotFound):
    """No message with that id: it is done, or gone, or never existed."""


class QueueExists(PenstockError):
    """The queue exists with another configuration."""


class QueueChanged(PenstockError):
    """A change of settings was worked out from others than there are now: look at them again."""


class ReceiptRefused(PenstockError):
    """A message cannot be settled with what the caller holds."""


class StaleReceipt(ReceiptRefused):
    """The lease is over: the message was settled before, or handed out again."""


class ForeignReceipt(ReceiptRefused):
    """The receipt belongs to another queue, channel or session."""


class ForgedReceipt(ReceiptRefused):
    """The receipt was not made by this store, or was changed on its way."""


class LeaseTooLong(InvalidRequest):
    """A lease would end later than twelve hours after the receive."""


class OverLimit(PenstockError):
    """The channel has as many messages in flight as it may have."""


class Throttled(PenstockError):
    """The queue or the group is above its configured rate; try again later."""


def _wait_in(error: PenstockError) -> float:
    return float(str(error).partition(" wait ")[2].partition(" s")[0])


class RateLimited(Throttled):
    """The caller asks more often than the server lets it; nothing was done.

    >>> RateLimited("too many requests: wait 0.250 s").wait_s
    0.25
    """

    @property
    def wait_s(self) -> float:
        """How long to wait before the next request. It is read from the text, which is all that travels."""
        return _wait_in(self)


class RewindRefused(PenstockError):
    """A consumer's acknowledgement would go back, and rewinding was not allowed."""


class WorkRefused(PenstockError):
    """A unit of work cannot be committed; nothing of it was done."""


class StageNotFound(WorkRefused):
    """What a large unit of work has written before its commit is not there any more; nothing of it was done."""


class MarkMoved(PenstockError):
    """The mark of some work is not where the work starts; nothing was done.

    >>> MarkMoved("the last number of 'stream' is 7, and the work starts after 5").number
    7
    """

    @property
    def number(self) -> int:
        """Where the mark is. It is read from the text, which is all that travels."""
        return int(str(self).partition(" is ")[2].partition(",")[0])


class ChunkDamaged(PenstockError):
    """Stored messages do not match their checksum. They are quarantined, not deleted."""


class QueueDamaged(PenstockError):
    """What is stored of a queue is damaged or incomplete. It is kept as it is, and not served; other queues are.

    >>> str(QueueDamaged.of("orders", "2 of 14 records are damaged"))  # doctest: +ELLIPSIS
    "queue 'orders' is in quarantine: 2 of 14 records are damaged. Other queues are served; ..."
    """

    @classmethod
    def of(cls, queue: str, what: str) -> QueueDamaged:
        """The error for a queue that is in quarantine."""
        return cls(
            f"queue {queue!r} is in quarantine: {what}. Other queues are served; `penstock store check` says more, and "
            "`penstock store salvage` copies what is readable to a new directory"
        )


class AccessDenied(PenstockError):
    """The server does not know the caller, or the caller has no right to do that."""


class TooManyFailedLogins(AccessDenied):
    """Too many wrong credentials came from the caller's address. New ones are not looked at until the wait is over.

    >>> TooManyFailedLogins("too many failed logins from 10.0.0.1: wait 6.000 s").wait_s
    6.0
    """

    @property
    def wait_s(self) -> float:
        """How long to wait before the next try. It is read from the text, which is all that travels."""
        return _wait_in(self)


class ConnectionLost(PenstockError, ConnectionError):
    """The server cannot be reached, or does not answer. The two kinds below say what became of the command."""


class NotSent(ConnectionLost):
    """The command has not been done, and will not be: it never left, or was refused before it was looked at."""


class OutcomeUnknown(ConnectionLost):
    """The command left, and no answer came in time: it was done once, or not at all."""


class StoreError(PenstockError):
    """The store could not do its part. Subclasses say whether the outcome is certain."""


class StoreDamaged(StoreError):
    """Damage that concerns everything in the store. Nothing was skipped, and nothing was changed."""
