"""Durable chunks and state records: a journal for now, a table for later."""
