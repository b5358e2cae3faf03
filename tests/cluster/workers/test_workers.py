"""`penstock serve --workers 2`, as users run it: real processes, boto3, kill -9."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

import penstock
from penstock.cluster.workers.node import LinkDirectory
from penstock.cluster.workers.workers import SharedPort, Worker, Workers, open_cluster_file
from penstock.core.errors import StoreError
from penstock.core.queues.partition import partition_of
from penstock.server.settings import InvalidSettings, ServerSettings, Settings
from penstock.store.layout import CLUSTER_NAME
from tests.cluster.links.linking import in_loop
from tests.compat.server import ROOT, Server, until

WORKERS = 2
CONNECTIONS = 12
KILLED_IN_THE_ACT = 3
RETRY_TIMEOUT_S = 60.0


def name_in(shard: int, stem: str) -> str:
    """A queue name that belongs to a shard."""
    return next(name for number in range(100) if partition_of(name := f"{stem}-{number}", WORKERS) == shard)


class WorkersServer(Server):
    """The parent, and what can be done to its workers."""

    def __init__(self, directory: Path, *flags: str) -> None:
        super().__init__(directory, "--workers", str(WORKERS), *flags)

    def pids(self) -> list[int]:
        """The workers' processes."""
        parent = self.process.pid
        return [int(each) for each in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]

    def pid_of(self, index: int) -> int:
        """The process of a worker: the one that has its shard open."""
        return int((self.data / f"shard-{index}" / "lock").read_text().split()[1])

    def wait_until_ready(self) -> None:
        ready_file = self.directory / "ready.json"
        until(lambda: ready_file.exists() or self.process.poll() is not None, RETRY_TIMEOUT_S)
        super().wait_until_ready()

    def end(self) -> None:
        """Nothing is left running, whatever happened."""
        pids = self.pids() if self.process.poll() is None else []
        self.kill()
        for pid in pids:
            until(lambda pid=pid: _has_ended(pid), RETRY_TIMEOUT_S)


