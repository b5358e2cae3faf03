"""Which node shall own which shard: the controller and its plan."""
