"""Journals: what makes a commit durable, until the table has it."""
