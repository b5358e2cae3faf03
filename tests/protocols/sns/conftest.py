from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from tests.compat.server import REGION, Server, serving

_names = itertools.count(1)


def sns_client(server: Server, access_key: str = "test", secret_key: str = "test", service: str = "sns") -> Any:
    """boto3, as anybody would use it."""
    return boto3.client(
        service,
        endpoint_url=server.url,
        region_name=REGION,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
    )


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("sns")) as server:
        yield server


@pytest.fixture(scope="package")
def sns(server: Server) -> Any:
    return sns_client(server)


@pytest.fixture(scope="package")
def sqs(server: Server) -> Any:
    return server.client()


@pytest.fixture
def name() -> str:
    """A name that nobody else uses."""
    return f"news-{next(_names)}"
