from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.protocols.lookup.serving import PATIENCE_S, FakeNode, ask, until


def penstock(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock", "lookup", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_service_says_when_it_is_ready_and_ends_by_a_signal(tmp_path: Path) -> None:
    ready_file = tmp_path / "ready.json"
    process = penstock("--tcp-port", "0", "--http-port", "0", "--ready-file", str(ready_file))
    try:
        until(lambda: ready_file.exists() or process.poll() is not None)
        listening = json.loads(ready_file.read_text())["listening"]
        assert process.stdout is not None
        line = process.stdout.readline()
        assert all(address["url"] in line for address in listening.values())
        with FakeNode(listening["lookup"]["port"]) as node:
            node.identify("node1")
            assert len(ask(listening["lookup-http"]["port"], "GET", "/nodes")[1]["producers"]) == 1
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
            assert node.is_closed()
    finally:
        process.kill()
        process.communicate()


def test_other_machines_are_served_only_on_purpose() -> None:
    process = penstock("--host", "0.0.0.0")
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert "--insecure" in errors


def test_a_taken_port_is_said_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config.write_text(f"[lookup]\ntcp_port = 0\nhttp_port = {taken.getsockname()[1]}\n")
        process = penstock("--config", str(config))
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert errors.startswith("penstock: lookup cannot listen")
    assert errors.count("\n") == 1
