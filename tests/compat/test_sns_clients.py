"""SNS with the clients that people have besides boto3: the AWS CLI, aiobotocore, the SDKs for JavaScript and for Go.

The SDKs come from their registries, once: into `build/clients`, and into Go's own cache.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from aiobotocore.session import get_session

from tests.compat.server import REGION, ROOT, Server
from tests.compat.test_aws_cli import Cli

CLIENTS = Path(__file__).parent / "clients"
FETCH_S_MAX = 280
ARN = "arn:aws:sqs:us-east-1:000000000000:"


def missing(reason: str) -> None:
    """Skip loudly; fail in CI."""
    text = f"THIS TEST DID NOT RUN: {reason}"
    (pytest.fail if os.environ.get("CI") else pytest.skip)(text)


def test_the_aws_cli_makes_a_topic_and_publishes(server: Server, sqs: Any, name: str, tmp_path: Path) -> None:
    aws = Cli(server, tmp_path, "sns")
    topic = aws("create-topic", "--name", name, "--tags", "Key=team,Value=a")["TopicArn"]
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    raw = ("--attributes", "RawMessageDelivery=true")
    aws("subscribe", "--topic-arn", topic, "--protocol", "sqs", "--notification-endpoint", ARN + name, *raw)
    kind = json.dumps({"kind": {"DataType": "String", "StringValue": "grün"}})
    aws("publish", "--topic-arn", topic, "--message", "grüße", "--message-attributes", kind)
    found = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=10, MessageAttributeNames=["All"])["Messages"]
    assert [each["Body"] for each in found] == ["grüße"]
    assert found[0]["MessageAttributes"]["kind"]["StringValue"] == "grün"
    refused = aws.run("get-topic-attributes", "--topic-arn", topic + "x")
    assert "(NotFound)" in refused.stderr


def test_aiobotocore_publishes_from_many_tasks(server: Server, sqs: Any, name: str) -> None:
    url = sqs.create_queue(QueueName=name)["QueueUrl"]

    async def work() -> None:
        options: dict[str, Any] = {"endpoint_url": server.url, "region_name": REGION}
        options |= {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        async with get_session().create_client("sns", **options) as sns:
            topic = (await sns.create_topic(Name=name))["TopicArn"]
            raw = {"RawMessageDelivery": "true"}
            await sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=ARN + name, Attributes=raw)
            await asyncio.gather(*(sns.publish(TopicArn=topic, Message=str(number)) for number in range(50)))

    asyncio.run(work())
    bodies: set[str] = set()
    while len(bodies) < 50:
        found = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=10, MaxNumberOfMessages=10).get("Messages", [])
        assert found
        bodies |= {each["Body"] for each in found}
    assert bodies == {str(number) for number in range(50)}


def run(command: list[str], directory: Path, server: Server) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=directory,
        env=os.environ | {"ENDPOINT": server.url},
        capture_output=True,
        text=True,
        timeout=FETCH_S_MAX,
    )


def test_the_sdk_for_javascript_publishes_and_receives(server: Server) -> None:
    if not shutil.which("node") or not shutil.which("npm"):
        missing("it needs node and npm")
    directory = ROOT / "build" / "clients" / "javascript"
    directory.mkdir(parents=True, exist_ok=True)
    for file in (CLIENTS / "javascript").iterdir():
        shutil.copy(file, directory)
    if not (directory / "node_modules" / "@aws-sdk" / "client-sns").exists():
        fetched = run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], directory, server)
        if fetched.returncode:
            missing(f"npm could not fetch the SDK: {fetched.stderr[-300:]}")
    done = run(["node", "sns.mjs"], directory, server)
    assert done.stdout.strip() == "well", done.stderr


def test_the_sdk_for_go_publishes_and_receives(server: Server, tmp_path: Path) -> None:
    if not shutil.which("go"):
        missing("it needs go")
    built = run(["go", "build", "-o", str(tmp_path / "client"), "."], CLIENTS / "go", server)
    if built.returncode:
        missing(f"go could not build the client: {built.stderr[-300:]}")
    done = run([str(tmp_path / "client")], tmp_path, server)
    assert done.stdout.strip() == "well", done.stderr
