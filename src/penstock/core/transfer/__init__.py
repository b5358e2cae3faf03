"""Messages that go from one queue, or one shard, to another."""
