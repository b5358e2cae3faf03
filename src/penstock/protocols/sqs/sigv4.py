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
from calendar import timegm
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import NamedTuple
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

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW_MS = 15 * 60 * 1_000
"""How far the client's clock may be from ours."""
EXPIRES_S_MAX = 7 * 24 * 3_600
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_TIMESTAMP = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z", re.ASCII)
_DIGITS = re.compile(r"\d{1,9}", re.ASCII)

_NO_MATCH = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key "
    "and signing method. Consult the service documentation for details."
)


class SigV4Error(SqsError):
    """Why a request is not let in."""

    @property
    def code(self) -> str:
        """AWS's name for it."""
        return self.kind.code


class _Signature(NamedTuple):
    """What the client says about its signature."""

    access_key: str
    day: str
    region: str
    service: str
    timestamp: str
    signed_headers: list[str]
    text: str
    expires_s: int | None
    """Only of a presigned request."""

    @property
    def scope(self) -> str:
        """What the key is good for."""
        return f"{self.day}/{self.region}/{self.service}/aws4_request"


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
    path, query = split_raw_target(request.raw_target)
    parameters = _parameters(query)
    signature, credential = _claimed(request, parameters, credentials, now_ms, service)
    canonical = "\n".join(
        (
            request.method,
            quote(_normalized(path), safe="/~", encoding="latin-1"),
            _canonical_query(parameters, signature),
            _canonical_headers(signature, request),
            ";".join(signature.signed_headers),
            _body_sha256(request) if stated_sha256 is None else stated_sha256,
        )
    )
    if not hmac.compare_digest(_sign(canonical, signature, credential), signature.text.encode("latin-1", "replace")):
        raise SigV4Error(SIGNATURE_DOES_NOT_MATCH, _NO_MATCH)
    return credential.principal


def _claimed(
    request: Request, parameters: list[tuple[str, str]], credentials: Credentials, now_ms: int, service: str
) -> tuple[_Signature, Credential]:
    """Who the client says it is, with a signature that is complete and of our time."""
    signature = _signature_of(request, parameters)
    credential = credentials.by_access_key(signature.access_key)
    if credential is None:
        raise SigV4Error(INVALID_CLIENT_TOKEN_ID, "The security token included in the request is invalid.")
    _check_scope(signature, service)
    _check_time(signature, now_ms)
    _check_signed_headers(signature, request)
    return signature, credential


def _sign(canonical: str, signature: _Signature, credential: Credential) -> bytes:
    digest = hashlib.sha256(canonical.encode("latin-1")).hexdigest()
    text = f"{ALGORITHM}\n{signature.timestamp}\n{signature.scope}\n{digest}"
    key = _signing_key(credential.secret.reveal(), signature.day, signature.region, signature.service)
    return hmac.digest(key, text.encode("latin-1"), "sha256").hex().encode()


@lru_cache(maxsize=1_024)
def _signing_key(secret: str, day: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode("latin-1"), "sha256")
    return key


# -- what the client says ----------------------------------------------------------------------------------------------


def _signature_of(request: Request, parameters: list[tuple[str, str]]) -> _Signature:
    authorization = request.headers.get("authorization")
    if authorization is not None:
        return _from_header(authorization, request)
    given = dict(parameters)
    if "X-Amz-Algorithm" in given or "X-Amz-Signature" in given:
        return _from_query(given)
    raise SigV4Error(MISSING_AUTHENTICATION_TOKEN, "Request is missing Authentication Token")


def _from_header(authorization: str, request: Request) -> _Signature:
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != ALGORITHM:
        raise _incomplete(f"The algorithm of the Authorization header is not {ALGORITHM}.")
    fields = dict(_field(part) for part in rest.split(","))
    for name in ("Credential", "Signature", "SignedHeaders"):
        if not fields.get(name):
            raise _incomplete(f"Authorization header requires '{name}' parameter.")
    timestamp = _timestamp_of(request)
    return _signature(fields["Credential"], timestamp, fields["SignedHeaders"], fields["Signature"], None)


def _field(part: str) -> tuple[str, str]:
    name, _, value = part.strip().partition("=")
    return name, value


def _timestamp_of(request: Request) -> str:
    timestamp = request.headers.get("x-amz-date")
    if timestamp is not None:
        return timestamp
    date = request.headers.get("date")
    if date is None:
        raise _incomplete("Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header.")
    if _TIMESTAMP.fullmatch(date):
        return date
    try:
        return parsedate_to_datetime(date).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    except (ValueError, OverflowError):
        raise _incomplete("The Date header is not a date.") from None


