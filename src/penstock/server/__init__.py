"""The shard and its drivers: from commands to the core, to the store, and back."""
