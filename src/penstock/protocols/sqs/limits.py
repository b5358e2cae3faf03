"""What SQS allows. `aws` is what AWS allows, `strict` has its pauses as well, and `relaxed` goes further."""

from __future__ import annotations

from typing import Literal

import msgspec

LimitsName = Literal["aws", "strict", "relaxed"]

MESSAGE_BYTES_CEILING = 1024 * 1024
"""The largest MaximumMessageSize."""
STORED_OVERHEAD_BYTES = 4_096
"""What the stored form of a message's attributes may have above SQS's count of their bytes."""
NAME_LENGTH_MAX = 128
"""No queue, by whatever front end, has a longer name."""
VISIBILITY_SECONDS_MAX = 43_200
PAGE_MAX = 1_000
TAGS_MAX = 50
MOVES_PER_SECOND_MAX = 500
MOVES_LISTED_MAX = 10
MOVES_LISTED = 1
SOURCES_ALLOWED_MAX = 10


class Limits(msgspec.Struct, frozen=True):
    """The limits that differ between the three.

    >>> AWS.batch_entries_max, RELAXED.batch_entries_max
    (10, 1000)
    """

    name: LimitsName
    batch_entries_max: int
    batch_bytes_max: int
    receive_max: int
    delay_seconds_max: int
    wait_seconds_max: int
    message_attributes_max: int
    recreate_pause_ms: int
    """How long a deleted queue's name is not to be had."""
    purge_pause_ms: int
    """How long a purged queue is not purged again."""
    any_queue_name: bool
    """Whether every name that the core takes will do."""

    @property
    def is_strict(self) -> bool:
        """Whether these are AWS's own."""
        return self.name != "relaxed"


AWS = Limits("aws", 10, MESSAGE_BYTES_CEILING, 10, 900, 20, 10, 0, 0, False)
"""The pauses are AWS's infrastructure, and no promise to anybody."""
STRICT = Limits("strict", 10, MESSAGE_BYTES_CEILING, 10, 900, 20, 10, 60_000, 60_000, False)
RELAXED = Limits("relaxed", 1_000, 256 * 1024 * 1024, 1_000, 366 * 24 * 3600, 3600, 100, 0, 0, True)
LIMITS: dict[str, Limits] = {"aws": AWS, "strict": STRICT, "relaxed": RELAXED}
