"""Tests of the core: one file a module, and the broker by example."""
