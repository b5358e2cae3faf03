"""Many shards: routing between them, links between nodes, who owns what. See docs/adr/0016-many-nodes.md."""
