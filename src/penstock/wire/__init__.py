"""Formats that servers and clients share: bytes on the wire, and what they mean."""
