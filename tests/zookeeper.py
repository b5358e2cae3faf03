"""A real ZooKeeper server for tests: one for the whole session, started when the first test asks for it.

    from tests.zookeeper import zookeeper  # a fixture

It is shared: tests use clusters of their own (`unique_cluster`), and do not stop it. One that has to kill servers takes
its own from `needed_ensemble`. Where ZooKeeper cannot be had, the test is skipped loudly, and fails in CI.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from tools.servers import ServerError
from tools.zookeeper import ZooKeeperEnsemble

_shared: list[ZooKeeperEnsemble] = []


@pytest.fixture(scope="session")
def zookeeper() -> ZooKeeperEnsemble:
    """The session's server. It ends with the process, so that modules which import this fixture share one."""
    return shared_zookeeper()


def shared_zookeeper() -> ZooKeeperEnsemble:
    """The same, for other fixtures."""
    if not _shared:
        with loudly():
            _shared.append(ZooKeeperEnsemble(1))
        atexit.register(_shared[0].close)
    return _shared[0]


@contextmanager
def needed_ensemble(servers: int = 1, properties: Mapping[str, object] | None = None) -> Iterator[ZooKeeperEnsemble]:
    """Servers of the test's own, for the time of a block."""
    with loudly():
        ensemble = ZooKeeperEnsemble(servers, properties=properties)
    try:
        yield ensemble
    finally:
        ensemble.close()


@contextmanager
def loudly() -> Iterator[None]:
    """What cannot be had for want of ZooKeeper is skipped, or fails in CI."""
    try:
        yield
    except ServerError as error:
        not_run(str(error))


def not_run(why: str) -> None:
    """Skip, and say why; in CI, fail."""
    reason = f"THIS TEST DID NOT RUN: it needs ZooKeeper and kazoo, which cannot be had: {why}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=True)


def unique_cluster(name: str = "test") -> str:
    """The name of a cluster that no other test has."""
    return f"{name}-{uuid.uuid4().hex[:12]}"


if importlib.util.find_spec("kazoo") is None:
    not_run("kazoo is not installed")
