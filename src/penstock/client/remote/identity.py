"""Names of messages and receipts, computed at the client from what the server has told it."""

from __future__ import annotations

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
        """A message's id, a UUID.

        >>> RemoteIdentity().message_id(1, 1 << 50) == message_id(0, 1, 1 << 50)
        True
        """
        return message_id(self.realm, queue_id, sequence)

    def receipt(self, queue_id: int, channel_id: int, sequence: int, attempt: int) -> str:
        """What settles one delivery of a message."""
        key = self._keys.get(queue_id)
        if key is None:
            raise InvalidRequest("receipts belong to messages that were received through this connection")
        return Receipt(queue_id, channel_id, sequence, attempt).seal(key)
