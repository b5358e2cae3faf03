"""From a command to the shard that does it, and back."""
