"""AWS's SDKs for other languages: JavaScript (npm), Go (its proxy) and Java (Maven), each once, against a real server.

Their packages are fetched when a test runs for the first time, and kept in pytest's cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.compat.server import Server

SOURCES = Path(__file__).parent / "sdks"
PATIENCE_S = 600


def cannot(what: str) -> None:
    """Skip, and say so; where everything has to run, fail."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def run(*words: str | Path, where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=where, capture_output=True, text=True, timeout=PATIENCE_S)


def saw(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_sdk_for_javascript_sends_receives_and_deletes(server: Server, pytestconfig: pytest.Config) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        cannot("there is no node, or no npm, so the AWS SDK for JavaScript was not tried")
    assert pytestconfig.cache is not None
    where = Path(pytestconfig.cache.mkdir("sdk-javascript"))
    for source in (SOURCES / "javascript").iterdir():
        shutil.copy(source, where)
    wanted = json.loads((where / "package.json").read_text())["dependencies"]["@aws-sdk/client-sqs"]
    kept = where / "node_modules" / "@aws-sdk" / "client-sqs" / "package.json"
    if not kept.exists() or json.loads(kept.read_text())["version"] != wanted:
        installed = run("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", where=where)
        if installed.returncode:
            cannot(f"npm cannot install the AWS SDK for JavaScript: {installed.stderr[-300:]}")
    assert saw(run("node", "walk.mjs", server.url, where=where)) == {
        "url": True,
        "tags": {"team": "sales"},
        "sent": 3,
        "bodies": ["grüße 🎉", "b1", "b2", "b3"],
        "raw": [0, 255],
        "receives": "1",
        "uuid": True,
        "changed": 1,
        "deleted": 3,
        "left": "00",
        "timeout": "20",
        "duplicate": True,
        "queues": 2,
        "error": "QueueDoesNotExist",
    }


def test_the_sdk_for_go_sends_receives_and_deletes(server: Server, pytestconfig: pytest.Config) -> None:
    if shutil.which("go") is None:
        cannot("there is no go, so the AWS SDK for Go was not tried")
    assert pytestconfig.cache is not None
    where = Path(pytestconfig.cache.mkdir("sdk-go"))
    program, sources = where / "walk", sorted((SOURCES / "go").iterdir())
    if not program.exists() or program.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        for source in sources:
            shutil.copy(source, where)
        built = run("go", "build", "-o", program, ".", where=where)
        if built.returncode:
            cannot(f"the AWS SDK for Go cannot be built: {built.stderr[-300:]}")
    assert saw(run(program, server.url, where=where)) == {
        "sent": 2,
        "bodies": ["grüße", "one", "two"],
        "raw": "[0 255]",
        "deleted": 3,
        "gone": True,
    }


def test_the_sdk_for_java_works_with_queues_and_topics(server: Server, pytestconfig: pytest.Config) -> None:
    if shutil.which("java") is None or shutil.which("mvn") is None:
        cannot("there is no java, or no mvn, so the AWS SDK for Java was not tried")
    assert pytestconfig.cache is not None
    where = Path(pytestconfig.cache.mkdir("sdk-java"))
    project = SOURCES / "java" / "pom.xml"
    if not (where / "jars").exists() or (where / "pom.xml").read_bytes() != project.read_bytes():
        shutil.rmtree(where / "jars", ignore_errors=True)
        copied = run(
            "mvn",
            "-q",
            "-B",
            "-f",
            project,
            "dependency:copy-dependencies",
            f"-DoutputDirectory={where}/jars",
            where=where,
        )
        if copied.returncode:
            shutil.rmtree(where / "jars", ignore_errors=True)
            cannot(f"Maven cannot fetch the AWS SDK for Java: {copied.stdout[-300:]}")
        shutil.copy(project, where)
    ran = run(
        "java",
        "-Dfile.encoding=UTF-8",
        "-Dstdout.encoding=UTF-8",
        "-cp",
        "jars/*",
        SOURCES / "java" / "Walk.java",
        server.url,
        where=where,
    )
    assert saw(ran) == {
        "sent": 2,
        "bodies": ["grüße", "one", "two"],
        "raw": 2,
        "deleted": 3,
        "gone": True,
        "published": ["order"],
        "missing": True,
    }
