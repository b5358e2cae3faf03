"""The examples of docs/nsq.md run as printed, but for the ports."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from penstock.server.settings import NsqSettings, load
from tests.protocols.nsq.clients.servers import ROOT, Penstock, running

PAGE = (ROOT / "docs" / "nsq.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_what_curl_publishes_is_received_by_pynsq(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("THIS TEST DID NOT RUN: curl is not installed")
    with running(Penstock(tmp_path)) as server:

        def here(text: str) -> str:
            return text.replace("127.0.0.1:4150", server.tcp_address).replace("127.0.0.1:4151", server.http_address)

        [commands] = blocks("")[:1]
        done = subprocess.run(["sh", "-ec", here(commands)], check=True, timeout=60, capture_output=True, text=True)
        assert done.stdout.startswith("OK")
        assert '"topic_name":"orders"' in done.stdout.replace('": "', '":"')
        [script] = blocks("python")
        done = subprocess.run(
            [sys.executable, "-c", here(script)], check=True, timeout=60, capture_output=True, text=True
        )
        assert done.stdout == "one coffee 1\n"


def test_the_settings_that_the_page_shows_are_accepted(tmp_path: Path) -> None:
    for block in blocks("toml"):
        path = tmp_path / "penstock.toml"
        path.write_text(block)
        assert tomllib.loads(block)
        load(path).check()


def test_every_setting_that_the_page_names_exists() -> None:
    [table] = re.findall(r"## nsqd's options\n(.*?)\n## ", PAGE, re.DOTALL)
    names = set(re.findall(r"`(?:\[nsq\] )?([a-z]+(?:_[a-z]+)+)`", table))
    names -= {"tls_certificate", "tls_key"}
    assert len(names) > 15
    assert names <= set(NsqSettings.__struct_fields__)
