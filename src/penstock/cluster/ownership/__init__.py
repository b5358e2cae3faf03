"""The shards of this node: claimed, opened, served, handed over."""
