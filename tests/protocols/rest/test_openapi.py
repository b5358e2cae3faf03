"""The OpenAPI document tells the truth: schemathesis calls all of it, with data that fits and data that does not."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from penstock import __version__
from penstock.core.commands import AckConsumer, CreateChannel, Send
from penstock.protocols.rest.app import resources_of
from penstock.protocols.rest.operations import operations_of
from tests.protocols.rest.serving import Server, needed

EXAMPLES = int(os.environ.get("PENSTOCK_SCHEMATHESIS_EXAMPLES", "6"))
"""Of each operation and mode: few here, hundreds by hand."""
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]
OPERATIONS = 66
KNOWN = {"queue": "known", "channel": "main", "consumer": "reader"}


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose waits are short, and that takes long URLs."""
    text = "[rest]\nwait_max_s = 0.01\n[http]\nheader_bytes_max = 1000000\n[log]\nrequests = 'none'"
    server = Server(tmp_path_factory.mktemp("called") / "data", text)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def schema(called: Server) -> Any:
    load_all_checks()
    return schemathesis.openapi.from_url(f"{called.url}/v1/openapi.json")


def restore(server: Server) -> None:
    """What calls of the API may have deleted is there again."""
    server.call(Send(queue="known", bodies=[b"a", b"\xff"]))
    server.call(CreateChannel(queue="known", channel="main"))
    server.call(AckConsumer(queue="known", consumer="reader", offset=0, allow_rewind=True))


def is_known(case: Any) -> bool:
    """Aim the case at what is there."""
    for name, value in KNOWN.items():
        if case.path_parameters and name in case.path_parameters:
            case.path_parameters[name] = value
        if isinstance(case.body, dict) and isinstance(case.body.get(name), str):
            case.body[name] = value
    return True


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_every_operation_answers_as_documented(called: Server, schema: Any, mode: GenerationMode) -> None:
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == OPERATIONS
    checks = CHECKS if mode is GenerationMode.POSITIVE else [*CHECKS, negative_data_rejection]
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and not (operation.path_parameters or operation.query or operation.body):
            continue  # nothing that could be wrong
        call_many_times(called, operation, mode, checks)


def call_many_times(server: Server, operation: Any, mode: GenerationMode, checks: list[Any]) -> None:
    @settings(
        max_examples=EXAMPLES,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        database=None,
        derandomize=EXAMPLES < 100,
    )
    @given(case=operation.as_strategy(generation_mode=mode), aims=st.booleans())
    def call(case: Any, aims: bool) -> None:
        if aims and mode is GenerationMode.POSITIVE:
            restore(server)
            is_known(case)
        case.call_and_validate(checks=checks, timeout=20)

    call()


def test_every_operation_is_in_the_document(called: Server) -> None:
    document = httpx.get(f"{called.url}/v1/openapi.json").json()
    described = {
        (path, method) for path, methods in document["paths"].items() for method in methods if method != "parameters"
    }
    operations = list(operations_of(resources_of(called.node.services, __version__)))
    assert described == {(operation.path, operation.method.lower()) for operation in operations}
    assert len(described) == OPERATIONS
    names = [operation.name for operation in operations]
    assert len(set(names)) == len(names)
    assert all(operation.summary and operation.tag for operation in operations)


def test_every_shape_that_the_document_refers_to_is_in_it(called: Server) -> None:
    text = httpx.get(f"{called.url}/v1/openapi.json").text
    referred = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert len(referred) > 20
    assert referred <= set(json.loads(text)["components"]["schemas"])


def test_the_document_needs_credentials_only_where_the_server_does(called: Server, tmp_path: Any) -> None:
    assert httpx.get(f"{called.url}/v1/openapi.json").json()["security"] == []
    guarded = Server(tmp_path / "data", "[[credentials]]\naccess_key = 'A'\ntoken = 't'")
    try:
        security = httpx.get(f"{guarded.url}/v1/openapi.json").json()["security"]
        assert security == [{"bearer": []}, {"basic": []}]
    finally:
        guarded.stop()


def test_the_page_loads_nothing_from_elsewhere(called: Server) -> None:
    response = httpx.get(f"{called.url}/v1/docs")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "http://" not in response.text
    assert "https://" not in response.text
    assert " src=" not in response.text
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_the_page_shows_every_operation_and_can_call_it(called: Server) -> None:
    needed("node")
    command = ["node", str(Path(__file__).with_name("page.mjs")), called.url]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    shown = json.loads(run.stdout)
    assert len(shown["operations"]) == OPERATIONS
    assert {"name", "settings", "channels"} <= set(shown["fields"])
    assert shown["stats"].startswith("200 OK")
    assert shown["created"].startswith("201 Created")