def _from_query(given: dict[str, str]) -> _Signature:
    for name in ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"):
        if not given.get(f"X-Amz-{name}"):
            raise _incomplete(f"AWS query-string parameters must include 'X-Amz-{name}'.")
    if given["X-Amz-Algorithm"] != ALGORITHM:
        raise _incomplete(f"X-Amz-Algorithm only supports {ALGORITHM}.")
    expires = given["X-Amz-Expires"]
    if not _DIGITS.fullmatch(expires) or not 1 <= int(expires) <= EXPIRES_S_MAX:
        raise _incomplete(f"X-Amz-Expires must be from 1 to {EXPIRES_S_MAX} seconds.")
    return _signature(
        given["X-Amz-Credential"],
        given["X-Amz-Date"],
        given["X-Amz-SignedHeaders"],
        given["X-Amz-Signature"],
        int(expires),
    )


def _signature(credential: str, timestamp: str, signed: str, text: str, expires_s: int | None) -> _Signature:
    parts = credential.rsplit("/", 4)
    if len(parts) != 5 or parts[4] != "aws4_request":
        raise _incomplete("Credential must have five parts: access key, date, region, service and 'aws4_request'.")
    if not _TIMESTAMP.fullmatch(timestamp):
        raise _incomplete("The date must be in ISO-8601 'basic format': yyyymmddThhmmssZ.")
    access_key, day, region, service, _ = parts
    return _Signature(access_key, day, region, service, timestamp, signed.split(";"), text, expires_s)


def _incomplete(message: str) -> SigV4Error:
    return SigV4Error(INCOMPLETE_SIGNATURE, message)


# -- what has to be right ----------------------------------------------------------------------------------------------


def _check_scope(signature: _Signature, service: str) -> None:
    if signature.service != service:
        raise SigV4Error(SIGNATURE_DOES_NOT_MATCH, f"Credential should be scoped to correct service: '{service}'.")
    if signature.day != signature.timestamp[:8]:
        raise SigV4Error(
            SIGNATURE_DOES_NOT_MATCH,
            f"Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
            f"'{signature.day}' != '{signature.timestamp[:8]}', from '{signature.timestamp}'.",
        )


def _check_time(signature: _Signature, now_ms: int) -> None:
    signed_ms = _milliseconds(signature.timestamp)
    if signed_ms > now_ms + SKEW_MS:
        raise _untimely(SIGNATURE_DOES_NOT_MATCH, "not yet current", signature, "still later", now_ms, SKEW_MS, "+")
    if signature.expires_s is not None:
        if now_ms > signed_ms + signature.expires_s * 1_000:
            raise SigV4Error(REQUEST_EXPIRED, f"The URL was signed at {signature.timestamp} and has expired.")
    elif signed_ms < now_ms - SKEW_MS:
        raise _untimely(SIGNATURE_DOES_NOT_MATCH, "expired", signature, "now earlier", now_ms, -SKEW_MS, "-")


def _untimely(
    kind: ErrorKind, what: str, signature: _Signature, how: str, now_ms: int, skew_ms: int, sign: str
) -> SigV4Error:
    limit, now = _text(now_ms + skew_ms), _text(now_ms)
    minutes = SKEW_MS // 60_000
    return SigV4Error(
        kind, f"Signature {what}: {signature.timestamp} is {how} than {limit} ({now} {sign} {minutes} min.)"
    )


@lru_cache(maxsize=1_024)
def _milliseconds(timestamp: str) -> int:
    matched = _TIMESTAMP.fullmatch(timestamp)
    assert matched is not None
    year, month, day, hour, minute, second = map(int, matched.groups())
    try:
        return timegm(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timetuple()) * 1_000
    except ValueError:
        raise _incomplete(f"There is no such date: {timestamp}.") from None


def _text(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")


def _check_signed_headers(signature: _Signature, request: Request) -> None:
    """The host and the action must be under the signature, or a stranger could change them."""
    for name in ("host", "x-amz-target"):
        if name not in signature.signed_headers and (name == "host" or name in request.headers):
            raise SigV4Error(SIGNATURE_DOES_NOT_MATCH, f"'{name}' must be a 'SignedHeader' in the AWS Authorization.")


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


def _canonical_query(parameters: list[tuple[str, str]], signature: _Signature) -> str:
    is_presigned = signature.expires_s is not None
    encoded = [
        (_encoded(name), _encoded(value))
        for name, value in parameters
        if not (is_presigned and name == "X-Amz-Signature")
    ]
    return "&".join(f"{name}={value}" for name, value in sorted(encoded))


def _encoded(text: str) -> str:
    return quote(text, safe="-_.~", encoding="latin-1")


def _canonical_headers(signature: _Signature, request: Request) -> str:
    headers = request.headers
    return "".join(f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in signature.signed_headers)
