"""AWS Signature Version 4: who signed a request, and is it the request that was signed?

A signature covers the method, the path, the query, the signed headers and the SHA-256 of the body. It is made with a
key derived from the secret, the day, the region and the service. It comes in the `Authorization` header, or, presigned,
in the query. What is checked, in this order: that it is complete (IncompleteSignature), that the access key is known
(InvalidClientTokenId), that the time is right (SignatureDoesNotMatch, as SQS answers it, or RequestExpired for a
presigned URL), that the body is the one that was signed, and the signature itself (SignatureDoesNotMatch).

Any region will do: it is part of what is signed, and this server stands for all of them. Session tokens are passed
over. The rules are in AWS's documentation, "Create a signed AWS API request".
"""

from __future__ import annotations

import hashlib
import hmac
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from penstock.protocols.http import Request, split_raw_target
from penstock.protocols.sqs.errors import (
    INCOMPLETE_SIGNATURE,
    INVALID_CLIENT_TOKEN_ID,
    MISSING_AUTHENTICATION_TOKEN,
    REQUEST_EXPIRED,
    SIGNATURE_DOES_NOT_MATCH,
    ErrorKind,
    SqsError,
)
from penstock.server.auth import Credential, Credentials, Principal

if TYPE_CHECKING:
    from hashlib import _Hash as _Sha256

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW_MS = 15 * 60 * 1_000
"""How far the client's clock may be from ours."""
EXPIRES_S_MAX = 7 * 24 * 3_600
_MUST_BE_SIGNED = ("host", "x-amz-target")
"""Else a stranger could change them."""
_BLOCK_BYTES = 64
"""Of SHA-256."""
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_TIMESTAMP = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z", re.ASCII)
_REMEMBERED_LENGTH_MAX = 512
"""What is longer is read anew each time: strangers cannot fill the memory with it."""
_DIGITS = re.compile(r"\d{1,9}", re.ASCII)

_NO_MATCH = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key "
    "and signing method. Consult the service documentation for details."
)


class SigV4Error(SqsError):
    """Why a request is not let in."""

    @property
    def code(self) -> str:
        return self.kind.code


class _Claim(NamedTuple):
    """Who the client says it is, when, and what it has signed: the same for all its requests of a second."""

    access_key: str
    day: str
    service: str
    scope: str
    """What the key is good for."""
    timestamp: str
    signed_ms: int
    """The timestamp, as a time."""
    signed: str
    """The names of the headers that are signed, as the client wrote them."""
    names: list[str]
    unsigned: tuple[str, ...]
    """Of what must be signed, if it is there: what is not."""
    expires_s: int | None
    """Only of a presigned request."""


def verify(request: Request, credentials: Credentials, now_ms: int, service: str = "sqs") -> Principal:
    """Whom the request comes from; `SigV4Error` if that is not certain. `now_ms` is the wall clock."""
    return _verified(request, None, credentials, now_ms, service)


def is_signed_by_head(request: Request, credentials: Credentials, now_ms: int, service: str = "sqs") -> bool:
    """Whether a request without its body is certain to come from whom it says. `SigV4Error` if no body makes it so.

    That is seen if the header has the body's checksum, which is signed then. Else it takes the body.
    """
    stated = request.headers.get("x-amz-content-sha256")
    if stated is not None:
        _verified(request, stated, credentials, now_ms, service)
        return True
    _claimed(request, _parameters(split_raw_target(request.raw_target)[1]), credentials, now_ms, service)
    return False


def _verified(
    request: Request, stated_sha256: str | None, credentials: Credentials, now_ms: int, service: str
) -> Principal:
    if request.raw_target == b"/":  # as SDKs call
        claim, text, credential = _claimed(request, [], credentials, now_ms, service)
        canonical_path, canonical_query = "/", ""
    else:
        path, query = split_raw_target(request.raw_target)
        parameters = _parameters(query)
        claim, text, credential = _claimed(request, parameters, credentials, now_ms, service)
        canonical_path = quote(_normalized(path), safe="/~", encoding="latin-1")
        canonical_query = _canonical_query(parameters, claim)
    headers = request.headers
    lines = "".join([f"{name}:{_folded(headers.get(name, ''))}\n" for name in claim.names])
    digest = _body_sha256(request) if stated_sha256 is None else stated_sha256
    canonical = f"{request.method}\n{canonical_path}\n{canonical_query}\n{lines}\n{claim.signed}\n{digest}"
    hashed = hashlib.sha256(canonical.encode("latin-1")).hexdigest()
    inner, outer = _keyed(credential.secret.reveal(), claim.scope)
    inner, outer = inner.copy(), outer.copy()
    inner.update(f"{ALGORITHM}\n{claim.timestamp}\n{claim.scope}\n{hashed}".encode("latin-1"))
    outer.update(inner.digest())
    if not hmac.compare_digest(outer.hexdigest().encode(), text.encode("latin-1", "replace")):
        raise SigV4Error(SIGNATURE_DOES_NOT_MATCH, _NO_MATCH)
    return credential.principal


