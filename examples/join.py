"""Spark joins two queues into a third: each order with its payment, if that came within ten minutes.

Needs penstock-mq[spark], and Java. It starts a server of its own, as `penstock serve` does.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import penstock


@contextlib.contextmanager
def server(directory: Path) -> Iterator[str]:
    """A server on a free port, for as long as the block lasts: its address."""
    ready = directory / "ready.json"
    ports = [f"--{name}-port=0" for name in ("sqs", "http", "nsq-tcp", "nsq-http")]
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(directory / "data"), "--ready-file", str(ready)]
    process = subprocess.Popen([*command, *ports])
    try:
        while not ready.exists():
            assert process.poll() is None, "the server did not start"
            time.sleep(0.05)
        yield json.loads(ready.read_text())["listening"]["http"]["url"]
    finally:
        process.terminate()
        process.wait()


def main(path: str) -> None:
    """Send three orders and two payments, join them, and look at what was paid."""
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    with server(directory) as url, penstock.connect(url.replace("http", "penstock", 1)) as ps:
        for customer, drink in (("ann", "tea"), ("bob", "coffee"), ("cleo", "cocoa")):
            ps.queue("orders").send(drink, group=customer)
        for customer, price in (("ann", "3.20"), ("cleo", "4.10")):
            ps.queue("payments").send(price, group=customer)
        command = [sys.executable, "-m", "penstock", "pipeline", "run", "join", "--url", url]
        given = ["--left", "orders", "--right", "payments", "--to", "paid", "--within", "10 minutes"]
        subprocess.run([*command, *given], cwd=directory, check=True)
        paid = [json.loads(message.body) for message in ps.queue("paid").receive(max=10)]
    print(sorted((each["on"], each["left"], each["right"]) for each in paid))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="penstock-join-"))
