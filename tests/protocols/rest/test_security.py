"""Who may call, and how often; what a web page may do; TLS."""

from __future__ import annotations

import base64
import io
import json
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import boto3
import httpx
import pytest
from botocore.exceptions import ClientError

import penstock
from penstock.server.log import RequestLog
from penstock.server.settings import InvalidSettings, LogSettings, parse
from tests.protocols.rest.asking import bodies, done, receive, refused, send
from tests.protocols.rest.serving import Server, eventually

GUARDED = """
[[credentials]]
name = "root"
access_key = "AKROOT"
secret_key = "root secret"
token = "root-token"

[[credentials]]
name = "reader"
access_key = "AKREAD"
token = "read-token"
[[credentials.allow]]
queues = "orders*"
rights = ["read"]

[[credentials]]
name = "writer"
access_key = "AKWRITE"
token = "write-token"
[[credentials.allow]]
queues = "orders*"
rights = ["write"]

[[credentials]]
name = "admin"
access_key = "AKADMIN"
token = "admin-token"
[[credentials.allow]]
queues = "orders*"
rights = ["admin"]
"""


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> object:
    server = Server(tmp_path_factory.mktemp("guarded") / "data", GUARDED)
    yield server
    server.stop()


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "Bearer",
        "Bearer nonsense",
        "Bearer AKROOT:guess",
        "Bearer AKREAD:",
        "Basic !!!",
        "Basic " + base64.b64encode(b"AKROOT:guess").decode(),
        "Digest x",
        "read-token",
    ],
)
def test_strangers_are_turned_away(guarded: Server, authorization: str | None) -> None:
    with guarded.client() as http:
        headers = {} if authorization is None else {"authorization": authorization}
        for path in ("/v1/queues", "/v1/stats", "/v1/redrives"):
            response = http.get(path, headers=headers)
            detail = refused(response, 401, "unauthorized")
            assert response.headers["www-authenticate"].startswith("Bearer")
            assert "guess" not in detail
        refused(http.post("/get_partitions", headers=headers), 401, "unauthorized")
        for path in ("/healthz", "/readyz", "/livez", "/version", "/v1/docs", "/v1/openapi.json"):
            assert http.get(path, headers=headers).status_code == 200


def test_who_guesses_is_refused_for_a_while_and_who_is_logged_in_goes_on(serve: Callable[..., Server]) -> None:
    with serve(GUARDED).client() as http:
        assert http.get("/v1/me", headers=bearer("read-token")).status_code == 200
        for number in range(20):
            refused(http.get("/v1/me", headers=bearer(f"guess-{number}")), 401, "unauthorized")
        for headers in (bearer("guess-20"), {"authorization": "Basic " + base64.b64encode(b"AKROOT:x").decode()}):
            response = http.get("/v1/me", headers=headers)
            assert "wait" in refused(response, 429, "too_many_failed_logins")
            assert 1 <= int(response.headers["retry-after"]) <= 6
        refused(http.get("/v1/me", headers=bearer("AKROOT:root secret")), 429, "too_many_failed_logins")
        response = http.get("/metrics", headers=bearer("root-token"))
        assert response.status_code == 429 and 1 <= int(response.headers["retry-after"]) <= 6
        assert http.get("/v1/me", headers=bearer("read-token")).status_code == 200
        assert http.get("/livez").status_code == 200
        explained = http.get("/v1/problems/too_many_failed_logins")
        assert explained.status_code == 200
        with pytest.raises(penstock.TooManyFailedLogins):
            penstock.connect(str(http.base_url), token="AKROOT:root secret").queue("x").send(b"")


@pytest.mark.parametrize(
    "authorization",
    [
        "Bearer root-token",
        "bearer  root-token",
        "Bearer AKROOT:root secret",
        "Basic " + base64.b64encode(b"AKROOT:root secret").decode(),
    ],
)
def test_a_token_a_pair_and_a_password_all_open(guarded: Server, authorization: str) -> None:
    with guarded.client() as http:
        done(http.get("/v1/queues", headers={"authorization": authorization}))