def _has_ended(pid: int) -> bool:
    """Whether a process has ended, though perhaps nobody has asked for its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkersServer]:
    server = WorkersServer(tmp_path_factory.mktemp("workers"))
    try:
        yield server.start()
        assert server.failures_logged() == []
    finally:
        server.end()


class Connection:
    """One connection, and so one worker, for as long as it is open."""

    def __init__(self, server: Server) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=RETRY_TIMEOUT_S)
        self._connection.connect()

    def ask(self, action: str, **arguments: Any) -> dict[str, Any]:
        headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
        self._connection.request("POST", "/", json.dumps(arguments), headers)
        response = self._connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        return json.loads(body) if body else {}

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def connections(server: WorkersServer) -> Iterator[list[Connection]]:
    """So many that each worker has some."""
    opened = [Connection(server) for _ in range(CONNECTIONS)]
    yield opened
    for each in opened:
        each.close()


# -- serving -----------------------------------------------------------------------------------------------------------


def test_one_line_says_that_all_workers_serve(server: WorkersServer) -> None:
    assert len(server.pids()) == WORKERS
    until(lambda: "Ctrl-C stops the server." in server.log_path.read_text())  # the file comes before the line
    assert server.log_path.read_text().count(" ready: ") == 1
    assert json.loads((server.directory / "ready.json").read_text())["pid"] == server.process.pid


def test_every_queue_is_there_through_every_connection(server: WorkersServer, connections: list[Connection]) -> None:
    names = [name_in(shard, "everywhere") for shard in range(WORKERS)]
    for name in names:
        url = connections[0].ask("CreateQueue", QueueName=name)["QueueUrl"]
        for number, connection in enumerate(connections):
            connection.ask("SendMessage", QueueUrl=url, MessageBody=f"{number}")
        bodies = set()
        for connection in connections:
            (message,) = connection.ask("ReceiveMessage", QueueUrl=url)["Messages"]
            bodies.add(message["Body"])
            remote_calls = connections[(connections.index(connection) + 1) % CONNECTIONS]
            remote_calls.ask("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        assert bodies == {str(number) for number in range(CONNECTIONS)}
        assert "Messages" not in connections[0].ask("ReceiveMessage", QueueUrl=url)
    for connection in connections:
        urls = connection.ask("ListQueues", QueueNamePrefix="everywhere")["QueueUrls"]
        assert sorted(url.rpartition("/")[2] for url in urls) == sorted(names)
    assert (server.data / "shard-0" / "journal").exists()
    assert (server.data / "shard-1" / "journal").exists()


def test_connections_are_shared_out(server: WorkersServer, connections: list[Connection]) -> None:
    """Each worker has some of them: a chance of one in two thousand that a dozen all go to one, ten times over."""
    more = [Connection(server) for _ in range(9 * CONNECTIONS)]
    try:
        until(lambda: all(_sockets_at(pid, server.port) for pid in server.pids()), RETRY_TIMEOUT_S)
    finally:
        for each in more:
            each.close()


def _sockets_at(pid: int, port: int) -> int:
    """How many connections to a port a process has."""
    inodes = {
        fields[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if (fields := line.split())[1].endswith(f":{port:04X}") and fields[3] == "01"
    }
    descriptors = Path(f"/proc/{pid}/fd").iterdir()
    found = [os.readlink(each) for each in descriptors if os.path.islink(each)]
    return sum(each.removeprefix("socket:[").removesuffix("]") in inodes for each in found)


def test_a_long_poll_hears_of_what_is_sent_through_another_worker(connections: list[Connection]) -> None:
    for shard in range(WORKERS):
        url = connections[0].ask("CreateQueue", QueueName=name_in(shard, "polled"))["QueueUrl"]
        got: list[Any] = []

        def poll(connection: Connection, url: str = url, got: list[Any] = got) -> None:
            got.append(connection.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)["Messages"][0]["Body"])

        half = CONNECTIONS // 2
        threads = [threading.Thread(target=poll, args=(each,), daemon=True) for each in connections[:half]]
        for thread in threads:
            thread.start()
        for connection in connections[half:]:
            connection.ask("SendMessage", QueueUrl=url, MessageBody="here")
        for thread in threads:
            thread.join(RETRY_TIMEOUT_S)
        assert got == ["here"] * half


def test_dead_letters_cross_over_to_another_worker(server: WorkersServer) -> None:
    sqs = server.client()
    dead = sqs.create_queue(QueueName=name_in(1, "dead"))["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    live = sqs.create_queue(QueueName=name_in(0, "live"), Attributes={"RedrivePolicy": policy})["QueueUrl"]
    sqs.send_message(QueueUrl=live, MessageBody="bad")
    message = sqs.receive_message(QueueUrl=live)["Messages"][0]
    sqs.change_message_visibility(QueueUrl=live, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    sqs.receive_message(QueueUrl=live)
    arrived = sqs.receive_message(QueueUrl=dead, WaitTimeSeconds=20)["Messages"]
    assert [each["Body"] for each in arrived] == ["bad"]


def test_a_session_is_known_through_every_connection(server: WorkersServer) -> None:
    def ask(method: str, path: str, content: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=RETRY_TIMEOUT_S)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, f"/v1{path}", None if content is None else json.dumps(content), headers)
            response = connection.getresponse()
            body = response.read()
            return response.status, json.loads(body) if body else None
        finally:
            connection.close()

    name = name_in(1, "session")
    session = ask("POST", "/sessions", {"name": "me", "ttl": 300})[1]["session"]
    for number in range(CONNECTIONS):
        assert ask("POST", f"/sessions/{session}/heartbeat")[0] == 204
        assert ask("POST", f"/queues/{name}/messages", {"body": f"{number}"})[0] < 300
        status, received = ask("POST", f"/queues/{name}/receive", {"session": session, "wait": 20})
        assert status == 200
        assert len(received["messages"]) == 1
    assert ask("DELETE", f"/sessions/{session}")[0] < 300
    assert ask("POST", f"/sessions/{session}/heartbeat")[0] == 404
    _, received = ask("POST", f"/queues/{name}/receive", {"max": 100, "wait": 20})
    assert len(received["messages"]) == CONNECTIONS, "what a session held is free when it ends"


def test_the_python_client_works_against_workers(server: WorkersServer) -> None:
    with penstock.connect(f"penstock://127.0.0.1:{server.http_port}") as ps:
        for shard in range(WORKERS):
            queue = ps.queue(name_in(shard, "client"))
            queue.send_many([b"%d" % number for number in range(100)])
            batch = queue.receive_batch(max=100, wait=20)
            assert sorted(map(int, batch.bodies)) == list(range(100))
            batch.ack()
            assert queue.stats().messages == 0


def test_metrics_of_any_worker_tell_of_all(server: WorkersServer) -> None:
    for _ in range(6):  # whichever is asked
        _, text = server._http("/metrics")
        lines = text.decode().splitlines()
        for index in range(WORKERS):
            assert f'penstock_worker_up{{worker="{index}"}} 1.0' in lines
            commits = f'penstock_store_commits_total{{worker="{index}"}} '
            assert sum(line.startswith(commits) for line in lines) == 1
            assert any(line.startswith(f'process_cpu_seconds_total{{worker="{index}"}} ') for line in lines)
            assert f'penstock_outbox_failures_total{{shard="{index}",worker="{index}"}} 0.0' in lines
        for name in ("penstock_requests_total", "penstock_forwarded_commands_total"):
            assert sum(line.startswith(f"# TYPE {name} ") for line in lines) == 1


# -- workers that die --------------------------------------------------------------------------------------------------


class Load:
    """Threads that send to a queue of each worker and go on whatever happens; what was acknowledged is noted."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = threading.Event()
        self.acknowledged: dict[str, list[str]] = {}
        self.errors = 0
        sqs = server.client()
        urls = [sqs.create_queue(QueueName=name_in(shard, "load"))["QueueUrl"] for shard in range(WORKERS)]
        self.acknowledged = {url: [] for url in urls}
        self._threads = [
            threading.Thread(target=self._send, args=(url, number), daemon=True) for url in urls for number in range(2)
        ]
        for thread in self._threads:
            thread.start()

    def _send(self, url: str, sender: int) -> None:
        sqs = self._server.client(read_timeout=RETRY_TIMEOUT_S)
        number = 0
        while not self._over.is_set():
            number += 1
            body = f"{sender}-{number}"
            try:
                sqs.send_message(QueueUrl=url, MessageBody=body)
            except (ClientError, BotoCoreError):
                self.errors += 1
            else:
                self.acknowledged[url].append(body)

    def counts(self) -> list[int]:
        return [len(each) for each in self.acknowledged.values()]

    def until_more(self, count: int) -> None:
        """Wait until so many more were acknowledged by each queue."""
        goals = [each + count for each in self.counts()]
        until(lambda: all(now >= goal for now, goal in zip(self.counts(), goals, strict=True)), RETRY_TIMEOUT_S)

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(RETRY_TIMEOUT_S)


