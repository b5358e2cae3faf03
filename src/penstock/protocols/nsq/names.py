"""Names of topics and channels, as NSQ has them; and which NSQ that is."""

from __future__ import annotations

import re

NSQ_VERSION = "1.3.0"
"""The nsqd and nsqlookupd whose behaviour this is; tools compare it with those of other nodes."""
NAME_LENGTH_MAX = 64
EPHEMERAL = "#ephemeral"
_NAME = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?\Z")


def is_name(name: str) -> bool:
    """Whether NSQ takes this as the name of a topic or of a channel.

    >>> is_name("orders"), is_name("orders#ephemeral"), is_name("orders#old"), is_name(""), is_name("o" * 65)
    (True, True, False, False, False)
    """
    return len(name) <= NAME_LENGTH_MAX and _NAME.match(name) is not None


def is_ephemeral(name: str) -> bool:
    """Whether the topic or channel goes with its last client."""
    return name.endswith(EPHEMERAL)
