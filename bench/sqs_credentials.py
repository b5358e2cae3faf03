"""What do credentials cost? The processor time of SQS requests that are signed and checked, against the same without.

    python -m bench.sqs_credentials [--quick] [--before SOURCES]

Two servers on the same machine take turns: one that knows no credentials, and one on which every request's signature is
checked (AWS Signature Version 4) and its rights on the queue are looked up. `--before` names the `src` directory of
another version, which takes turns with them: the ratio to it is printed, too.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench import sqs_servers
from bench.sqs_load import _RECEIPT, Address, Load, Script, Server, text

ACCESS_KEY, SECRET = "AKIDBENCH", "bench-secret"
CONNECTIONS = 32
BATCH = 10
TURNS = 7
SETTLE_S, COUNT_S = 0.3, 2.0
SIGNED_TARGET = 1.3
SETTINGS = f"""
[[credentials]]
access_key = "{ACCESS_KEY}"
secret_key = "{SECRET}"
name = "bench"
"""


def signed(address: Address, action: str, parameters: Mapping[str, Any]) -> bytes:
    """A request as botocore sends it, with a signature that is right."""
    body = json.dumps(parameters).encode()
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"{stamp[:8]}/us-east-1/sqs/aws4_request"
    headers = {
        "content-type": "application/x-amz-json-1.0",
        "host": f"{address.host}:{address.port}",
        "x-amz-date": stamp,
        "x-amz-target": f"AmazonSQS.{action}",
    }
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{SECRET}".encode()
    for part in (stamp[:8], "us-east-1", "sqs", "aws4_request", to_sign):
        key = hmac.digest(key, part.encode(), "sha256")
    authorization = f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    more = {"user-agent": "Boto3/1.40 md/Botocore#1.40 ua/2.1 os/linux lang/python#3.11", "accept-encoding": "identity"}
    sent = headers | more | {"authorization": authorization, "content-length": str(len(body))}
    return ("POST / HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in sent.items())).encode() + (
        b"\r\n" + body
    )


def working(address: Address, url: str, start: int, batch: int) -> Script:
    """Send, receive, delete; one message or a batch at a time."""
    number = start
    while True:
        number += 1
        body = text(number, 100)
        if batch == 1:
            yield signed(address, "SendMessage", {"QueueUrl": url, "MessageBody": body})
        else:
            entries = [{"Id": str(at), "MessageBody": body} for at in range(batch)]
            yield signed(address, "SendMessageBatch", {"QueueUrl": url, "Entries": entries})
        received = yield signed(address, "ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": batch})
        receipts = [receipt.decode() for receipt in _RECEIPT.findall(received)]
        if len(receipts) == 1:
            yield signed(address, "DeleteMessage", {"QueueUrl": url, "ReceiptHandle": receipts[0]})
        elif receipts:
            held = [{"Id": str(at), "ReceiptHandle": receipt} for at, receipt in enumerate(receipts)]
            yield signed(address, "DeleteMessageBatch", {"QueueUrl": url, "Entries": held})


@contextmanager
def server(directory: Path, *, has_credentials: bool, sources: str | None) -> Iterator[Server]:
    """Penstock on a directory of its own; of other sources, if they are named."""
    directory.mkdir()
    flags = []
    if has_credentials:
        settings = directory / "penstock.toml"
        settings.write_text(SETTINGS)
        settings.chmod(0o600)
        flags = ["--config", str(settings)]
    before = os.environ.get("PYTHONPATH", "")
    if sources is not None:
        os.environ["PYTHONPATH"] = sources + os.pathsep + before
    try:
        with sqs_servers.penstock_server(directory, *flags) as found:
            yield found
    finally:
        os.environ["PYTHONPATH"] = before


def cpu_us(found: Server, url: str, batch: int, settle_s: float, count_s: float) -> float:
    """The server's processor time for a request."""
    scripts = [working(found.address, url, start * 1_000_000, batch) for start in range(CONNECTIONS)]
    return Load(found, scripts).run(settle_s, count_s).server_cpu_us


def main() -> None:
    """Measure in turns; print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="just enough to see that it runs")
    parser.add_argument("--before", metavar="SOURCES", help="the src directory of another version")
    given = parser.parse_args()
    turns, settle_s, count_s = (1, 0.0, 0.05) if given.quick else (TURNS, SETTLE_S, COUNT_S)
    kinds: dict[str, tuple[bool, str | None]] = {"without": (False, None), "with": (True, None)}
    if given.before:
        kinds |= {"before, without": (False, given.before), "before, with": (True, given.before)}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory, ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                server(Path(directory) / str(number), has_credentials=has_credentials, sources=sources)
            )
            for number, (name, (has_credentials, sources)) in enumerate(kinds.items())
        }
        for batch in (1, BATCH):
            found: dict[str, list[float]] = {name: [] for name in kinds}
            for turn in range(turns):
                for name, one in servers.items():
                    url = f"http://{one.address.host}:{one.address.port}/000000000000/q{batch}-{turn}"
                    create(one.address, f"q{batch}-{turn}")
                    found[name].append(cpu_us(one, url, batch, settle_s, count_s))
            print(f"send, receive, delete; {'singles' if batch == 1 else f'batches of {batch}'}:")
            base = statistics.median(found["without"])
            for name, figures in found.items():
                middle = statistics.median(figures)
                print(
                    f"  {name:16} {middle:8.1f} us a request   "
                    f"{middle / base if base else 0:5.2f} of without credentials"
                )
    print(f"target: with credentials at most {SIGNED_TARGET} of without")


def create(address: Address, name: str) -> None:
    """Create a queue."""
    with socket.create_connection(address) as connected:
        connected.sendall(signed(address, "CreateQueue", {"QueueName": name}))
        answer = connected.recv(65_536)
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"CreateQueue was refused: {answer!r}")


if __name__ == "__main__":
    main()
