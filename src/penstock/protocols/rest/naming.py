"""Names for requests that may come twice, from their `Idempotency-Key`."""

from __future__ import annotations

import hashlib

from penstock.protocols.rest.problems import invalid
from penstock.server.auth import Principal

KEY = "idempotency-key"
_KEY_LENGTH_MAX = 256


def request_name(key: str | None, principal: Principal, what: bytes, body: bytes) -> str | None:
    """A name that only the same request of the same caller with the same key has; None without a key."""
    if key is None:
        return None
    if not 1 <= len(key) <= _KEY_LENGTH_MAX:
        raise invalid(f"Idempotency-Key has {len(key)} characters: give 1 to {_KEY_LENGTH_MAX}")
    hashed = hashlib.blake2b(digest_size=24)
    for part in (principal.access_key.encode(), key.encode(), what, body):
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()
