"""`/v1/lookup`: the lookup services of a node, with a real one in a process of its own."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.protocols.rest.asking import done
from tests.protocols.rest.serving import Server
from tests.server.serving import served


def test_a_node_tells_where_it_registers_and_what_the_lookup_service_knows(tmp_path: Path) -> None:
    for name in ("lookup", "node"):
        (tmp_path / name).mkdir()
    with served(tmp_path / "lookup", "", "--tcp-port", "0", "--http-port", "0", command="lookup") as lookup:
        ports = json.loads((tmp_path / "lookup/ready.json").read_text())["listening"]
        address = (
            f"127.0.0.1:{next(where['port'] for name, where in ports.items() if 'tcp' in name or name == 'lookup')}"
        )
        with served(tmp_path / "node", "", "--lookup", address, "--lookup", "127.0.0.1:1") as node:
            url = f"http://127.0.0.1:{node.ports['http']}"
            httpx.post(f"{url}/v1/queues/orders/messages", json={"body": "tea"})
            deadline = time.monotonic() + 30
            found: dict[str, Any] = {}
            while not any("orders" in each["topics"] for each in found.get("nodes", [])):
                assert time.monotonic() < deadline, (found, lookup.log, node.log)
                time.sleep(0.05)
                found = httpx.get(f"{url}/v1/lookup").json()
            assert {each["address"]: each["connected"] for each in found["services"]} == {
                address: True,
                "127.0.0.1:1": False,
            }
            assert found["nodes"][0]["tcp_port"] == node.ports["nsq"]


def test_a_node_without_lookup_services_says_so(tmp_path: Path) -> None:
    with served(tmp_path) as node:
        found = httpx.get(f"http://127.0.0.1:{node.ports['http']}/v1/lookup").json()
        assert found == {"services": [], "nodes": []}


_DEEP = b'{"producers": [], "more": ' + b"[" * 100_000


@pytest.mark.parametrize("answer", [_DEEP, b'{"producers": "none"}', b"", None])
def test_a_lookup_service_that_answers_anything_at_all_is_passed_over(
    serve: Callable[..., Server], answer: bytes | None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def tell() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + (answer or b""))

        port = 70_000
        if answer is not None:
            port = listener.getsockname()[1]
            threading.Thread(target=tell, daemon=True).start()
        server = serve()
        peer = SimpleNamespace(address="127.0.0.1:4160", info=SimpleNamespace(version="1.3.0", http_port=port))
        server.do(lambda: server.node.services.extras.update(lookup=SimpleNamespace(peers=[peer])))
        with server.client() as http:
            found = done(http.get("/v1/lookup"))
    assert found["nodes"] == []
    assert found["services"] == [{"address": "127.0.0.1:4160", "connected": True, "version": "1.3.0"}]
