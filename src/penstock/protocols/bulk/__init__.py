"""Bulk: what readers and writers of whole runs of messages need (Spark): offsets, positions, staged sends."""
