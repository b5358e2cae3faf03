"""A PostgreSQL server of the tests' own: Debian's, on a free port of the loopback interface."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from tests.ports import free_port
from tests.programs import needed

START_SECONDS_MAX = 60


class PostgresServer:
    """Started when it is made. It refuses to be run by root, so root runs it as `nobody`."""

    def __init__(self) -> None:
        self._postgres = needed("postgresql-15", "postgres")
        initdb = self._postgres.companion("initdb")
        self._user = "nobody" if os.geteuid() == 0 else None
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-postgres-", dir="/tmp"))
        if self._user is not None:
            os.chown(self.directory, pwd.getpwnam(self._user).pw_uid, -1)
        self._data = self.directory / "data"
        options = ["-D", str(self._data), "-U", "postgres", "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        self._run([str(initdb.path), *options])
        self._process = self._start()
        self._wait_until_ready()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, options: str = "") -> str:
        with psycopg.connect(
            f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres", autocommit=True
        ) as connection:
            connection.execute(f'CREATE DATABASE "{name}" {options}')
        return self.url(name)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self) -> subprocess.Popen[bytes]:
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.directory,
            "fsync": "off",
            "shared_buffers": "16MB",
            "max_connections": "60",
        }
        flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with open(self.directory / "log", "wb") as log:
            return subprocess.Popen(
                [self._postgres.path, "-D", self._data, *flags],
                env=self._postgres.environment,
                user=self._user,
                cwd=self.directory,
                stdout=log,
                stderr=log,
            )

    def _run(self, command: list[str]) -> None:
        ended = subprocess.run(
            command, env=self._postgres.environment, user=self._user, cwd=self.directory, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                psycopg.connect(f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres").close()
                return
            except psycopg.OperationalError:
                said = (self.directory / "log").read_text()
                assert self._process.poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.05)