def _claimed(
    request: Request, parameters: list[tuple[str, str]], credentials: Credentials, now_ms: int, service: str
) -> tuple[_Claim, str, Credential]:
    """Who the client says it is, with a signature that is complete and of our time."""
    authorization = request.headers.get("authorization")
    if authorization is not None:
        start, is_there, text = authorization.rpartition("Signature=")
        if not is_there or "," in text:  # it need not be the last field
            start, text = authorization, ""
        read = _from_header if len(start) <= _REMEMBERED_LENGTH_MAX else _from_header.__wrapped__
        claim = read(start, request.headers.get("x-amz-date") or _date_of(request), not text)
        text = text or _fields(start)["Signature"]
    else:
        given = dict(parameters)
        if "X-Amz-Algorithm" not in given and "X-Amz-Signature" not in given:
            raise SigV4Error(MISSING_AUTHENTICATION_TOKEN, "Request is missing Authentication Token")
        claim, text = _from_query(given), given["X-Amz-Signature"]
    credential = credentials.by_access_key(claim.access_key)
    if credential is None:
        raise SigV4Error(INVALID_CLIENT_TOKEN_ID, "The security token included in the request is invalid.")
    _check_scope(claim, service)
    _check_time(claim, now_ms)
    for name in claim.unsigned:
        if name == "host" or name in request.headers:
            raise SigV4Error(SIGNATURE_DOES_NOT_MATCH, f"'{name}' must be a 'SignedHeader' in the AWS Authorization.")
    return claim, text, credential


@lru_cache(maxsize=1_024)
def _keyed(secret: str, scope: str) -> tuple[_Sha256, _Sha256]:
    """What signs for this day, region and service: the two hashes of an HMAC (RFC 2104) that have read the key, to be
    copied. To copy an `hmac.HMAC` takes half as long again.
    """
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode("latin-1"), "sha256")
    block = key.ljust(_BLOCK_BYTES, b"\0")
    return hashlib.sha256(bytes(byte ^ 0x36 for byte in block)), hashlib.sha256(bytes(byte ^ 0x5C for byte in block))


# -- what the client says ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=1_024)
def _from_header(start: str, timestamp: str, has_signature: bool) -> _Claim:
    """What an Authorization header says, with its signature or without: it is the same for all requests of a second."""
    fields = _fields(start)
    names = ("Credential", "Signature", "SignedHeaders") if has_signature else ("Credential", "SignedHeaders")
    for name in names:
        if not fields.get(name):
            raise _incomplete(f"Authorization header requires '{name}' parameter.")
    return _claim(fields["Credential"], timestamp, fields["SignedHeaders"], None)


def _fields(text: str) -> dict[str, str]:
    algorithm, _, rest = text.partition(" ")
    if algorithm != ALGORITHM:
        raise _incomplete(f"The algorithm of the Authorization header is not {ALGORITHM}.")
    fields = {}
    for part in rest.split(","):
        name, _, value = part.strip().partition("=")
        fields[name] = value
    return fields


def _date_of(request: Request) -> str:
    """The timestamp of a request without `X-Amz-Date`."""
    date = request.headers.get("date")
    if date is None:
        raise _incomplete("Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header.")
    if _TIMESTAMP.fullmatch(date):
        return date
    try:
        return parsedate_to_datetime(date).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    except (ValueError, OverflowError):
        raise _incomplete("The Date header is not a date.") from None


def _from_query(given: dict[str, str]) -> _Claim:
    for name in ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"):
        if not given.get(f"X-Amz-{name}"):
            raise _incomplete(f"AWS query-string parameters must include 'X-Amz-{name}'.")
    if given["X-Amz-Algorithm"] != ALGORITHM:
        raise _incomplete(f"X-Amz-Algorithm only supports {ALGORITHM}.")
    expires = given["X-Amz-Expires"]
    if not _DIGITS.fullmatch(expires) or not 1 <= int(expires) <= EXPIRES_S_MAX:
        raise _incomplete(f"X-Amz-Expires must be from 1 to {EXPIRES_S_MAX} seconds.")
    return _claim(given["X-Amz-Credential"], given["X-Amz-Date"], given["X-Amz-SignedHeaders"], int(expires))


