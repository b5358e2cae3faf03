"""What every test shares: how hard Hypothesis tries, and that Ctrl-C means something."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from penstock.core import broker

# Shared machines are slow at times; a slow example is no failure. CI finds the same examples every time, developers
# find new ones.
settings.register_profile("developer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("developer"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")
if os.environ.get("PENSTOCK_TEST_CLUSTER"):  # servers are started for each test there
    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    settings.register_profile("cluster", settings(), suppress_health_check=checks)
    settings.load_profile("cluster")

# Tests start hundreds of processes. Without bytecode on the disk, each of them compiles the whole package first: a
# server then takes two to three times as long to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A job in a shell's background ignores SIGINT, and so would every process that a test starts to interrupt it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


if os.environ.get("PENSTOCK_TEST_CLUSTER"):
    from tests import clustered

    @pytest.fixture(autouse=True, scope="module")
    def tidied_cluster_after_modules() -> Iterator[None]:
        """No module sees another's queues."""
        with clustered.tidied():
            yield

    @pytest.fixture(autouse=True)
    def tidied_cluster() -> Iterator[None]:
        """No test sees another's queues."""
        with clustered.tidied():
            yield

    def pytest_sessionfinish() -> None:
        """Nodes and brokers end with the session."""
        clustered.close_cluster()


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A monkeypatch for the core. Compiled parts call each other directly: what replaces a method is not called."""
    if not str(broker.__file__).endswith(".py"):
        pytest.skip("the core is compiled: nothing can be put in the place of its methods")
    return monkeypatch


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that everybody gets to, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)
