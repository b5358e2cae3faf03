"""Signatures of notifications, as AWS's SDKs and validators check them: RSA over the fields of a message.

The key is not stored. It is computed from the secret that all processes and nodes of a store share, so all of them sign
with the same key, serve the same certificate, and a restored backup goes on with it. To compute it takes about a
second: it is done in a thread, when the first message is to be signed.

`cryptography` is needed for it (`pip install penstock-mq[sns]`). Without it notifications carry no signature.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

log = logging.getLogger("penstock.sns")

_EXPONENT = 65_537
_PRIME_BYTES = 128
_WITNESSES = 24
_SIEVED = 4_096
_SMALL_MAX = 20_000
_VALID_FROM = datetime(2026, 1, 1, tzinfo=UTC)
_VALID_DAYS = 36_500
_SIGNED = {
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
}
_SIGNED["UnsubscribeConfirmation"] = _SIGNED["SubscriptionConfirmation"]
_REMEMBERED_MAX = 4_096


def _small_primes() -> list[int]:
    is_prime = bytearray(b"\1") * _SMALL_MAX
    for number in range(2, int(_SMALL_MAX**0.5) + 1):
        is_prime[number * number :: number] = bytes(len(range(number * number, _SMALL_MAX, number)))
    return [number for number in range(2, _SMALL_MAX) if is_prime[number]]


_SMALL_PRIMES = _small_primes()


def string_to_sign(message: dict[str, Any]) -> bytes:
    """What is signed of a message: some of its fields, by name, each on a line with its value on the next.

    >>> string_to_sign({"Type": "Notification", "Message": "m", "MessageId": "1", "Timestamp": "t", "TopicArn": "a"})
    b'Message\\nm\\nMessageId\\n1\\nTimestamp\\nt\\nTopicArn\\na\\nType\\nNotification\\n'
    """
    names = _SIGNED[message["Type"]]
    return "".join(f"{name}\n{message[name]}\n" for name in names if name in message).encode()


class Signer:
    """Signs with a key, and has its certificate."""

    def __init__(self, key: Any, certificate: bytes) -> None:
        self._key = key
        self.certificate = certificate
        self.path = f"/SimpleNotificationService-{hashlib.sha256(certificate).hexdigest()[:32]}.pem"
        """Where the certificate is served."""
        self._signed: dict[tuple[str, bytes], str] = {}

    def sign(self, message: dict[str, Any], version: str) -> str:
        """The signature of a message, in base64. Subscriptions of one topic get the same messages: it is remembered."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        text = string_to_sign(message)
        known = (version, hashlib.sha256(text).digest())
        found = self._signed.get(known)
        if found is None:
            algorithm = hashes.SHA256() if version == "2" else hashes.SHA1()
            found = base64.b64encode(self._key.sign(text, padding.PKCS1v15(), algorithm)).decode()
            if len(self._signed) >= _REMEMBERED_MAX:
                self._signed.clear()
            self._signed[known] = found
        return found


class Signatures:
    """Has the signer of a store, once somebody asked for it."""

    def __init__(self) -> None:
        self._secret = b""
        self._making: asyncio.Task[Signer | None] | None = None

    async def signer(self, secret: bytes) -> Signer | None:
        """The signer; None if `cryptography` is not installed."""
        if self._making is None or self._secret != secret:
            self._secret = secret
            self._making = asyncio.get_running_loop().create_task(asyncio.to_thread(make_signer, secret))
        return await asyncio.shield(self._making)


def make_signer(secret: bytes) -> Signer | None:
    """The signer of a secret: always the same. None, and a warning, if `cryptography` is not installed."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import rsa
        from cryptography.x509.oid import NameOID
    except ImportError:
        log.warning("SNS messages are not signed: `cryptography` is not installed (pip install penstock-mq[sns])")
        return None
    seed = hashlib.blake2b(secret, key=b"penstock sns signing key 1", digest_size=32).digest()
    p, q = sorted((_prime(seed, b"p"), _prime(seed, b"q")), reverse=True)
    d = pow(_EXPONENT, -1, (p - 1) * (q - 1))
    numbers = rsa.RSAPrivateNumbers(
        p=p,
        q=q,
        d=d,
        dmp1=d % (p - 1),
        dmq1=d % (q - 1),
        iqmp=pow(q, -1, p),
        public_numbers=rsa.RSAPublicNumbers(_EXPONENT, p * q),
    )
    key = numbers.private_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sns.penstock")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(int.from_bytes(hashlib.sha256(seed + b"serial").digest()[:16], "big") | 1)
        .not_valid_before(_VALID_FROM)
        .not_valid_after(_VALID_FROM + timedelta(days=_VALID_DAYS))
        .sign(key, hashes.SHA256())
    )
    return Signer(key, certificate.public_bytes(serialization.Encoding.PEM))


def _prime(seed: bytes, name: bytes) -> int:
    """A prime of 1,024 bits out of a seed: the first one from a number on that the seed says."""
    drawn = hashlib.shake_256(seed + name).digest(_PRIME_BYTES)
    start = int.from_bytes(drawn, "big") | (3 << (8 * _PRIME_BYTES - 2)) | 1
    while True:
        is_left = bytearray(b"\1") * _SIEVED  # of each odd number from there on: no small prime divides it
        for small in _SMALL_PRIMES[1:]:
            first = -start * (small + 1) // 2 % small  # start + 2 * first is a multiple of it
            is_left[first::small] = bytes(len(range(first, _SIEVED, small)))
        for index in range(_SIEVED):
            candidate = start + 2 * index
            if not is_left[index] or (candidate - 1) % _EXPONENT == 0:
                continue
            if pow(2, candidate - 1, candidate) == 1 and is_probably_prime(candidate):
                return candidate
        start += 2 * _SIEVED


def is_probably_prime(candidate: int) -> bool:
    """Miller and Rabin's test of an odd number, with the first primes as witnesses.

    >>> [n for n in range(1_001, 1_040, 2) if is_probably_prime(n)], is_probably_prime(3_215_031_751)
    ([1009, 1013, 1019, 1021, 1031, 1033, 1039], False)
    """
    odd, twos = candidate - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for witness in _SMALL_PRIMES[:_WITNESSES]:
        x = pow(witness, odd, candidate)
        if x in (1, candidate - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % candidate
            if x == candidate - 1:
                break
        else:
            return False
    return True
