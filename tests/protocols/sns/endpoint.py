"""An HTTP endpoint as users write them: it checks signatures with the certificate that a message names."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

FIELDS = {
    "Notification": ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"],
    "SubscriptionConfirmation": ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"],
    "UnsubscribeConfirmation": ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"],
}
_certificates: dict[str, x509.Certificate] = {}


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return bytes(answer.read())


def check_signature(message: dict[str, Any]) -> None:
    """Raise unless the message is signed with the key of the certificate that it names."""
    url = message["SigningCertURL"]
    if url not in _certificates:
        _certificates[url] = x509.load_pem_x509_certificate(fetched(url))
    text = "".join(f"{name}\n{message[name]}\n" for name in FIELDS[message["Type"]] if name in message)
    algorithm = {"1": hashes.SHA1(), "2": hashes.SHA256()}[message["SignatureVersion"]]
    key = _certificates[url].public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    key.verify(base64.b64decode(message["Signature"]), text.encode(), padding.PKCS1v15(), algorithm)


class Posted:
    """A request that came."""

    def __init__(self, headers: dict[str, str], body: bytes) -> None:
        self.headers = headers
        self.body = body
        self.at_s = time.monotonic()

    @property
    def message(self) -> dict[str, Any]:
        """The envelope, with its signature checked."""
        found: dict[str, Any] = json.loads(self.body)
        check_signature(found)
        return found


class Endpoint:
    """Records what it is posted, and answers with the next of `statuses`, or 200."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.posted: list[Posted] = []
        self.statuses: list[int] = []
        self.location = ""
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                endpoint.posted.append(Posted(headers, body))
                self.send_response(endpoint.statuses.pop(0) if endpoint.statuses else 200)
                if endpoint.location:
                    self.send_header("Location", endpoint.location)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._server.daemon_threads = True
        self.url = f"{'http' if tls is None else 'https'}://localhost:{self._server.server_port}/hook?a=b"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def wait(self, count: int, patience_s: float = 20.0) -> list[Posted]:
        """What has come, when so many have; fewer if they do not come."""
        deadline = time.monotonic() + patience_s
        while len(self.posted) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return list(self.posted)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def endpoint(tls: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    made = Endpoint(tls)
    try:
        yield made
    finally:
        made.close()


def subscribed(sns: Any, topic: str, there: Endpoint, **attributes: str) -> str:
    """Subscribe an endpoint and confirm it as its owner would: the subscription's ARN."""
    sns.subscribe(TopicArn=topic, Protocol=there.url.split(":")[0], Endpoint=there.url, Attributes=attributes)
    (asked,) = there.wait(1)
    answer = fetched(asked.message["SubscribeURL"]).decode()
    there.posted.clear()
    return answer.partition("<SubscriptionArn>")[2].partition("<")[0]
