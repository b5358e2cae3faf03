"""Which nodes there are, and what the partitions topic says about the cluster."""
