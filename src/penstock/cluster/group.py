"""Who is alive: the members of the group of nodes.

Asked with librdkafka's older call, `list_groups`. Its newer one, `describe_consumer_groups`, can end the whole process
when the broker that is asked goes away meanwhile (confluentinc/librdkafka issue 4605, seen with 2.16: an assertion).
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from penstock.store.journal.kafka_options import KafkaOptions


def nodes_group(options: KafkaOptions) -> str:
    """The consumer group that says who is alive."""
    return f"{options.prefix}.nodes"


def living(admin: AdminClient, options: KafkaOptions, timeout_s: float) -> set[str]:
    """The names of the nodes in the group; none if there is no such group. `KafkaException` if nobody can say."""
    wanted = nodes_group(options)
    groups: list[Any] = admin.list_groups(wanted, timeout_s)
    for group in groups:
        if group.id == wanted:
            if group.error is not None and group.error.code() != KafkaError.NO_ERROR:
                raise KafkaException(group.error)
            return {member.client_id for member in group.members}
    return set()
