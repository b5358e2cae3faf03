"""The columns of a source, as Spark writes them down: those of its Kafka connector."""

from __future__ import annotations

SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS_SCHEMA = ", headers array<struct<key: string, value: binary>>"
