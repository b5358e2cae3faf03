"""Queues that have partitions in several shards."""
