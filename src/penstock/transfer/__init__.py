"""Export and import: queues as a file, from a directory, a server or a cluster to any other."""
