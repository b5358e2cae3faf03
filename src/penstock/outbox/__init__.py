"""Messages that belong to a database transaction: the outbox sends them when it commits, the inbox receives them once.

`pip install penstock-mq[outbox]`. The tables live in the user's own database, PostgreSQL or SQLite, and are reached
through SQLAlchemy Core, in the user's own transactions. See `docs/outbox.md`.
"""

from penstock.outbox.outbox import OUTBOX_ID, Inbox, Outbox, OutboxStatus
from penstock.outbox.relay import Moved, Relay

__all__ = ["OUTBOX_ID", "Inbox", "Moved", "Outbox", "OutboxStatus", "Relay"]
