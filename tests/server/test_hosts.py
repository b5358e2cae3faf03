"""Every HTTP port answers to its own names, and to no others: a page whose name was made to lead here gets nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

import penstock
from penstock.server.settings import InvalidSettings, parse
from tests.server.serving import PORTS, Served, served

HTTP_PORTS = [name for name in PORTS if name != "nsq"]
CALLS = {
    "sqs": "/?Action=CreateQueue&QueueName=q1",
    "http": "/v1/queues",
    "nsq-http": "/stats?format=json",
    "lookup-http": "/topics",
}
UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    listed = '[server]\nhosts = ["penstock.svc", "*.example.org"]\n[nsq]\nbroadcast_address = "node1.internal"\n'
    with served(tmp_path_factory.mktemp("hosts"), listed) as server:
        yield server


def ask(server: Served, front_end: str, host: str, more: str = "") -> tuple[int, str]:
    return server.talk(front_end, f"GET {CALLS[front_end]} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n")


def said(front_end: str, body: str) -> str:
    """What an error says, in the form of the port's protocol."""
    if front_end == "sqs":
        assert body.count("<Code>MisdirectedRequest</Code>") == 1
        return body.partition("<Message>")[2].partition("</Message>")[0]
    problem = json.loads(body)
    return str(problem["detail"] if front_end == "http" else problem["message"])


@pytest.mark.parametrize("front_end", HTTP_PORTS)
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9324",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "example.org",
        "a:b",
        "::1",
    ],
)
def test_a_name_that_is_not_the_servers_gets_421_and_hears_what_to_set(
    server: Served, front_end: str, host: str
) -> None:
    status, body = ask(server, front_end, host)
    assert status == 421
    assert "\n" not in body
    assert said(front_end, body) == (
        f"this server does not answer to the host '{host}': add its name to [server] hosts in penstock.toml"
    )


@pytest.mark.parametrize("front_end", HTTP_PORTS)
@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:9324",
        "localhost.",
        "queue.localhost:9324",
        "127.0.0.1",
        "127.3.4.5:80",
        "[::1]:9324",
        "[fe80::1%25eth0]:9324",
        "10.1.2.3:9324",
        "penstock.svc:9324",
        "PENSTOCK.svc.",
        "a.b.example.org",
        "node1.internal",
    ],
)
def test_own_names_and_addresses_are_answered(server: Served, front_end: str, host: str) -> None:
    assert ask(server, front_end, host)[0] == 200


@pytest.mark.parametrize("front_end", HTTP_PORTS)
def test_the_host_in_a_whole_url_counts_as_the_header_does(server: Served, front_end: str) -> None:
    for host, status in (("evil.example:1", 421), ("localhost:1", 200)):
        request = f"GET http://{host}{CALLS[front_end]} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        assert server.talk(front_end, request)[0] == status


@pytest.mark.parametrize("front_end", HTTP_PORTS)
def test_who_names_no_host_is_answered_for_no_browser_does_that(server: Served, front_end: str) -> None:
    assert server.talk(front_end, f"GET {CALLS[front_end]} HTTP/1.0\r\n\r\n")[0] == 200


def test_a_websocket_is_refused_as_well(server: Served) -> None:
    status, body = server.talk("http", f"GET /v1/ws HTTP/1.1\r\nHost: evil.example\r\n{UPGRADE}\r\n")
    assert (status, "[server] hosts" in body) == (421, True)
    assert server.talk("http", f"GET /v1/ws HTTP/1.1\r\nHost: penstock.svc\r\n{UPGRADE}\r\n")[0] == 101


def test_an_aws_sdk_hears_it_as_an_error_of_sqs(server: Served) -> None:
    def client(host: str) -> Any:
        config = Config(retries={"total_max_attempts": 1}, proxies={"http": f"http://127.0.0.1:{server.ports['sqs']}"})
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
        return boto3.client("sqs", endpoint_url=f"http://{host}", config=config, **keys)

    with pytest.raises(ClientError, match=r"add its name to \[server\] hosts") as refused:
        client("evil.example").create_queue(QueueName="q2")
    assert refused.value.response["Error"]["Code"] == "MisdirectedRequest"
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 421
    for host in ("penstock.svc", "queue.localhost"):
        url = client(host).create_queue(QueueName="q2")["QueueUrl"]
        assert url == f"http://{host}/000000000000/q2"
        client(host).send_message(QueueUrl=url, MessageBody="tea")


def test_clients_of_the_python_api_reach_a_server_by_its_names(server: Served) -> None:
    with penstock.connect(f"penstock://localhost:{server.ports['http']}") as ps:
        ps.queue("orders").send(b"tea")


def test_a_server_with_credentials_answers_to_its_names_alone_too(tmp_path: Path) -> None:
    config = '[[credentials]]\naccess_key = "AK"\nsecret_key = "secret"\n'
    with served(tmp_path, config) as server:
        for front_end in HTTP_PORTS:
            assert ask(server, front_end, "evil.example", "Authorization: Bearer AK:secret\r\n")[0] == 421
        assert ask(server, "http", "127.0.0.1", "Authorization: Bearer AK:secret\r\n")[0] == 200


def test_a_page_cannot_borrow_the_password_that_a_browser_remembers(tmp_path: Path) -> None:
    """Browsers send it along with the requests of any page, as they do cookies."""
    config = '[[credentials]]\naccess_key = "AK"\nsecret_key = "secret"\n'
    basic = "Authorization: Basic QUs6c2VjcmV0\r\n"
    with served(tmp_path, config) as server:
        for front_end in ("http", "nsq-http"):
            assert ask(server, front_end, "127.0.0.1", basic)[0] == 200
            for page in ("Origin: http://evil.example\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n"):
                assert ask(server, front_end, "127.0.0.1", basic + page)[0] == 403


def test_the_flag_lists_names_and_a_star_is_every_name(tmp_path: Path) -> None:
    with served(tmp_path, "", "--hosts", "penstock.svc", "--hosts", "*") as server:
        for front_end in HTTP_PORTS:
            assert ask(server, front_end, "anything.example")[0] == 200
        page = "Origin: http://anything.example\r\nSec-Fetch-Site: same-origin\r\n"
        assert ask(server, "http", "anything.example", page)[0] == 403, "a page of a name that nobody vouches for"


def test_a_lookup_service_answers_to_its_names_alone(tmp_path: Path) -> None:
    config = '[server]\nhosts = ["lookup.svc"]\n[lookup]\nbroadcast_address = "lookup1"\n'
    with served(tmp_path, config, "--tcp-port", "0", "--http-port", "0", command="lookup") as server:
        for host, status in (("evil.example", 421), ("lookup.svc", 200), ("lookup1:4161", 200), ("localhost", 200)):
            answered, body = ask(server, "lookup-http", host)
            assert answered == status
            assert status == 200 or "[server] hosts" in said("lookup-http", body)


@pytest.mark.parametrize("host", ["http://a.example", "a.example:9324", "a.*.example", "*a.example", "", "a b"])
def test_a_host_that_is_no_name_keeps_the_server_from_starting(host: str) -> None:
    with pytest.raises(InvalidSettings, match=r"\[server\] hosts has .*: a host is a name without scheme and port"):
        parse(f'[server]\nhosts = ["{host}"]').check()
