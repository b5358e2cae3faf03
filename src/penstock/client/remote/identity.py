"""Names of messages and receipts, computed at the client from what the server has told it."""

from __future__ import annotations

from functools import lru_cache

from penstock.core.delivery.receipt import Receipt, message_id
from penstock.core.errors import InvalidRequest
from penstock.wire.answers import KeyedDelivery


class RemoteIdentity:
    """Knows the server's realm, and the receipt keys of the queues that were received from."""

    __slots__ = ("_keys", "realm")

    def __init__(self) -> None:
        self.realm = 0
        self._keys: dict[int, bytes] = {}

    def learn(self, delivery: KeyedDelivery) -> None:
        """Keep the key that came with a delivery."""
        self._keys[delivery.queue_id] = delivery.receipt_key

    def message_id(self, queue_id: int, sequence: int) -> str:
        """A message's id, in the form of a UUID.

        >>> RemoteIdentity().message_id(1, 1 << 50) == message_id(0, 1, 1 << 50)
        True
        """
        number = f"{sequence:016x}"
        return f"{_id_of_queue(self.realm, queue_id)}{number[:4]}-{number[4:]}"

    def receipt(self, queue_id: int, channel_id: int, sequence: int, attempt: int) -> str:
        """What settles one delivery of a message."""
        key = self._keys.get(queue_id)
        if key is None:
            raise InvalidRequest("receipts belong to messages that were received through this connection")
        return Receipt(queue_id, channel_id, sequence, attempt).seal(key)


@lru_cache(maxsize=1_000)
def _id_of_queue(realm: int, queue_id: int) -> str:
    """What the ids of all messages of a queue begin with: computing it takes longer than all the rest of an id."""
    return message_id(realm, queue_id, 0)[: -len("0000-000000000000")]