READ, WRITE, ADMIN = "read-token", "write-token", "admin-token"
ALLOWED: list[tuple[str, str, object, set[str]]] = [
    ("POST", "/v1/queues", {"name": "orders"}, {ADMIN}),
    ("GET", "/v1/queues/orders", None, {READ, WRITE, ADMIN}),
    ("PATCH", "/v1/queues/orders", {}, {ADMIN}),
    ("POST", "/v1/queues/orders/purge", None, {ADMIN}),
    ("POST", "/v1/queues/orders/messages", {"body": "a"}, {WRITE}),
    ("GET", "/v1/queues/orders/messages", None, {READ}),
    ("POST", "/v1/queues/orders/receive", {}, {READ}),
    ("POST", "/v1/queues/orders/ack", {"receipts": []}, {READ}),
    ("POST", "/v1/queues/orders/release", {"receipts": []}, {READ}),
    ("POST", "/v1/queues/orders/extend", {"receipts": [], "lease": 1}, {READ}),
    ("POST", "/v1/queues/orders/channels", {"name": "main"}, {READ}),
    ("GET", "/v1/queues/orders/channels", None, {READ, WRITE, ADMIN}),
    ("POST", "/v1/queues/orders/channels/main/pause", None, {ADMIN}),
    ("POST", "/v1/queues/orders/channels/main/unpause", None, {ADMIN}),
    ("POST", "/v1/queues/orders/channels/main/purge", None, {ADMIN}),
    ("POST", "/v1/queues/orders/channels/main/receive", {}, {READ}),
    ("POST", "/v1/queues/orders/channels/main/ack", {"receipts": []}, {READ}),
    ("GET", "/v1/queues/orders/dead-letters", None, {READ}),
    ("GET", "/v1/queues/orders/records", None, {READ}),
    ("GET", "/v1/queues/orders/consumers", None, {READ}),
    ("PUT", "/v1/queues/orders/consumers/c", {"offset": 0}, {READ}),
    ("GET", "/v1/queues/orders/consumers/c/records", None, {READ}),
    ("POST", "/v1/redrives", {"queue": "orders", "target": "orders-moved", "create": True}, {ADMIN}),
    ("POST", "/v1/work", {"sends": [{"queue": "orders", "body": "x"}]}, {WRITE}),
    ("POST", "/publish", {"queue": "orders", "messages": [{"body": "x"}]}, {WRITE}),
    ("POST", "/get_records", {"queue": "orders"}, {READ}),
    ("POST", "/consumer_ack", {"queue": "orders", "consumer": "c", "offset": 0}, {READ}),
    ("POST", "/delete_consumer", {"queue": "orders", "consumer": "c"}, {READ}),
    ("DELETE", "/v1/queues/orders/channels/main", None, {ADMIN}),
    ("POST", "/delete_queue", {"queue": "orders"}, {ADMIN}),
]


def test_each_right_opens_what_it_says_and_no_more(guarded: Server) -> None:
    with guarded.client() as http:
        for method, path, body, allowed in ALLOWED:
            for token in (READ, WRITE, ADMIN):
                if token not in allowed:
                    response = http.request(method, path, json=body, headers=bearer(token))
                    assert response.status_code == 403, (path, token, response.text)
                    assert response.json()["code"] == "access_denied"
            for token in sorted(allowed):
                response = http.request(method, path, json=body, headers=bearer(token))
                assert response.status_code in (200, 201, 204), (path, token, response.text)


def test_rights_hold_for_names_that_match_only(guarded: Server) -> None:
    with guarded.client(headers=bearer("root-token")) as root, guarded.client(headers=bearer(READ)) as reader:
        send(root, "orders-1", "a")
        send(root, "billing", "secret")
        assert done(reader.get("/v1/queues"))["queues"] == ["orders-1"]
        assert done(reader.get("/v1/stats"))["messages"] == 1
        refused(reader.get("/v1/queues/billing/messages"), 403, "access_denied")
        (message,) = receive(root, "billing", lease=600)
        work = {"receipts": [message["receipt"]], "sends": []}
        refused(reader.post("/v1/work", json=work), 403, "access_denied")
        refused(reader.post("/v1/queues/orders-1/ack", json={"receipt": message["receipt"]}), 409, "foreign_receipt")
        done(root.post("/v1/work", json=work))


def test_a_session_is_its_openers_alone(guarded: Server) -> None:
    with guarded.client() as http:
        session = done(http.post("/v1/sessions", json={}, headers=bearer(READ)), 201)["session"]
        refused(http.delete(f"/v1/sessions/{session}", headers=bearer("root-token")), 404, "session_not_found")
        done(http.delete(f"/v1/sessions/{session}", headers=bearer(READ)))


