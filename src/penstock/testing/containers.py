"""Penstock in a container, for tests that use [testcontainers](https://testcontainers-python.readthedocs.io).

    from penstock.testing.containers import PenstockContainer

    with PenstockContainer("penstock:0.1.0") as container:
        sqs = boto3.client("sqs", **container.endpoints.boto3)

It needs `pip install testcontainers` and a container engine. Without one, `penstock.testing.server` starts faster.
"""

from __future__ import annotations

from typing import Any

from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import HttpWaitStrategy

from penstock import __version__
from penstock.testing import Endpoints

SQS, HTTP, NSQ, NSQ_HTTP = 9324, 9325, 4150, 4151
"""Its ports inside the container. Outside they are free ports of the engine's choice."""


class PenstockContainer(DockerContainer):
    """A server in a container, ready when the block begins. Its messages end with it.

    Without keys the server asks for none. More settings: `.with_env("PENSTOCK_...", "...")`.
    """

    def __init__(
        self, image: str = f"penstock:{__version__}", access_key: str = "", secret_key: str = "", **options: Any
    ) -> None:
        if bool(access_key) != bool(secret_key):
            raise ValueError("an access key and its secret key belong together: give both, or none")
        super().__init__(image, ports=[SQS, HTTP, NSQ, NSQ_HTTP], **options)
        self._keys = (access_key, secret_key) if access_key else ()
        if access_key:
            self.with_envs(PENSTOCK_ACCESS_KEY=access_key, PENSTOCK_SECRET_KEY=secret_key)
        else:
            self.with_env("PENSTOCK_INSECURE", "true")
        self.waiting_for(HttpWaitStrategy(HTTP, "/readyz").for_status_code(200))

    def _configure(self) -> None:
        """The engine may run on another machine: the server answers to that name as well."""
        self.env.setdefault("PENSTOCK_HOSTS", self.get_docker_client().host())

    @property
    def endpoints(self) -> Endpoints:
        """Where the server listens, and how clients are told."""
        host = self.get_container_host_ip()
        at = {port: f"{host}:{self.get_exposed_port(port)}" for port in (SQS, HTTP, NSQ, NSQ_HTTP)}
        return Endpoints(f"http://{at[SQS]}", f"http://{at[HTTP]}", at[NSQ], f"http://{at[NSQ_HTTP]}", *self._keys)
