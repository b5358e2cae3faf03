"""Spark's executors talk to a server that speaks TLS."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.pipelines.ready.replay import Sender
from penstock.pipelines.where import Where as PipelineWhere
from penstock.spark.errors import ServerFailed
from penstock.spark.options import Where
from penstock.spark.place import Part
from penstock.spark.server import ServerPlace
from tests.compat.server import Server, serving

FOR_EVER_S = 3_600.0
"""What is not refused at once runs into the test's own limit."""
CERTIFICATE = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=tests -addext subjectAltName=IP:127.0.0.1"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For 127.0.0.1, signed by itself; its key is beside it."""
    assert shutil.which("openssl"), "these tests need openssl"
    certificate = tmp_path_factory.mktemp("tls") / "certificate.pem"
    made = [*CERTIFICATE.split(), "-keyout", str(certificate.with_name("key.pem")), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    return certificate


@pytest.fixture(scope="module")
def secure(certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("secure-server")
    config = directory / "penstock.toml"
    key = certificate.with_name("key.pem")
    config.write_text(f'[server]\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n')
    with serving(directory, "--config", str(config)) as running:
        yield running


@pytest.fixture
def url(secure: Server) -> str:
    return f"https://127.0.0.1:{secure.http_port}"


def test_rows_go_to_a_queue_and_come_back(spark: Any, url: str, certificate: Path, tmp_path: Path) -> None:
    """Batch and stream, sink and source: each in the executors."""
    options = {"url": url, "caFile": str(certificate)}
    rows = spark.range(0, 1_000, numPartitions=2).selectExpr("cast(id as string) as value")
    rows.write.format("penstock").options(topic="tls-in", **options).mode("append").save()
    source = spark.readStream.format("penstock").options(subscribe="tls-in", startingOffsets="earliest", **options)
    sink = source.load().select("value").writeStream.format("penstock").options(topic="tls-out", **options)
    sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    found = spark.read.format("penstock").options(subscribe="tls-out", minPartitions="2", **options).load()
    assert sorted(int(bytes(row.value)) for row in found.collect()) == list(range(1_000))


def test_pipelines_send_to_it(url: str, certificate: Path) -> None:
    with contextlib.closing(Sender(PipelineWhere(url, ca_file=str(certificate)), "tls-sent")) as sender:
        sender.publish(pa.table({"value": [b"one", b"two"]}), "test", 0)
    with contextlib.closing(ServerPlace(Where(url=url, ca_file=str(certificate)))) as place:
        assert place.find(["tls-sent"])[Part("tls-sent", 0)].end == 2


def test_the_systems_authorities_are_asked_without_a_file(
    url: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with contextlib.closing(ServerPlace(Where(url=url, timeout_s=FOR_EVER_S))) as place:
        assert isinstance(place.queues(), list)


def test_a_certificate_that_is_not_trusted_is_refused_at_once(url: str) -> None:
    """Once it was tried again for a minute, and called unreachable."""
    with pytest.raises(ServerFailed, match=r"is not trusted: self.signed certificate. Name its authority .* caFile"):
        ServerPlace(Where(url=url, timeout_s=FOR_EVER_S)).queues()


def test_a_certificate_for_another_host_is_refused_at_once(url: str, certificate: Path) -> None:
    elsewhere = url.replace("127.0.0.1", "localhost")
    with pytest.raises(ServerFailed, match=r"is not trusted: .*[Hh]ostname mismatch"):
        ServerPlace(Where(url=elsewhere, ca_file=str(certificate), timeout_s=FOR_EVER_S)).queues()


@pytest.mark.parametrize("content", [None, "no certificate at all"])
def test_a_file_that_has_no_certificates_is_named(url: str, tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "authority.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ServerFailed, match=r"caFile '.*authority.pem' cannot be read"):
        ServerPlace(Where(url=url, ca_file=str(file), timeout_s=FOR_EVER_S)).queues()
