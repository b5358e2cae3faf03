"""What a refused request looks like to boto3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError


class Refusal:
    """Filled when the block has ended."""

    code = ""
    message = ""
    shape = ""
    status = 0
    response: dict[str, Any]


@contextmanager
def refused(code: str, status: int = 400) -> Iterator[Refusal]:
    """The block's request is refused with this code."""
    refusal = Refusal()
    with pytest.raises(ClientError) as raised:
        yield refusal
    refusal.response = raised.value.response
    error = refusal.response["Error"]
    refusal.code, refusal.message = error["Code"], error["Message"]
    refusal.shape = error.get("QueryErrorCode", error["Code"])
    refusal.status = refusal.response["ResponseMetadata"]["HTTPStatusCode"]
    assert (refusal.code, refusal.status) == (code, status), refusal.message
