"""Faults on the network and in processes, by seed: nothing lost, nothing twice, nothing by halves."""
