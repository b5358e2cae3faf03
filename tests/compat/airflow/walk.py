"""Airflow's SQS code against a server: `python walk.py ENDPOINT HOME`, by the Python that has Airflow. Prints JSON."""

# ruff: noqa: E402
# mypy: ignore-errors

import asyncio
import json
import os
import sys
import warnings

endpoint, os.environ["AIRFLOW_HOME"] = sys.argv[1:]
os.environ["AIRFLOW_CONN_AWS_DEFAULT"] = json.dumps(
    {
        "conn_type": "aws",
        "login": "test-key",
        "password": "test-secret",
        "extra": {"region_name": "us-east-1", "endpoint_url": endpoint},
    }
)
warnings.simplefilter("ignore")

from airflow.providers.amazon.aws.hooks.sqs import SqsHook
from airflow.providers.amazon.aws.sensors.sqs import SqsSensor
from airflow.providers.amazon.aws.triggers.sqs import SqsSensorTrigger
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger


async def first(trigger):
    """What the first event of a trigger says."""
    async for event in trigger.run():
        return event.payload
    return None


class Instance:
    """The part of a task instance that a sensor uses."""

    def xcom_push(self, key, value):
        seen["sensor"] = [message["Body"] for message in value]


seen = {}
hook = SqsHook()
url = hook.create_queue("airflow")["QueueUrl"]
triggers = {
    "SqsSensorTrigger": SqsSensorTrigger(sqs_queue=url, waiter_delay=1),
    "MessageQueueTrigger by scheme": MessageQueueTrigger(scheme="sqs", sqs_queue=url, waiter_delay=1),
    # as provider's pattern wants a queue's URL: the endpoint is that of the connection
    "MessageQueueTrigger by URL": MessageQueueTrigger(
        queue="https://sqs.us-east-1.amazonaws.com/000000000000/airflow", waiter_delay=1
    ),
}
for name, trigger in triggers.items():
    hook.send_message(url, name)
    payload = asyncio.run(first(trigger))
    seen[name] = [payload["status"], *(message["Body"] for message in payload["message_batch"])]
hook.send_message(url, "to the sensor")
seen["poked"] = SqsSensor(task_id="wait", sqs_queue=url).poke({"ti": Instance()})
left = hook.get_conn().get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
seen["left"] = left["ApproximateNumberOfMessages"] + left["ApproximateNumberOfMessagesNotVisible"]
print("seen", json.dumps(seen))
