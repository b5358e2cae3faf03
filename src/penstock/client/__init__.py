"""The Python API: handles that turn method calls into commands, and replies into messages.

The API is written once, asynchronously, in `penstock.client.aio`; `tools/generate_sync.py` makes `penstock.client.sync`
of it. What needs no waiting (times, settings, contents of messages) is shared and stands in this package itself.
"""