def everything_in(sqs: Any, url: str) -> list[str]:
    """Receive and delete until there is nothing."""
    found: list[str] = []
    while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        found += [message["Body"] for message in messages]
        entries = [
            {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]} for number, message in enumerate(messages)
        ]
        assert not sqs.delete_message_batch(QueueUrl=url, Entries=entries).get("Failed")
    return found


def test_a_worker_that_is_killed_loses_nothing_and_comes_back(server: WorkersServer) -> None:
    load = Load(server)
    try:
        for index in range(WORKERS):
            load.until_more(20)
            killed = server.pid_of(index)
            os.kill(killed, signal.SIGKILL)
            until(lambda killed=killed: killed not in server.pids() and len(server.pids()) == WORKERS, RETRY_TIMEOUT_S)
            load.until_more(20)
    finally:
        load.end()
    sqs = server.client(read_timeout=RETRY_TIMEOUT_S)
    for url, acknowledged in load.acknowledged.items():
        found = everything_in(sqs, url)
        assert set(acknowledged) <= set(found)
        assert len(found) == len(set(found)), "something came twice"
    assert "is started again" in server.log_path.read_text()


def test_a_receipt_from_a_worker_that_was_killed_settles_its_message(server: WorkersServer) -> None:
    for number in range(2 * KILLED_IN_THE_ACT):
        shard, sqs = number % WORKERS, server.client(read_timeout=RETRY_TIMEOUT_S)
        queue = name_in(shard, "receipts")
        url = sqs.create_queue(QueueName=queue)["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
        killed = server.pid_of(shard)
        (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
        os.kill(killed, signal.SIGKILL)
        until(lambda killed=killed: killed not in server.pids() and len(server.pids()) == WORKERS, RETRY_TIMEOUT_S)
        until(lambda url=url, message=message: _is_deleted(server, url, message["ReceiptHandle"]), RETRY_TIMEOUT_S)
        with penstock.connect(f"penstock://127.0.0.1:{server.http_port}") as ps:
            channel = ps.queue(queue).stats().channels["main"]
        assert channel.ready + channel.leased + channel.delayed == 0, f"deleted, and still there, in round {number}"


def _is_deleted(server: WorkersServer, url: str, receipt: str) -> bool:
    """Whether a delete was confirmed; a worker that has just been killed answers nothing."""
    try:
        server.client(read_timeout=RETRY_TIMEOUT_S).delete_message(QueueUrl=url, ReceiptHandle=receipt)
    except (BotoCoreError, ClientError):
        return False
    return True


def test_workers_end_when_their_parent_does_and_when_it_is_told_to(server: WorkersServer) -> None:
    """The last of this server."""
    sqs = server.client(read_timeout=RETRY_TIMEOUT_S)
    for shard in range(WORKERS):
        sqs.send_message(QueueUrl=sqs.create_queue(QueueName=name_in(shard, "kept"))["QueueUrl"], MessageBody="kept")
    orphans = server.pids()
    server.kill()
    until(lambda: all(map(_has_ended, orphans)), RETRY_TIMEOUT_S)
    server.start()
    pids, sqs = server.pids(), server.client(read_timeout=RETRY_TIMEOUT_S)
    for shard in range(WORKERS):
        assert everything_in(sqs, server.queue_url(name_in(shard, "kept"))) == ["kept"]
    assert server.stop() == 0
    assert all(map(_has_ended, pids))


# -- a parent whose workers are hard to start --------------------------------------------------------------------------

STUB = """
import json, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
control = socket.socket(fileno=int(sys.argv[1]))
control.recv(1 << 16)
control.sendall(json.dumps({"version": "", "pid": 0, "data": "", "listening": {}}).encode() + b"\\n")
while control.recv(1 << 16):
    pass
"""


def parent_of_stubs(directory: Path) -> Workers:
    """A parent whose workers do nothing but end when they are told to."""
    settings = Settings(server=ServerSettings(data=str(directory), workers=WORKERS))
    return Workers(settings, {}, "", command=[sys.executable, "-c", STUB])


def pid_of_first(parent: Workers) -> int:
    process = parent.workers[0].process
    assert process is not None
    return process.pid


def kill_first(parent: Workers) -> int:
    os.kill(killed := pid_of_first(parent), signal.SIGKILL)
    return killed


@in_loop
async def test_a_worker_that_could_not_be_started_again_is_tried_again(tmp_path: Path) -> None:
    """The machine that had no memory for a worker may have none for the next one, for a moment."""
    parent = parent_of_stubs(tmp_path)
    launch, failures = parent._launch, [OSError(errno.ENOMEM, "Cannot allocate memory")]

    async def launch_later(worker: Worker) -> None:
        if failures:
            raise failures.pop()
        await launch(worker)

    async with parent:
        killed = kill_first(parent)
        parent._launch = launch_later  # type: ignore[method-assign]
        async with asyncio.timeout(RETRY_TIMEOUT_S):
            while pid_of_first(parent) == killed or not parent.workers[0].is_running:
                await asyncio.sleep(0.01)
        assert not failures


@in_loop
async def test_a_worker_that_is_being_started_when_all_shall_stop_ends_as_well(tmp_path: Path) -> None:
    parent = parent_of_stubs(tmp_path)
    launch, is_launching = parent._launch, asyncio.Event()

    async def launch_slowly(worker: Worker) -> None:
        is_launching.set()
        await parent._stopping.wait()
        await launch(worker)

    async with asyncio.timeout(RETRY_TIMEOUT_S):
        async with parent:
            parent._launch = launch_slowly  # type: ignore[method-assign]
            kill_first(parent)
            await is_launching.wait()
    assert not any(worker.is_running for worker in parent.workers)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_directory_keeps_its_number_of_workers_and_its_secrets_to_itself(tmp_path: Path) -> None:
    made = open_cluster_file(tmp_path, 2)
    assert open_cluster_file(tmp_path, 2) == made
    assert (tmp_path / CLUSTER_NAME).stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidSettings, match=r"made with 2 workers.*start it with --workers 2"):
        open_cluster_file(tmp_path, 3)
    assert made.entropy.hex() not in repr(made)


def test_a_directory_of_a_later_version_is_refused(tmp_path: Path) -> None:
    open_cluster_file(tmp_path, 2)
    path = tmp_path / CLUSTER_NAME
    path.write_text(path.read_text().replace('"format":1', '"format":2'))
    with pytest.raises(InvalidSettings, match="does not know"):
        open_cluster_file(tmp_path, 2)
    path.write_text("{")
    with pytest.raises(InvalidSettings, match="cannot be read"):
        open_cluster_file(tmp_path, 2)


def test_a_directory_of_one_process_is_refused_to_workers_and_the_other_way_round(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "one") as ps:
        ps.queue("q").send(b"x")
    with pytest.raises(InvalidSettings, match=r"queues of a single process.*without --workers"):
        open_cluster_file(tmp_path / "one", 2)
    (tmp_path / "many").mkdir()
    open_cluster_file(tmp_path / "many", 2)
    with pytest.raises(StoreError, match="serve it with --workers"):
        penstock.open(tmp_path / "many")


REFUSALS = {
    "another number": (["--workers", "3"], "start it with --workers 2"),
    "a single process": ([], "serve it with --workers"),
    "what the workers find out": (["--workers", "2"], "'nowhere', does not exist"),
}


def test_the_refusal_reaches_who_typed_the_command(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text('[[queues]]\nname = "q"\ndead_letter = "nowhere"\n')

    def refuse(case: str) -> subprocess.CompletedProcess[str]:
        data = tmp_path / case
        data.mkdir()
        open_cluster_file(data, 2)
        command = [sys.executable, "-m", "penstock", "serve", "--data", str(data), "--config", str(config)]
        for port in ("sqs", "http", "nsq-tcp", "nsq-http"):
            command += [f"--{port}-port", "0"]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        return subprocess.run(
            [*command, *REFUSALS[case][0]], capture_output=True, text=True, timeout=2 * RETRY_TIMEOUT_S, env=environment
        )

    with ThreadPoolExecutor() as pool:
        for case, ended in zip(REFUSALS, pool.map(refuse, REFUSALS), strict=True):
            assert ended.returncode == 2, case
            assert REFUSALS[case][1] in ended.stderr
            assert "Traceback" not in ended.stderr


def test_workers_that_cannot_be_are_refused() -> None:
    for server, words in (
        (ServerSettings(workers=0), "from 1 to"),
        (ServerSettings(workers=10_000), "from 1 to"),
        (ServerSettings(workers=2, engine="kafka"), "several nodes"),
    ):
        with pytest.raises(InvalidSettings, match=words):
            Settings(server=server).check()


def test_a_port_that_others_have_is_not_shared_with_them() -> None:
    first = SharedPort("sqs", "127.0.0.1", 0)
    listener = first.listener()
    try:
        with pytest.raises(InvalidSettings, match="sqs cannot listen"):
            SharedPort("sqs", "127.0.0.1", listener.getsockname()[1])
        first.listener().close()
    finally:
        listener.close()
        first.close()


def test_sockets_in_deep_directories_are_reached_all_the_same(tmp_path: Path) -> None:
    deep = tmp_path / ("deep" * 20) / ("deeper" * 10)
    deep.mkdir(parents=True)
    directory = LinkDirectory(deep)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(directory.address(7))
        listener.listen()
        client.connect(directory.address(7))
    assert (deep / "links" / "worker-7").exists()
    directory.close()
