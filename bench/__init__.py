"""Benchmarks: one script a question, each answering with a ratio that was measured in one run."""
