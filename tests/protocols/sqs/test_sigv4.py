"""Signatures made by botocore's own signers are accepted; every change to what they cover is not."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.http import Request
from penstock.protocols.sqs.sigv4 import SigV4Error, is_signed_by_head, verify
from penstock.server.auth import Credential, Credentials, Grant, Principal, Secret

MINUTE_MS = 60_000
WORKER = Principal("worker", "AKWORKER", [Grant()])
CREDENTIALS = Credentials([Credential("AKWORKER", Secret("worker/secret+key"), WORKER)])
HOST = "queues.example:9324"
TARGET = "AmazonSQS.SendMessage"


def signed(
    *,
    method: str = "POST",
    target: str = "/",
    body: bytes = b'{"QueueUrl":"x"}',
    headers: dict[str, str] | None = None,
    access_key: str = "AKWORKER",
    secret: str = "worker/secret+key",
    token: str | None = None,
    region: str = "eu-west-1",
    service: str = "sqs",
    signer: Callable[..., Any] = SigV4Auth,
) -> Request:
    """A request as botocore would send it."""
    url = f"http://{HOST}{target}"
    outgoing = AWSRequest(method, url, {"X-Amz-Target": TARGET} if headers is None else headers, body)
    signer(BotoCredentials(access_key, secret, token), service, region).add_auth(outgoing)
    prepared = outgoing.prepare()
    wire = {name.lower(): value for name, value in prepared.headers.items()} | {"host": HOST}
    content = prepared.body or b""
    raw_target = prepared.url.removeprefix(f"http://{HOST}").encode()
    return Request(method, raw_target, wire, content if isinstance(content, bytes) else content.encode())


def presigned(expires_s: int = 300, **options: Any) -> Request:
    options = {"method": "GET", "body": b"", "headers": {}, "target": "/orders?Action=ReceiveMessage"} | options
    return signed(signer=lambda *names: SigV4QueryAuth(*names, expires=expires_s), **options)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def signed_ms(request: Request) -> int:
    given = request.headers.get("x-amz-date") or dict(parse_qsl(request.query))["X-Amz-Date"]
    return int(datetime.strptime(given, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1_000)


def code_of(request: Request, at_ms: int | None = None) -> str:
    with pytest.raises(SigV4Error) as caught:
        verify(request, CREDENTIALS, now_ms() if at_ms is None else at_ms)
    return caught.value.code


def test_a_request_signed_by_botocore_is_let_in() -> None:
    assert verify(signed(), CREDENTIALS, now_ms()) is WORKER


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/000000000000/orders",
        "/a%20b/orders",
        "/a//b/../orders/",
        "/?b=2&a=1&a=0&empty=",
        "/?Action=SendMessage&MessageBody=%20%2B%26%C3%A9",
        "/?name",
        "/caf%C3%A9",
    ],
)
def test_paths_and_queries_of_every_kind_are_read_as_the_signer_read_them(target: str) -> None:
    assert verify(signed(target=target), CREDENTIALS, now_ms()) is WORKER


@given(
    body=st.binary(max_size=200),
    segments=st.lists(
        st.from_regex(r"[A-Za-z0-9._~%-]{0,8}", fullmatch=True).filter(lambda s: "%" not in s), max_size=4
    ),
    value=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20),
    region=st.from_regex(r"[a-z]{2}-[a-z]{4}-[0-9]", fullmatch=True),
)
def test_whatever_botocore_signs_is_let_in(body: bytes, segments: list[str], value: str, region: str) -> None:
    headers = {"X-Amz-Target": TARGET, "X-Custom": f"a   {value}  b"}
    request = signed(target="/" + "/".join(segments), body=body, headers=headers, region=region)
    assert verify(request, CREDENTIALS, now_ms()) is WORKER


def test_a_form_signed_by_botocore_is_let_in() -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    assert (
        verify(signed(body=b"Action=ListQueues&Version=2012-11-05", headers=headers), CREDENTIALS, now_ms()) is WORKER
    )


def test_a_session_token_is_passed_over() -> None:
    assert verify(signed(token="a session"), CREDENTIALS, now_ms()) is WORKER
    assert verify(presigned(token="a session"), CREDENTIALS, now_ms()) is WORKER


def test_a_body_hash_in_a_header_is_checked() -> None:
    body = b"{}"
    headers = {"X-Amz-Target": TARGET, "X-Amz-Content-SHA256": hashlib.sha256(body).hexdigest()}
    request = signed(body=body, headers=headers)
    assert verify(request, CREDENTIALS, now_ms()) is WORKER
    request.body = b"[]"
    assert code_of(request) == "SignatureDoesNotMatch"


def test_the_header_alone_shows_who_asks_if_it_has_the_bodys_hash() -> None:
    body = b"{}"
    headers = {"X-Amz-Target": TARGET, "X-Amz-Content-SHA256": hashlib.sha256(body).hexdigest()}
    request = signed(body=body, headers=headers)
    request.body = b""
    assert is_signed_by_head(request, CREDENTIALS, now_ms())
    request.headers["x-amz-content-sha256"] = hashlib.sha256(b"[]").hexdigest()
    with pytest.raises(SigV4Error, match="signature"):
        is_signed_by_head(request, CREDENTIALS, now_ms())
    assert not is_signed_by_head(signed(body=body), CREDENTIALS, now_ms()), "that takes the body"


def test_a_body_that_nobody_signed_for_is_refused() -> None:
    headers = {"X-Amz-Target": TARGET, "X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}
    assert code_of(signed(headers=headers)) == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("body", b'{"QueueUrl":"y"}'),
        ("method", "PUT"),
        ("raw_target", b"/other"),
        ("raw_target", b"/?Action=DeleteQueue"),
    ],
)
def test_changing_what_was_signed_is_noticed(part: str, value: object) -> None:
    request = signed()
    setattr(request, part, value)
    assert code_of(request) == "SignatureDoesNotMatch"


@pytest.mark.parametrize("name", ["host", "x-amz-target", "x-amz-date"])
def test_changing_a_signed_header_is_noticed(name: str) -> None:
    request = signed()
    if name != "x-amz-date":
        request.headers[name] = request.headers[name].replace("S", "s").replace("queues", "quarks")
    else:
        date = request.headers[name]
        request.headers[name] = date.replace("59Z", "58Z") if "59Z" in date else f"{date[:13]}59Z"
    assert code_of(request) == "SignatureDoesNotMatch"


@given(place=st.integers(0, 63), digit=st.sampled_from("0123456789abcdef"))
def test_a_signature_with_another_digit_is_refused(place: int, digit: str) -> None:
    request = signed()
    authorization = request.headers["authorization"]
    start = authorization.index("Signature=") + len("Signature=")
    forged = authorization[: start + place] + digit + authorization[start + place + 1 :]
    request.headers["authorization"] = forged
    if forged == authorization:
        assert verify(request, CREDENTIALS, now_ms()) is WORKER
    else:
        assert code_of(request) == "SignatureDoesNotMatch"


@pytest.mark.parametrize("name", ["host", "x-amz-target"])
def test_host_and_action_must_be_under_the_signature(name: str) -> None:
    request = signed(headers={})
    if name == "host":
        authorization = request.headers["authorization"]
        request.headers["authorization"] = authorization.replace("SignedHeaders=host;", "SignedHeaders=")
    else:
        request.headers[name] = "AmazonSQS.DeleteQueue"
    assert code_of(request) == "SignatureDoesNotMatch"


def test_an_unknown_access_key_is_named_so() -> None:
    assert code_of(signed(access_key="AKSTRANGER")) == "InvalidClientTokenId"


def test_the_wrong_secret_does_not_match() -> None:
    assert code_of(signed(secret="guess")) == "SignatureDoesNotMatch"


def test_a_signature_for_another_service_is_refused() -> None:
    assert code_of(signed(service="sns")) == "SignatureDoesNotMatch"


def test_no_signature_at_all_is_missing() -> None:
    assert code_of(Request("POST", b"/", {"host": HOST}, b"")) == "MissingAuthenticationToken"


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Basic d29ya2VyOnNlY3JldA==",
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential=AKWORKER/20260101/r/sqs/aws4_request, SignedHeaders=host",
        "AWS4-HMAC-SHA256 Credential=AKWORKER/sqs/aws4_request, SignedHeaders=host, Signature=00",
        "AWS4-HMAC-SHA256 Credential=AKWORKER/20260101/r/sqs/aws3_request, SignedHeaders=host, Signature=00",
    ],
)
def test_half_a_signature_is_incomplete(authorization: str) -> None:
    request = signed()
    request.headers["authorization"] = authorization
    assert code_of(request) == "IncompleteSignature"


@pytest.mark.parametrize("date", ["yesterday", "20260230T000000Z", "2026-01-01T00:00:00Z", "99999999T999999Z"])
def test_a_date_that_is_none_is_incomplete_or_does_not_match(date: str) -> None:
    request = signed()
    request.headers["x-amz-date"] = date
    assert code_of(request) in ("IncompleteSignature", "SignatureDoesNotMatch")


def test_clocks_may_differ_by_fifteen_minutes_and_no_more() -> None:
    request = signed()
    at_ms = signed_ms(request)
    for apart_ms in (-15 * MINUTE_MS, 15 * MINUTE_MS):
        assert verify(request, CREDENTIALS, at_ms + apart_ms) is WORKER
    beyond_ms = 15 * MINUTE_MS + 1
    for apart_ms, words in ((beyond_ms, "Signature expired"), (-beyond_ms, "Signature not yet current")):
        with pytest.raises(SigV4Error, match=words) as caught:
            verify(request, CREDENTIALS, at_ms + apart_ms)
        assert caught.value.code == "SignatureDoesNotMatch"


def test_a_presigned_request_is_let_in_until_it_expires() -> None:
    request = presigned(expires_s=3_600)
    at_ms = signed_ms(request)
    assert verify(request, CREDENTIALS, at_ms) is WORKER
    assert verify(request, CREDENTIALS, at_ms + 60 * MINUTE_MS) is WORKER
    assert code_of(request, at_ms + 60 * MINUTE_MS + 1) == "RequestExpired"
    assert code_of(request, at_ms - 16 * MINUTE_MS) == "SignatureDoesNotMatch"


def test_a_presigned_request_with_more_in_its_query_is_refused() -> None:
    request = presigned()
    request.raw_target += b"&AttributeName.1=All"
    assert code_of(request) == "SignatureDoesNotMatch"


@pytest.mark.parametrize("name", ["Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"])
def test_a_presigned_request_needs_each_of_its_parameters(name: str) -> None:
    request = presigned()
    path, _, query = request.raw_target.decode().partition("?")
    kept = [part for part in query.split("&") if not part.startswith(f"X-Amz-{name}=")]
    request.raw_target = f"{path}?{'&'.join(kept)}".encode()
    assert code_of(request) == "IncompleteSignature"


@pytest.mark.parametrize("expires", ["0", "604801", "-1", "1e3", "٣", ""])
def test_a_presigned_request_lives_from_a_second_to_a_week(expires: str) -> None:
    request = presigned(expires_s=77)
    request.raw_target = request.raw_target.replace(b"X-Amz-Expires=77", f"X-Amz-Expires={expires}".encode())
    assert code_of(request) == "IncompleteSignature"


@given(
    authorization=st.text(st.characters(max_codepoint=255)), target=st.binary(max_size=60), date=st.text(max_size=20)
)
def test_no_nonsense_gets_anything_but_an_answer(authorization: str, target: bytes, date: str) -> None:
    for prefix in ("", "AWS4-HMAC-SHA256 Credential=AKWORKER/"):
        request = Request("POST", b"/" + target, {"authorization": prefix + authorization, "x-amz-date": date}, b"")
        with pytest.raises(SigV4Error):
            verify(request, CREDENTIALS, now_ms())


@given(place=st.integers(0, 1_000), byte=st.integers(0, 255))
def test_a_presigned_target_with_another_byte_never_breaks_the_verifier(place: int, byte: int) -> None:
    request = presigned()
    target = bytearray(request.raw_target)
    target[place % len(target)] = byte
    changed = Request("GET", bytes(target), request.headers, b"")
    try:
        assert verify(changed, CREDENTIALS, now_ms()) is WORKER
    except SigV4Error:
        return