def _claim(credential: str, timestamp: str, signed: str, expires_s: int | None) -> _Claim:
    parts = credential.rsplit("/", 4)
    if len(parts) != 5 or parts[4] != "aws4_request":
        raise _incomplete("Credential must have five parts: access key, date, region, service and 'aws4_request'.")
    matched = _TIMESTAMP.fullmatch(timestamp)
    if matched is None:
        raise _incomplete("The date must be in ISO-8601 'basic format': yyyymmddThhmmssZ.")
    try:
        signed_ms = int(datetime(*map(int, matched.groups()), tzinfo=UTC).timestamp()) * 1_000  # type: ignore[misc,arg-type]
    except ValueError:
        raise _incomplete(f"There is no such date: {timestamp}.") from None
    access_key, day, _, service, _ = parts
    scope, names = "/".join(parts[1:]), signed.split(";")
    unsigned = tuple(name for name in _MUST_BE_SIGNED if name not in names)
    return _Claim(access_key, day, service, scope, timestamp, signed_ms, signed, names, unsigned, expires_s)


def _incomplete(message: str) -> SigV4Error:
    return SigV4Error(INCOMPLETE_SIGNATURE, message)


# -- what has to be right ----------------------------------------------------------------------------------------------


def _check_scope(claim: _Claim, service: str) -> None:
    if claim.service != service:
        raise SigV4Error(SIGNATURE_DOES_NOT_MATCH, f"Credential should be scoped to correct service: '{service}'.")
    if claim.day != claim.timestamp[:8]:
        raise SigV4Error(
            SIGNATURE_DOES_NOT_MATCH,
            f"Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
            f"'{claim.day}' != '{claim.timestamp[:8]}', from '{claim.timestamp}'.",
        )


def _check_time(claim: _Claim, now_ms: int) -> None:
    signed_ms = claim.signed_ms
    if signed_ms > now_ms + SKEW_MS:
        raise _untimely(SIGNATURE_DOES_NOT_MATCH, "not yet current", claim, "still later", now_ms, SKEW_MS, "+")
    if claim.expires_s is not None:
        if now_ms > signed_ms + claim.expires_s * 1_000:
            raise SigV4Error(REQUEST_EXPIRED, f"The URL was signed at {claim.timestamp} and has expired.")
    elif signed_ms < now_ms - SKEW_MS:
        raise _untimely(SIGNATURE_DOES_NOT_MATCH, "expired", claim, "now earlier", now_ms, -SKEW_MS, "-")


def _untimely(kind: ErrorKind, what: str, claim: _Claim, how: str, now_ms: int, skew_ms: int, sign: str) -> SigV4Error:
    limit, now = _text(now_ms + skew_ms), _text(now_ms)
    minutes = SKEW_MS // 60_000
    return SigV4Error(kind, f"Signature {what}: {claim.timestamp} is {how} than {limit} ({now} {sign} {minutes} min.)")


def _text(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")


def _body_sha256(request: Request) -> str:
    actual = hashlib.sha256(request.body).hexdigest() if request.body else _EMPTY_SHA256
    if request.headers.get("x-amz-content-sha256", actual) != actual:
        raise SigV4Error(SIGNATURE_DOES_NOT_MATCH, "The body's SHA-256 is not the one in x-amz-content-sha256.")
    return actual


# -- the request in its canonical form ---------------------------------------------------------------------------------


def _normalized(path: str) -> str:
    """The path without empty, `.` and `..` segments, as the signer sees it.

    >>> _normalized("/a/./b//c/../d/"), _normalized("")
    ('/a/b/d/', '/')
    """
    if path == "/":
        return path
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    tail = "/" if kept and path.endswith("/") else ""
    return "/" + "/".join(kept) + tail


def _parameters(query: str) -> list[tuple[str, str]]:
    """Names and values, decoded, in the query's own order."""
    if not query:
        return []
    pairs = [part.partition("=") for part in query.split("&") if part]
    return [(_decoded(name), _decoded(value)) for name, _, value in pairs]


def _decoded(text: str) -> str:
    return unquote_to_bytes(text).decode("latin-1") if "%" in text else text


def _canonical_query(parameters: list[tuple[str, str]], claim: _Claim) -> str:
    is_presigned = claim.expires_s is not None
    encoded = [
        (_encoded(name), _encoded(value))
        for name, value in parameters
        if not (is_presigned and name == "X-Amz-Signature")
    ]
    return "&".join(f"{name}={value}" for name, value in sorted(encoded))


def _encoded(text: str) -> str:
    return quote(text, safe="-_.~", encoding="latin-1")


def _folded(value: str) -> str:
    """A header's value with its spaces as the signer sees them: none around it, and never two in a row.

    >>> _folded("  a   b "), _folded("a b")
    ('a b', 'a b')
    """
    if value.isascii() and " " not in value and "\t" not in value:
        return value
    return " ".join(value.split())
