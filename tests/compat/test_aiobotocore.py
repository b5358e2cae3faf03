"""aiobotocore: many tasks at once on one client."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from tests.compat.server import ACCOUNT, REGION, Server

MESSAGES = 2_000
SENDERS = 20
RECEIVERS = 30
PATIENCE_S = 240


async def send(sqs: Any, url: str, numbers: range) -> None:
    """Every other ten as a batch, the rest one by one."""
    for first in range(0, len(numbers), 10):
        ten = numbers[first : first + 10]
        if first % 20:
            await asyncio.gather(*(sqs.send_message(QueueUrl=url, MessageBody=str(number)) for number in ten))
        else:
            entries = [{"Id": str(number), "MessageBody": str(number)} for number in ten]
            assert "Failed" not in await sqs.send_message_batch(QueueUrl=url, Entries=entries)


async def receive(sqs: Any, url: str, deleted: Counter[int]) -> None:
    """Until everything is deleted; long polls, so that tasks wait while others work."""
    while deleted.total() < MESSAGES:
        answer = await sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        messages = answer.get("Messages", [])
        if len(messages) == 1:
            await sqs.delete_message(QueueUrl=url, ReceiptHandle=messages[0]["ReceiptHandle"])
        elif messages:
            entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(messages)]
            assert "Failed" not in await sqs.delete_message_batch(QueueUrl=url, Entries=entries)
        deleted.update(int(message["Body"]) for message in messages)


def test_fifty_tasks_lose_nothing_and_delete_everything_once(server: Server, name: str) -> None:
    deleted: Counter[int] = Counter()

    async def work() -> dict[str, str]:
        options: dict[str, Any] = {"endpoint_url": server.url, "region_name": REGION}
        options |= {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        config = AioConfig(max_pool_connections=SENDERS * 10 + RECEIVERS, retries={"max_attempts": 0})
        async with get_session().create_client("sqs", config=config, **options) as sqs:
            url = (await sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "600"}))["QueueUrl"]
            share = MESSAGES // SENDERS
            await asyncio.gather(
                *(send(sqs, url, range(first, first + share)) for first in range(0, MESSAGES, share)),
                *(receive(sqs, url, deleted) for _ in range(RECEIVERS)),
            )
            found = await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
            attributes: dict[str, str] = found["Attributes"]
            return attributes

    attributes = asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
    assert deleted == Counter(range(MESSAGES))
    counts = [value for name, value in attributes.items() if name.startswith("ApproximateNumberOf")]
    assert counts == ["0", "0", "0"]


async def poke(server: Server, url: str) -> list[Any]:
    """What `SqsSensorTrigger` of Airflow's amazon provider (9.39) does for a message-queue trigger: these calls."""
    client = get_session().create_client(
        "sqs",
        endpoint_url=server.url,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    async with client as sqs:
        answer = await sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=5, WaitTimeSeconds=1)
        messages: list[Any] = answer.get("Messages", [])
        if messages:
            entries = [{"Id": each["MessageId"], "ReceiptHandle": each["ReceiptHandle"]} for each in messages]
            assert "Successful" in await sqs.delete_message_batch(QueueUrl=url, Entries=entries)
        return messages


def test_the_calls_of_airflows_trigger_receive_and_delete(server: Server, sqs: Any, name: str) -> None:
    own = sqs.create_queue(QueueName=name)["QueueUrl"]
    for number in range(3):
        sqs.send_message(QueueUrl=own, MessageBody=str(number))
    url = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/{name}"  # the provider knows SQS by such URLs only
    assert [message["Body"] for message in asyncio.run(poke(server, url))] == ["0", "1", "2"]
    assert asyncio.run(poke(server, url)) == []