def test_dead_letters_need_the_right_to_read_them(serve: Callable[..., Server]) -> None:
    server = serve(GUARDED.replace('queues = "orders*"\nrights = ["read"]', 'queues = "orders"\nrights = ["read"]'))
    with server.client(headers=bearer("root-token")) as root, server.client(headers=bearer(READ)) as reader:
        send(root, "orders", "a")
        assert done(root.get("/v1/queues/orders/dead-letters"))["messages"] == []
        assert "orders.dead" in refused(reader.get("/v1/queues/orders/dead-letters"), 403, "access_denied")


def test_labels_are_set_by_the_server(guarded: Server) -> None:
    labels = {"settings": {"labels": {"sns.topic": "{}", "sns.subscription.x": '{"target":"billing"}'}}}
    with guarded.client(headers=bearer(ADMIN)) as admin, guarded.client(headers=bearer("root-token")) as root:
        done(admin.post("/v1/queues", json={"name": "orders.plain"}), 201)
        answers = (
            admin.post("/v1/queues", json={"name": "orders.labelled", **labels}),
            admin.patch("/v1/queues/orders.plain", json=labels["settings"]),
        )
        for answer in answers:
            assert "labels are set by the server" in refused(answer, 403, "access_denied")
        assert done(root.get("/v1/queues/orders.plain"))["settings"]["labels"] == {}
        assert root.get("/v1/queues/orders.labelled").status_code == 404


def test_dead_letters_go_only_where_the_caller_may_let_them_go(guarded: Server) -> None:
    with guarded.client(headers=bearer("root-token")) as root, guarded.client(headers=bearer(ADMIN)) as admin:
        send(root, "payroll", "theirs")
        done(admin.post("/v1/queues", json={"name": "orders-9", "settings": {"dead_letter": "orders-10"}}), 201)
        astray = {"dead_letter": "payroll", "max_receives": 1}
        assert "payroll" in refused(admin.patch("/v1/queues/orders-9", json=astray), 403, "access_denied")
        created = admin.post("/v1/queues", json={"name": "orders-11", "settings": astray})
        assert "payroll" in refused(created, 403, "access_denied")
        done(root.patch("/v1/queues/orders-9", json=astray))
        done(admin.patch("/v1/queues/orders-9", json={"dead_letter": None}))


# -- web pages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:3000", "host": "127.0.0.1:9325"},
    ],
)
def test_foreign_pages_may_not_call_a_server_without_credentials(http: httpx.Client, headers: dict[str, str]) -> None:
    for path in ("/v1/queues", "/v1/stats"):
        response = http.get(path, headers=headers)
        refused(response, 403, "foreign_page")
        assert "access-control-allow-origin" not in response.headers
    assert http.get("/metrics", headers=headers).status_code == 403


@pytest.mark.parametrize("page", [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}])
def test_a_foreign_page_may_send_a_token_and_no_password(guarded: Server, page: dict[str, str]) -> None:
    password = {"authorization": "Basic " + base64.b64encode(b"AKROOT:root secret").decode()}
    with guarded.client() as http:
        for path in ("/v1/queues", "/metrics"):
            assert http.get(path, headers=password).status_code == 200
            assert http.get(path, headers=password | page).status_code == 403, path
        done(http.get("/v1/queues", headers={"authorization": "Bearer root-token"} | page))


def test_without_credentials_a_password_is_not_looked_at(http: httpx.Client) -> None:
    done(http.get("/v1/queues", headers={"authorization": "Basic " + base64.b64encode(b"a:b").decode()}))


def test_the_servers_own_page_may_call(server: Server, http: httpx.Client) -> None:
    for host in (f"127.0.0.1:{server.port}", f"localhost:{server.port}", f"[::1]:{server.port}"):
        headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
        done(http.get("/v1/queues", headers=headers))
        done(http.get("/v1/queues", headers={"host": host, "sec-fetch-site": "same-origin"}))
    done(http.get("/v1/queues", headers={"sec-fetch-site": "none"}))


