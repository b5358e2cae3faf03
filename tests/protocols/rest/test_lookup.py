"""`/v1/lookup`: the lookup services of a node, with a real one in a process of its own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx

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
