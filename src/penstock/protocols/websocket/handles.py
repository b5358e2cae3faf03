"""Sessions as clients name them: the core's number, sealed for the one who opened it.

Numbers are easy to guess; whoever guessed another client's could end its session. So a client gets a handle: the number
in the lower 32 bits, and above it 31 bits of a keyed hash of the number and the caller.
"""

from __future__ import annotations

import hashlib

from penstock.core.errors import SessionNotFound
from penstock.server.auth import Principal

_NUMBER_BITS = 32
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1
_SEAL_MASK = (1 << 31) - 1


def session_handle(secret: bytes, principal: Principal, number: int) -> int:
    """The handle of a session.

    >>> from penstock.server.auth import ANYBODY
    >>> session_number(b"secret", ANYBODY, session_handle(b"secret", ANYBODY, 7))
    7
    """
    return _seal(secret, principal, number) << _NUMBER_BITS | number


def session_number(secret: bytes, principal: Principal, handle: int) -> int:
    """The session that a handle stands for; `SessionNotFound` if it is not one of this caller's."""
    number = handle & _NUMBER_MASK
    if handle < 0 or handle >> _NUMBER_BITS != _seal(secret, principal, number):
        raise SessionNotFound(f"session {handle} has ended, or never was: open another one")
    return number


def _seal(secret: bytes, principal: Principal, number: int) -> int:
    text = f"{number} {principal.access_key}".encode()
    return int.from_bytes(hashlib.blake2b(text, key=secret, digest_size=4, person=b"sessions").digest()) & _SEAL_MASK
