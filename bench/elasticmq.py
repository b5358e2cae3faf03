"""ElasticMQ: fetched from Maven Central once, run as its users run it: in memory, with its default configuration."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

VERSION = "1.7.1"
_SCALA = "2.13"
_MAIN = "org.elasticmq.server.Main"
_CACHE = Path(__file__).resolve().parent.parent / ".cache" / f"elasticmq-{VERSION}"

_PROJECT = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.bench</groupId>
  <artifactId>elasticmq</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.elasticmq</groupId>
      <artifactId>elasticmq-server_{_SCALA}</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


def is_here() -> bool:
    """Whether it can run without anything being fetched."""
    return shutil.which("java") is not None and (_CACHE / "jars").is_dir()


def fetch() -> str | None:
    """Make sure that it is here. Why it is not, if it cannot be."""
    if is_here():
        return None
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            return f"`{program}` is not installed"
    _CACHE.mkdir(parents=True, exist_ok=True)
    (_CACHE / "pom.xml").write_text(_PROJECT)
    partial = _CACHE / "partial"
    copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    if subprocess.run(copy, cwd=_CACHE, stdout=subprocess.DEVNULL).returncode != 0:
        return "Maven could not fetch it"
    partial.rename(_CACHE / "jars")
    return None


def command(host: str, port: int) -> list[str]:
    """How to start it. All that is set is where it listens."""
    return [
        "java",
        f"-Drest-sqs.bind-hostname={host}",
        f"-Drest-sqs.bind-port={port}",
        "-Drest-stats.enabled=false",
        "-cp",
        str(_CACHE / "jars" / "*"),
        _MAIN,
    ]
