"""Penstock: a message queue that lives in your process and in one directory."""