def test_cross_origin_calls_are_off_unless_configured(serve: Callable[..., Server], http: httpx.Client) -> None:
    asking = {"origin": "https://console.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in http.options("/v1/queues", headers=asking).headers
    server = serve('[rest]\ncors_origins = ["https://console.example"]')
    with server.client() as other:
        preflight = other.options("/v1/queues", headers=asking)
        assert preflight.headers["access-control-allow-origin"] == "https://console.example"
        response = other.get(
            "/v1/queues", headers={"origin": "https://console.example", "sec-fetch-site": "cross-site"}
        )
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "https://console.example"
        foreign = other.get("/v1/queues", headers={"origin": "https://evil.example"})
        refused(foreign, 403, "foreign_page")
        assert "access-control-allow-origin" not in foreign.headers


@pytest.mark.parametrize("origin", ["console.example", "ftp://x", "https://x/", "https://"])
def test_an_origin_that_is_none_keeps_the_server_from_starting(origin: str) -> None:
    with pytest.raises(InvalidSettings, match="cors_origins"):
        parse(f'[rest]\ncors_origins = ["{origin}"]').check()


# -- rates -------------------------------------------------------------------------------------------------------------


def test_a_caller_that_calls_too_often_is_told_when_to_come_again(serve: Callable[..., Server]) -> None:
    server = serve(GUARDED + "\n[rest]\nrequests_per_second = 0.01\nrequests_burst = 3")
    with server.client() as http:
        for _ in range(3):
            done(http.get("/v1/queues", headers=bearer(READ)))
        response = http.get("/v1/queues", headers=bearer(READ))
        refused(response, 429, "rate_limited")
        assert 90 <= int(response.headers["retry-after"]) <= 100
        done(http.get("/v1/queues", headers=bearer(WRITE)))
        assert http.get("/healthz").status_code == 200


# -- TLS, log, metrics -------------------------------------------------------------------------------------------------


def test_the_api_speaks_tls_when_the_server_has_a_certificate(tmp_path: Path, serve: Callable[..., Server]) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 "
        f"-keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
    )
    server = serve(f'[server]\ntls_certificate = "{certificate}"\ntls_key = "{key}"')
    assert server.url.startswith("https://")
    with server.client(verify=ssl.create_default_context(cafile=str(certificate))) as http:
        send(http, "q", "over tls")
        assert bodies(receive(http, "q")) == ["over tls"]


def test_requests_are_logged_and_counted_without_secrets(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    settings = LogSettings(format="json", requests="all")
    monkeypatch.setattr("penstock.server.node.RequestLog", lambda _: RequestLog(settings, stream))
    server = serve(GUARDED)
    with server.client(headers=bearer("root-token")) as http:
        send(http, "orders", "a")
        refused(http.get("/v1/queues/none"), 404, "queue_not_found")
        http.get("/v1/queues", headers=bearer("a-wrong-token"))
        eventually(lambda: len(stream.getvalue().splitlines()) == 3)
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        assert [(line["action"], line["queue"], line["outcome"], line["principal"]) for line in lines] == [
            ("send_messages", "orders", "ok", "root"),
            ("describe_queue", "none", "queue_not_found", "root"),
            ("list_queues", "", "unauthorized", ""),
        ]
        assert "token" not in stream.getvalue()
        metrics = http.get("/metrics").text.splitlines()
    assert 'penstock_requests_total{action="send_messages",outcome="ok",protocol="rest"} 1.0' in metrics
    assert 'penstock_requests_total{action="list_queues",outcome="unauthorized",protocol="rest"} 1.0' in metrics
    assert 'penstock_http_connections_total{protocol="rest"} 1.0' in metrics
    assert 'penstock_http_connections_open{protocol="rest"} 1.0' in metrics


def test_one_request_for_metrics_takes_so_many_patterns_and_no_more(http: httpx.Client) -> None:
    """Each is compared with the name of each queue."""
    patterns = [f"a{number}*" for number in range(21)]
    assert http.get("/metrics", params={"queue": patterns[:20]}).status_code == 200
    response = http.get("/metrics", params={"queue": patterns})
    assert (response.status_code, response.text) == (400, "there are 21 patterns: one request takes 20\n")


def test_a_client_of_sqs_that_calls_this_port_is_told_where_sqs_is(serve: Callable[..., Server]) -> None:
    server = serve()
    options = {"region_name": "us-east-1", "aws_access_key_id": "x", "aws_secret_access_key": "y"}
    with pytest.raises(ClientError, match=r"this is the port of REST\. SQS and SNS are at "):
        boto3.client("sqs", endpoint_url=server.url, **options).list_queues()
