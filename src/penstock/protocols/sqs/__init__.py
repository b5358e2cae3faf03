"""Amazon SQS: both wire protocols, every action.

Read `server.py` first (a request's way in and out), then `shapes.py` (what goes over the wire), then the actions by
noun: `queues.py`, `messages.py`, `batches.py`, `moves.py`, `permissions.py`.
"""
